package report

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// fakeCoordinator takes statuses, and notices two of one uid at once.
type fakeCoordinator struct {
	mu     sync.Mutex // guards all below
	busy   map[string]bool
	double bool
	got    map[string][]uint64
	answer func(uid string) error
}

func (c *fakeCoordinator) UpdateStatus(_ context.Context, r *resourcev1.Resource) error {
	uid := r.GetMeta().GetUid()
	c.mu.Lock()
	c.double = c.double || c.busy[uid]
	c.busy[uid] = true
	err := c.answer(uid)
	c.mu.Unlock()
	time.Sleep(10 * time.Millisecond) // fake time
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy[uid] = false
	if err == nil {
		c.got[uid] = append(c.got[uid], seq(r))
	}
	return err
}

func (c *fakeCoordinator) came(uid string) []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got[uid])
}

func (c *fakeCoordinator) say(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = func(string) error { return err }
}

func inBubble(t *testing.T, test func(r *Reporter, c *fakeCoordinator)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &fakeCoordinator{busy: map[string]bool{}, got: map[string][]uint64{}, answer: func(string) error { return nil }}
		r := New(c, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx, func() {}) }()
		test(r, c)
		cancel()
		<-done
		if c.double {
			t.Error("two statuses of one record were under way at once")
		}
	})
}

func status(uid string, n uint64) []*resourcev1.Resource {
	return []*resourcev1.Resource{{
		Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_SANDBOX, Uid: uid},
		Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{Status: &resourcev1.SandboxStatus{Seq: n}}},
	}}
}

func TestReporter_SendsTheNewestOfEach(t *testing.T) {
	inBubble(t, func(r *Reporter, c *fakeCoordinator) {
		for n := uint64(1); n <= 50; n++ {
			for u := range 10 {
				if err := r.Report(status(fmt.Sprint(u), n)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		for u := range 10 {
			got := c.came(fmt.Sprint(u))
			if len(got) == 0 || got[len(got)-1] != 50 {
				t.Errorf("of %d came %v, want 50 last", u, got)
			}
			for i := 1; i < len(got); i++ {
				if got[i] <= got[i-1] {
					t.Errorf("of %d came %v, which goes back", u, got)
				}
			}
		}
		if n := r.Waiting(); n != 0 {
			t.Errorf("%d still wait", n)
		}
	})
}

func TestReporter_KeepsWhatWasNotAnsweredAndDropsWhatWasRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		waits int
	}{
		{"away", fault.New(fault.Unavailable, "away"), 1},
		{"no answer in time", context.DeadlineExceeded, 1},
		{"a bug", errors.New("bug"), 1},
		{"gone", fault.New(fault.NotFound, "gone"), 0},
		{"another's", fault.New(fault.Denied, "not yours"), 0},
		{"not yet its own", fault.WithReason(fault.New(fault.Denied, "an earlier boot has the session"), duplicateNode), 1},
		{"stale", fault.WithReason(fault.New(fault.Conflict, "lower"), "STALE_STATUS"), 0},
		{"wrong", fault.New(fault.Invalid, "wrong"), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(r *Reporter, f *fakeCoordinator) {
				f.say(c.err)
				if err := r.Report(status("a", 1)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if got := r.Waiting(); got != c.waits {
					t.Fatalf("%d wait, want %d", got, c.waits)
				}
				f.say(nil)
				r.Hurry()
				time.Sleep(100 * time.Millisecond)
				if r.Waiting() != 0 || len(f.came("a")) != c.waits {
					t.Errorf("%d wait, %v came", r.Waiting(), f.came("a"))
				}
			})
		})
	}
}

func TestReporter_IsBounded(t *testing.T) {
	r := New(nil, slog.New(slog.DiscardHandler))
	for u := range maxWaiting {
		if err := r.Report(status(fmt.Sprint(u), 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Report(status("one more", 1)); !errors.Is(err, fault.Exhausted) {
		t.Errorf("one more than the bound: %v, want exhausted", err)
	}
	if err := r.Report(status("0", 2)); err != nil {
		t.Errorf("a newer one of those that wait: %v", err)
	}
	if err := r.Report(status("0", 0)); !errors.Is(err, fault.Invalid) {
		t.Errorf("a status without seq: %v, want invalid", err)
	}
}
