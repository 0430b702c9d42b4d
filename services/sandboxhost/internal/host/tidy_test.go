package host_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/inventory"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// strew leaves what a sandbox that nobody knows may leave, and returns what a check
// says of it.
func (n *node) strew() []string {
	n.t.Helper()
	stray := id.NewSandbox()
	made := engine.Attempt{Wish: &sandboxhostv1.Wish{Uid: string(stray)}, Number: 1}
	if err := n.engine.Do(context.Background(), made, engine.Action{Step: engine.StepNamespaces}); err != nil {
		n.t.Fatal(err)
	}
	n.engine.Litter(inventory.Object{Kind: inventory.Lease, Name: "lease"})
	n.engine.Litter(inventory.Object{Kind: inventory.StartRecord, Name: "record", UID: stray, Container: "record"})
	return []string{"NAMESPACE " + stray.Lower(), "FOLDER " + stray.Lower(), "LEASE lease", "START_RECORD record"}
}

// What comes to be left over while the host goes on is removed without being asked:
// not at the first sight, and not later than two periods after it came.
func TestHost_ADO7_RemovesWhatIsLeftByItself(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		left := withEnding(n.strew(), ": left")
		time.Sleep(host.DefaultTidyPeriod + time.Minute) // of the bubble: one look is over
		n.wantCheck(false, left...)
		time.Sleep(host.DefaultTidyPeriod)
		n.wantCheck(false)
		n.awaitPhase(w.GetUid(), running, 1)
		n.startedOnce()
	})
}

// While the runtime cannot be asked nothing is removed, and what was seen before
// that does not count any more.
func TestHost_ADO7_RemovesNothingWithoutAnAnswer(t *testing.T) {
	inBubble(t, func(n *node) {
		left := withEnding(n.strew(), ": left")
		time.Sleep(host.DefaultTidyPeriod + time.Minute) // seen once
		n.engine.Deafen(fault.New(fault.Unavailable, "containerd is away"))
		time.Sleep(3 * host.DefaultTidyPeriod)
		n.engine.Deafen(nil)
		n.wantCheck(false, left...)
		time.Sleep(host.DefaultTidyPeriod) // seen for the first time again
		n.wantCheck(false, left...)
		time.Sleep(host.DefaultTidyPeriod)
		n.wantCheck(false)
	})
}

// Sandboxes that come and go while somebody looks are never taken for left over.
func TestHost_ADO7_FreshSandboxesAreLeftAlone(t *testing.T) {
	inBubble(t, func(n *node) {
		for i := range 8 {
			w := wishFor(host.ManagerLocal, "sleep")
			w.Name = fmt.Sprintf("fresh-%d", i)
			n.ensure(w)
			n.awaitPhase(w.GetUid(), running, 1)
			time.Sleep(host.DefaultTidyPeriod / 3)
			if err := n.host.Remove(context.Background(), id.Sandbox(w.GetUid()), host.ManagerLocal); err != nil {
				t.Fatal(err)
			}
			n.await(w.GetUid(), "torn down", func(s state) bool { return s.GetStatus().GetTornDownAt() != nil })
		}
		n.startedOnce()
		n.wantCheck(false)
	})
}
