package supervise

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"

	"staddle.internal/services/supervisor/internal/machine"
)

// obedient are children that do what they are told: they serve at once, and end
// when asked to, unless they are deaf.
type obedient struct {
	loop *Loop
	deaf bool
	safe int // from so many kills, which fail

	mu   sync.Mutex
	next int
	live map[string]int
	fail error // of every start
}

func (o *obedient) Start(_ context.Context, name string) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return 0, o.fail
	}
	o.next++
	o.live[name] = o.next
	return o.next, nil
}

func (o *obedient) Terminate(name string, pid int) error {
	if !o.deaf {
		o.end(name, pid, "exit code 0")
	}
	return nil
}

func (o *obedient) Kill(name string, pid int) error {
	if o.safe > 0 {
		o.safe--
		return errors.New("not permitted")
	}
	o.end(name, pid, "signal killed")
	return nil
}

func (o *obedient) end(name string, pid int, how string) {
	o.mu.Lock()
	delete(o.live, name)
	o.mu.Unlock()
	o.loop.Exited(name, pid, machine.Exit{How: how})
}

func (o *obedient) probe(ctx context.Context, name string, pid int, emit func(machine.Event)) error {
	emit(machine.Event{Kind: machine.Serving, Name: name, PID: pid})
	<-ctx.Done()
	return nil
}

// run starts a loop over two components inside a bubble, and returns how to stop
// it and what it returned.
func run(t *testing.T, o *obedient, failFast bool) (l *Loop, stop func() error) {
	return runWith(t, o, o, o.probe, failFast)
}

// runWith is run with children that are o and more, and their probe.
func runWith(t *testing.T, all children, o *obedient, probe func(context.Context, string, int, func(machine.Event)) error, failFast bool) (l *Loop, stop func() error) {
	plan := machine.Plan{
		Components: []machine.Component{
			{Name: "a", StartTimeout: time.Minute, StopTimeout: 10 * time.Second},
			{Name: "b", Needs: []string{"a"}, StartTimeout: time.Minute, StopTimeout: 10 * time.Second},
		},
		Backoff:     backoff.Policy{Initial: 100 * time.Millisecond, Cap: 10 * time.Second, Stable: time.Minute},
		SilentGrace: 3 * time.Second, FailFast: failFast,
	}
	o.live = map[string]int{}
	l = New(plan, Deps{Children: all, Probe: probe, Changed: func(machine.Table) {}, Log: slog.New(slog.DiscardHandler)})
	o.loop = l
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- l.Run(ctx, func() {}) }() // owned by the test: stop waits for it
	synctest.Wait()
	return l, func() error {
		cancel()
		return <-result
	}
}

func TestLoop_BringsUpAndStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &obedient{}
		l, stop := run(t, o, false)
		if reason, names := Describe(l.plan, l.Table()); reason != "" {
			t.Errorf("got %s (%v), want all ready", reason, names)
		}
		if err := stop(); !errors.Is(err, context.Canceled) || len(o.live) > 0 {
			t.Errorf("got %v with %v alive, want a clean stop", err, o.live)
		}
	})
}

func TestLoop_RestartAnswersWhenTheOldProcessIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &obedient{deaf: true}
		l, stop := run(t, o, false)
		begin := time.Now()
		if err := l.Restart(t.Context(), "b"); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("got an answer after %s, want the grace of a deaf process", took)
		}
		synctest.Wait()
		if m := l.Table().Members["b"]; m.State != machine.Ready || m.Starts != 2 {
			t.Errorf("got %s after %d starts, want it ready in its second process", m.State, m.Starts)
		}
		if err := l.Restart(t.Context(), "x"); !errors.Is(err, fault.NotFound) {
			t.Errorf("got %v, want NotFound", err)
		}
		_ = stop() // by its end, which is looked at elsewhere
		if err := l.Restart(t.Context(), "b"); !errors.Is(err, fault.Unavailable) {
			t.Errorf("got %v, want Unavailable after the end", err)
		}
	})
}

func TestLoop_StopsAlthoughAKillFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &obedient{deaf: true, safe: 2}
		_, stop := run(t, o, false)
		if err := stop(); !errors.Is(err, context.Canceled) || len(o.live) > 0 {
			t.Errorf("got %v with %v alive, want a clean stop", err, o.live)
		}
	})
}

func TestLoop_StartThatFailsIsRetriedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &obedient{fail: errors.New("no such program")}
		l, stop := run(t, o, false)
		<-time.After(time.Hour)
		if m := l.Table().Members["a"]; m.State != machine.BackingOff || !strings.Contains(m.Reason, "no such program") {
			t.Errorf("got %s (%s), want it backing off with the reason", m.State, m.Reason)
		}
		o.mu.Lock()
		o.fail = nil
		o.mu.Unlock()
		<-time.After(10 * time.Second)
		synctest.Wait()
		if reason, _ := Describe(l.plan, l.Table()); reason != "" {
			t.Errorf("got %s, want all ready once the program is there", reason)
		}
		_ = stop() // by its end, which is looked at elsewhere
	})
}

func TestLoop_FailFastReturnsTheFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &obedient{fail: errors.New("no such program")}
		l, stop := run(t, o, true)
		if err := stop(); err == nil || !strings.Contains(err.Error(), "component a: no such program") {
			t.Errorf("got %v, want the failure", err)
		}
		if !l.Table().Over {
			t.Error("got not over, want over")
		}
	})
}

func TestLoop_ChangedIsClosedAtAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &obedient{}
		l, stop := run(t, o, false)
		changed := l.Changed()
		select {
		case <-changed:
			t.Error("got a change, want none at rest")
		default:
		}
		o.end("a", l.Table().Members["a"].PID, "exit code 3")
		<-changed
		synctest.Wait()
		if m := l.Table().Members["a"]; m.LastExit.How != "exit code 3" {
			t.Errorf("got last exit %q, want exit code 3", m.LastExit.How)
		}
		_ = stop() // by its end, which is looked at elsewhere
	})
}
