package host_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// takeDown ends all workloads as the command does, in the same boot.
func (n *node) takeDown() {
	n.t.Helper()
	n.kill()
	if err := host.MarkTakenDown(filepath.Dir(n.path), n.boot); err != nil {
		n.t.Fatal(err)
	}
	n.engine.Reboot()
}

// A sandbox that was ended with its node has not crashed: it starts at once, whatever
// waits it had before, and what crashes after that counts from the start.
func TestHost_TakenDownIsNoCrash(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		for attempt := range uint64(5) { // it crashes, and its waits grow
			if err := n.engine.End(id.Sandbox(w.GetUid()), "a", engine.Exit{Code: 7}); err != nil {
				t.Fatal(err)
			}
			n.awaitPhase(w.GetUid(), running, attempt+2)
		}
		n.takeDown()
		began := time.Now()
		n.start()
		s := n.awaitPhase(w.GetUid(), running, 7)
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("it came up after %v, want at once", took)
		}
		if exits := s.GetStatus().GetExits(); len(exits) != 6 || !exits[5].GetUnknown() {
			t.Errorf("got exits %v, want five and an unknown one", exits)
		}
		// The note counts once: who crashes in the next life waits.
		n.kill()
		n.engine.Reboot()
		n.start()
		if s := n.awaitPhase(w.GetUid(), pending, 8); s.GetStatus().GetReason() != host.ReasonBackoff {
			t.Errorf("got %v, want a back-off", s)
		}
		n.startedOnce()
	})
}

// A note of another boot says nothing, one on a full disk counts until it was heard, and
// what runs in spite of it goes on.
func TestHost_NoteOfATakeDown(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		w.Spec.RestartPolicy = resourcev1.RestartPolicy_RESTART_POLICY_ALWAYS
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.kill()
		note := filepath.Join(filepath.Dir(n.path), "taken-down")
		if err := host.MarkTakenDown(filepath.Dir(n.path), n.boot); err != nil {
			t.Fatal(err)
		}
		n.full.Store(true)
		n.start()
		n.awaitPhase(w.GetUid(), running, 1)
		if _, err := os.Stat(note); err != nil {
			t.Errorf("the note is gone before its sandboxes were written down: %v", err)
		}
		n.full.Store(false)
		n.kill()
		n.start()
		n.awaitPhase(w.GetUid(), running, 1)
		if _, err := os.Stat(note); !os.IsNotExist(err) {
			t.Errorf("the note is left: %v", err)
		}
		n.kill()
		if err := host.MarkTakenDown(filepath.Dir(n.path), "another boot"); err != nil {
			t.Fatal(err)
		}
		n.engine.Reboot()
		n.start()
		if s := n.awaitPhase(w.GetUid(), pending, 2); s.GetStatus().GetReason() != host.ReasonBackoff {
			t.Errorf("got %v, want a back-off", s)
		}
		n.startedOnce()
	})
}
