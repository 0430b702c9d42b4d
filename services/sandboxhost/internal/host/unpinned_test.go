package host_test

import (
	"testing"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/host"
)

// A survivor that lost its pins goes on, and says what it lacks, also to a host that
// never saw it whole. A new attempt has new ones.
func TestHost_UnpinnedSaysWhy(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		uid := id.Sandbox(w.GetUid())
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.engine.Unpin(uid)
		n.host.Look(uid)
		for _, when := range []string{"while it is looked after", "after a restart of the host"} {
			s := n.await(w.GetUid(), "a reason "+when, func(s state) bool { return s.GetStatus().GetReason() == host.ReasonUnpinned }).GetStatus()
			if s.GetPhase() != running || s.GetAttempt() != 1 || s.GetMessage() == "" || s.GetContainers()[0].GetPid() == 0 {
				t.Errorf("%s: got %v, want it running in its first attempt, with a message", when, s)
			}
			n.kill()
			n.start()
		}
		n.startedOnce()
		stop := wishFor(host.ManagerLocal, "sleep")
		stop.Uid, stop.Generation, stop.Spec.Hostname = w.GetUid(), 2, "other"
		n.ensure(stop)
		s := n.awaitPhase(w.GetUid(), running, 2)
		if s.GetStatus().GetReason() != "" || !n.observe(w.GetUid()).Namespaces {
			t.Errorf("the next attempt: %v", s)
		}
	})
}
