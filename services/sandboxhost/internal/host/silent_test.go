package host_test

import (
	"context"
	"testing"
	"time"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"
)

// A shim that does not answer costs a sandbox nothing while it is to run, is shown, also by
// a host that never saw it answer, and recovers by itself.
func TestHost_SilentShimIsShown(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep", "sleep")
		uid := id.Sandbox(w.GetUid())
		n.ensure(w)
		was := n.awaitPhase(w.GetUid(), running, 1)
		for range 2 {
			n.engine.Silence(uid, true)
			n.host.Look(uid)
			s := n.await(w.GetUid(), "shown", func(s state) bool { return s.GetStatus().GetReason() == host.ReasonShimSilent })
			if s.GetStatus().GetPhase() != running || s.GetStatus().GetContainers()[0].GetPid() != was.GetStatus().GetContainers()[0].GetPid() {
				t.Errorf("got %v, want it as it was: %v", s, was)
			}
			time.Sleep(5 * time.Minute)
			n.engine.Silence(uid, false)
			n.await(w.GetUid(), "calm", func(s state) bool { return s.GetStatus().GetReason() == "" })
			n.engine.Silence(uid, true)
			n.kill()
			n.start() // which it holds up no more than it does others
		}
		n.engine.Silence(uid, false)
		s := n.await(w.GetUid(), "calm", func(s state) bool { return s.GetStatus().GetReason() == "" })
		if s.GetStatus().GetAttempt() != 1 || len(s.GetStatus().GetExits()) != 0 {
			t.Errorf("got %v, want the first attempt", s)
		}
		n.startedOnce()
	})
}

// A sandbox that is to end has its grace period, and ends for certain: 30 s after its shim
// was found not to answer nobody waits for it any more.
func TestHost_SilentShimEndsInTime(t *testing.T) {
	for _, killed := range []bool{false, true} {
		inBubble(t, func(n *node) {
			w := wishFor(host.ManagerLocal, "sleep", "ignore-term")
			uid := id.Sandbox(w.GetUid())
			n.ensure(w)
			n.awaitPhase(w.GetUid(), running, 1)
			n.engine.Silence(uid, true)
			began := time.Now()
			if err := n.host.Remove(n.t.Context(), uid, host.ManagerLocal); err != nil {
				t.Fatal(err)
			}
			if killed {
				time.Sleep(20 * time.Second)
				n.kill()
				n.start()
			}
			s := n.await(w.GetUid(), "torn down", func(s state) bool { return s.GetStatus().GetTornDownAt() != nil })
			limit := 31 * time.Second
			if killed {
				limit += 20 * time.Second
			}
			if took := time.Since(began); took < 10*time.Second || took > limit {
				t.Errorf("removal took %v, want the grace period of 10 s, and %v at most", took, limit)
			}
			if exits := s.GetStatus().GetExits(); len(exits) != 2 {
				t.Errorf("got exits %v, want two", exits)
			}
			if o := n.observe(w.GetUid()); !o.Empty() || o.Logs {
				t.Errorf("left: %+v", o)
			}
		})
	}
}

// An attempt whose shim falls silent before all runs does not wait for ever.
func TestHost_SilentShimFailsAStart(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep", "sleep")
		uid := id.Sandbox(w.GetUid())
		once := false
		n.engine.After = func(_ context.Context, _ id.Sandbox, a engine.Action) error {
			if a.Step == engine.StepStart && a.Container == "a" && !once {
				once = true
				n.engine.Silence(uid, true)
			}
			return nil
		}
		n.ensure(w)
		s := n.awaitPhase(w.GetUid(), running, 2)
		if exits := s.GetStatus().GetExits(); len(exits) == 0 || !exits[0].GetUnknown() {
			t.Errorf("got exits %v, want an unknown one of the first attempt", exits)
		}
	})
}
