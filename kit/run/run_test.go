package run_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"staddle.internal/kit/run"
)

// diary is what members write into; its lock is for the race detector.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// member gets ready after a second and takes a second to stop.
func (d *diary) member(name string) run.Member {
	return run.Member{Name: name, Run: func(ctx context.Context, ready func()) error {
		d.note("start %s", name)
		<-time.After(time.Second)
		d.note("ready %s", name)
		ready()
		ready()
		<-ctx.Done()
		<-time.After(time.Second)
		d.note("stop %s", name)
		return context.Cause(ctx)
	}}
}

var errBoom = errors.New("boom")

func TestMembers_StartInOrderAndStopInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(10*time.Second, func() { cancel(errBoom) })
		err := run.Members(ctx, d.member("a"), d.member("b"), d.member("c"))
		if err != errBoom { //nolint:errorlint // nothing may be joined to it
			t.Errorf("Members = %v, want the bare cause", err)
		}
		want := []string{"start a", "ready a", "start b", "ready b", "start c", "ready c", "stop c", "stop b", "stop a"}
		if !slices.Equal(d.lines, want) {
			t.Errorf("got %q, want %q", d.lines, want)
		}
	})
}

func TestMembers_StopWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		ctx, cancel := context.WithTimeoutCause(t.Context(), 1500*time.Millisecond, errBoom)
		defer cancel()
		if err := run.Members(ctx, d.member("a"), d.member("b"), d.member("c")); !errors.Is(err, errBoom) {
			t.Errorf("Members = %v", err)
		}
		want := []string{"start a", "ready a", "start b", "ready b", "stop b", "stop a"}
		if !slices.Equal(d.lines, want) {
			t.Errorf("got %q, want %q", d.lines, want)
		}
	})
}

func TestMembers_FailuresStopTheRest(t *testing.T) {
	tests := []struct {
		name string
		run  func(ctx context.Context, ready func()) error
		want string
	}{
		{"before it is ready", func(context.Context, func()) error { return errBoom }, "member b: boom"},
		{"later", func(_ context.Context, ready func()) error { ready(); <-time.After(time.Hour); return errBoom }, "member b: boom"},
		{"without an error", func(_ context.Context, ready func()) error { ready(); return nil }, "member b: ended by itself"},
		{"by a panic", func(_ context.Context, ready func()) error { ready(); panic("ouch") }, "member b: panic: ouch\ngoroutine"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				err := run.Members(t.Context(), d.member("a"), run.Member{Name: "b", Run: tt.run})
				if !strings.HasPrefix(err.Error(), tt.want) {
					t.Errorf("Members = %q, want %q", err, tt.want)
				}
				if got := d.lines[len(d.lines)-1]; got != "stop a" {
					t.Errorf("last line is %q, want that a was stopped", got)
				}
				if got := run.ExitCode(err); got != run.ExitFailed {
					t.Errorf("ExitCode = %d", got)
				}
			})
		})
	}
}

func TestMembers_NamesWhoOverstays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		let := make(chan struct{})
		defer close(let)
		stuck := run.Member{Name: "stuck", StopTimeout: 5 * time.Second, Run: func(_ context.Context, ready func()) error {
			ready()
			<-let
			return nil
		}}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, &run.SignalError{})
		defer cancel()
		began := time.Now()
		err := run.Members(ctx, d.member("a"), stuck)
		if !strings.Contains(err.Error(), "stop member stuck: still running after 5s") {
			t.Errorf("Members = %q", err)
		}
		if got, want := time.Since(began), 16*time.Second; got != want {
			t.Errorf("took %s, want %s", got, want)
		}
		if got := d.lines[len(d.lines)-1]; got != "stop a" {
			t.Errorf("last line is %q, want that a was stopped", got)
		}
		if got := run.ExitCode(err); got != run.ExitFailed {
			t.Errorf("ExitCode = %d, want %d for an unclean stop", got, run.ExitFailed)
		}
	})
}

func TestMembers_JoinsFailuresToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := run.Member{Name: "bad", Run: func(ctx context.Context, ready func()) error {
			ready()
			<-ctx.Done()
			return errors.New("flush: disk full")
		}}
		err := run.Members(t.Context(), bad, run.Member{Name: "b", Run: func(context.Context, func()) error { return errBoom }})
		if !errors.Is(err, errBoom) || !strings.Contains(err.Error(), "stop member bad: flush: disk full") {
			t.Errorf("Members = %q", err)
		}
	})
}

func TestMembers_TwoFailuresAreBothTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		both := func(err error) func(context.Context, func()) error {
			return func(_ context.Context, ready func()) error { ready(); <-time.After(time.Second); return err }
		}
		err := run.Members(t.Context(), run.Member{Name: "a", Run: both(errors.New("one"))}, run.Member{Name: "b", Run: both(errors.New("two"))})
		for _, want := range []string{"member a: one", "member b: two"} {
			if strings.Count(err.Error(), want) != 1 {
				t.Errorf("Members = %q, want %q once", err, want)
			}
		}
	})
}
