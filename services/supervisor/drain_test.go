package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
)

const (
	holding    = presencev1.DrainStep_DRAIN_STEP_HOLDING
	stopping   = presencev1.DrainStep_DRAIN_STEP_STOPPING
	unmounting = presencev1.DrainStep_DRAIN_STEP_UNMOUNTING
)

// said is one thing that a presence says, or, without a step, that it dies.
type said struct {
	after time.Duration
	step  presencev1.DrainStep
}

// drainOf is a presence that says one list each time it is asked, the last for ever,
// and ends with done if that is set.
func drainOf(done bool, lists ...[]said) drain {
	return func(ctx context.Context, _ *durationpb.Duration, tell func(*presencev1.DrainProgress)) error {
		list := lists[0]
		if len(lists) > 1 {
			lists = lists[1:]
		}
		for _, s := range list {
			if err := backoff.Wait(ctx, s.after); err != nil {
				return err
			}
			if s.step == presencev1.DrainStep_DRAIN_STEP_UNSPECIFIED {
				return fault.New(fault.Unavailable, "connection refused")
			}
			tell(&presencev1.DrainProgress{Step: s.step})
		}
		if done {
			return nil
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}
}

func TestEnding_DrainAll(t *testing.T) {
	const limit = 2 * time.Minute
	for _, c := range []struct {
		why   string
		drain drain
		took  time.Duration
		fails bool
	}{
		{"all is done", drainOf(true, []said{{0, holding}, {time.Second, stopping}, {40 * time.Second, unmounting}}), 41 * time.Second, false},
		{"presence dies and comes back", drainOf(true, []said{{0, stopping}, {time.Second, 0}}, []said{{}}, []said{{time.Second, stopping}}), 2*time.Second + 2*askAgain, false},
		{"presence is gone", drainOf(true, []said{{}}), answerLimit, true},
		{"presence hangs", drainOf(false, nil), answerLimit, true},
		{"disks cannot be unmounted", drainOf(false, []said{{0, stopping}, {time.Second, unmounting}}), time.Second + unmountLimit, false},
		{"one does not even end when it is killed", drainOf(false, []said{{0, stopping}}), limit + killMargin, true},
	} {
		t.Run(c.why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &ending{cfg: config.Supervisor{DrainTimeout: config.Duration(limit)}, drain: c.drain, log: slog.New(slog.DiscardHandler)}
				began := time.Now()
				if err := e.drainAll(t.Context()); (err != nil) != c.fails || c.fails && !errors.Is(err, fault.Unavailable) {
					t.Errorf("got %v, want an error: %v", err, c.fails)
				}
				if took := time.Since(began); took != c.took {
					t.Errorf("it took %s, want %s", took, c.took)
				}
			})
		})
	}
}

// Sandboxes are drained by a stop only where that is configured, and not once more after
// a caller has said what becomes of them.
func TestEnding_Member(t *testing.T) {
	for _, c := range []struct {
		mode    string
		settled bool
		want    int
	}{
		{config.StopKeep, false, 0}, {config.StopDrain, false, 1}, {config.StopDrain, true, 0},
	} {
		var drained int
		e := &ending{
			cfg: config.Supervisor{StopMode: c.mode, DrainTimeout: config.Duration(time.Minute)}, log: slog.New(slog.DiscardHandler),
			drain: func(ctx context.Context, killAfter *durationpb.Duration, _ func(*presencev1.DrainProgress)) error {
				drained++
				if ctx.Err() != nil || killAfter.AsDuration() != time.Minute {
					t.Errorf("drained within %s, with a context that says %v", killAfter.AsDuration(), ctx.Err())
				}
				return nil
			},
		}
		e.settled.Store(c.settled)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("signal"))
		if err := e.member().Run(ctx, func() {}); err == nil || !strings.Contains(err.Error(), "signal") {
			t.Errorf("got %v, want the cause of the stop", err)
		}
		if drained != c.want {
			t.Errorf("%+v: drained %d times", c, drained)
		}
	}
}
