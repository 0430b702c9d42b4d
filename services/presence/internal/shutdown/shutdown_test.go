package shutdown

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
)

// act is one thing that a way does when it is gone.
type act struct {
	after time.Duration
	step  presencev1.DrainStep // unspecified: it fails instead
}

var errGone = fault.New(fault.Unavailable, "connection refused")

// script is a way that does one list of acts each time it is gone, the last list for
// ever; an empty one says nothing and does not end.
func script(name string, lists ...[]act) Way {
	return Way{Name: name, Drain: func(ctx context.Context, tell func(*presencev1.DrainProgress)) error {
		acts := lists[0]
		if len(lists) > 1 {
			lists = lists[1:]
		}
		for _, a := range acts {
			if err := backoff.Wait(ctx, a.after); err != nil {
				return err
			}
			if a.step == presencev1.DrainStep_DRAIN_STEP_UNSPECIFIED {
				return errGone
			}
			tell(&presencev1.DrainProgress{Step: a.step, WaitingFor: a.step.String()})
			if a.step == done {
				return nil
			}
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}}
}

func TestRun(t *testing.T) {
	const killAfter = 2 * time.Minute
	gone := []act{{}}
	for _, c := range []struct {
		why  string
		ways []Way
		took time.Duration
		fail string // in the error; empty: none
	}{
		{"all is done", []Way{script("a", []act{{0, holding}, {time.Second, stopping}, {40 * time.Second, done}})}, 41 * time.Second, ""},
		{"nobody is there", []Way{script("a", gone), script("b", gone)}, 2 * answerLimit, "connection refused"},
		{"one hangs and the other does it", []Way{script("a", nil), script("b", []act{{time.Second, stopping}, {time.Second, done}})}, answerLimit + 2*time.Second, ""},
		{
			"one dies and comes back", []Way{script("a", []act{{0, stopping}, {time.Second, 0}}, gone, gone, []act{{time.Second, stopping}, {20 * time.Second, done}})},
			22*time.Second + 3*pause, "",
		},
		{"one cannot hold them", []Way{script("a", []act{{0, holding}})}, answerLimit, "DRAIN_STEP_HOLDING"},
		{"disks cannot be unmounted", []Way{script("a", []act{{0, stopping}, {time.Second, unmounting}})}, time.Second + unmountLimit, ""},
		{"one does not even end when it is killed", []Way{script("a", []act{{time.Second, stopping}})}, killAfter + killMargin, "DRAIN_STEP_STOPPING"},
	} {
		t.Run(c.why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				err := Run(t.Context(), killAfter, slog.New(slog.DiscardHandler), c.ways...)
				if took := time.Since(began); took != c.took {
					t.Errorf("it took %s, want %s", took, c.took)
				}
				switch {
				case c.fail == "" && err != nil:
					t.Errorf("got %v, want it done", err)
				case c.fail != "" && (!errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), c.fail)):
					t.Errorf("got %v, want Unavailable that says %q", err, c.fail)
				}
			})
		})
	}
}

func TestRun_EndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Run(ctx, time.Minute, slog.New(slog.DiscardHandler), script("a", nil)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the end of the caller", err)
		}
	})
}
