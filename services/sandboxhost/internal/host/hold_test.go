package host_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/engine/mem"
	"staddle.internal/services/sandboxhost/internal/host"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	drain    = sandboxhostv1.HoldPurpose_HOLD_PURPOSE_DRAIN
	shutdown = sandboxhostv1.HoldPurpose_HOLD_PURPOSE_SHUTDOWN
	cluster  = sandboxhostv1.HoldScope_HOLD_SCOPE_CLUSTER
)

func (n *node) hold(h *sandboxhostv1.Hold) *sandboxhostv1.Hold {
	n.t.Helper()
	got, err := n.host.EnsureHold(h)
	if err != nil {
		n.t.Fatalf("ensure hold: %v", err)
	}
	return got
}

func (n *node) lift(p sandboxhostv1.HoldPurpose) {
	n.t.Helper()
	if err := n.host.LiftHold(p); err != nil {
		n.t.Fatalf("lift hold: %v", err)
	}
}

// awaitDead waits until a sandbox is held and dead, and demands that nothing is left of it.
func (n *node) awaitDead(uid string) state {
	n.t.Helper()
	s := n.await(uid, "held and dead", func(s state) bool { return s.GetHeld() && s.GetDead() })
	if o := n.observe(uid); !o.Empty() {
		n.t.Errorf("said to be dead, and %+v is there", o)
	}
	return s
}

func TestHost_HoldSurvivesKillAndReboot(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep", "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.hold(&sandboxhostv1.Hold{Purpose: drain})
		n.kill()
		n.start()
		s := n.awaitDead(w.GetUid())
		if s.GetStatus().GetPhase() != stopped || s.GetStatus().GetReason() != host.ReasonHeld {
			n.t.Errorf("got %v, want STOPPED with reason %s", s.GetStatus(), host.ReasonHeld)
		}
		n.reboot()
		n.start()
		time.Sleep(time.Hour) // of fake time
		n.awaitDead(w.GetUid())
		if got := n.startedOnce(); got != 2 {
			n.t.Errorf("%d containers were started under the hold, want none beside the first 2", got-2)
		}
		n.lift(drain)
		if s := n.awaitPhase(w.GetUid(), running, 2); s.GetHeld() || s.GetDead() {
			n.t.Errorf("it runs and says held %v, dead %v", s.GetHeld(), s.GetDead())
		}
		n.kill()
		n.start()
		n.awaitPhase(w.GetUid(), running, 2) // the lift is durable as well
		if all, err := n.host.Holds(); err != nil || len(all) != 0 {
			n.t.Errorf("holds after the lift: %v, %v", all, err)
		}
	})
}

func TestHost_HoldOfAShutdownEndsWithTheBoot(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.hold(&sandboxhostv1.Hold{Purpose: shutdown, UntilReboot: true, BootId: n.boot})
		n.awaitDead(w.GetUid())
		n.kill()
		n.start()
		n.awaitDead(w.GetUid())
		n.reboot()
		n.start()
		n.awaitPhase(w.GetUid(), running, 2)
		_, err := n.host.EnsureHold(&sandboxhostv1.Hold{Purpose: shutdown, UntilReboot: true, BootId: "boot-1"})
		if fault.Reason(err) != "OTHER_BOOT" {
			n.t.Errorf("a hold of the boot before: %v, want OTHER_BOOT", err)
		}
		n.awaitPhase(w.GetUid(), running, 2)
	})
}

// A wish that comes under a hold is accepted and kept, and nothing of it is started.
func TestHost_WishUnderAHold(t *testing.T) {
	inBubble(t, func(n *node) {
		n.hold(&sandboxhostv1.Hold{Purpose: drain})
		w := wishFor(host.ManagerCluster, "sleep")
		n.ensure(w)
		n.awaitDead(w.GetUid())
		w.Generation, w.Spec.Hostname = 2, "other"
		n.ensure(w)
		time.Sleep(time.Hour) // of fake time
		n.awaitDead(w.GetUid())
		if got := n.startedOnce(); got != 0 {
			n.t.Errorf("%d containers were started under the hold", got)
		}
		n.lift(drain)
		n.await(w.GetUid(), "running as of generation 2", func(s state) bool {
			return s.GetStatus().GetPhase() == running && s.GetStatus().GetObservedGeneration() == 2
		})
	})
}

func TestHost_HoldOfTheClusterAlone(t *testing.T) {
	inBubble(t, func(n *node) {
		ours, theirs := wishFor(host.ManagerLocal, "sleep"), wishFor(host.ManagerCluster, "sleep")
		n.ensure(ours)
		n.ensure(theirs)
		n.awaitPhase(ours.GetUid(), running, 1)
		n.awaitPhase(theirs.GetUid(), running, 1)
		n.hold(&sandboxhostv1.Hold{Purpose: drain, Scope: cluster})
		n.awaitDead(theirs.GetUid())
		if s := n.awaitPhase(ours.GetUid(), running, 1); s.GetHeld() {
			n.t.Errorf("a hold of the cluster's sandboxes holds one of the node: %v", s)
		}
		n.hold(&sandboxhostv1.Hold{Purpose: drain}) // the same hold, wider
		n.awaitDead(ours.GetUid())
		n.hold(&sandboxhostv1.Hold{Purpose: shutdown, UntilReboot: true})
		n.lift(drain)
		n.awaitDead(theirs.GetUid())
		n.lift(shutdown)
		n.awaitPhase(theirs.GetUid(), running, 2)
	})
}

// The grace period of each sandbox counts, until the deadline of the hold, which is
// kept over a restart.
func TestHost_DeadlineOfAHold(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, mem.CommandIgnoreTerm)
		w.Spec.TerminationGracePeriod = durationpb.New(time.Minute * 30)
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		began := time.Now()
		n.hold(&sandboxhostv1.Hold{Purpose: drain, DeadlineBoottime: durationpb.New(time.Since(n.booted) + 40*time.Second)})
		time.Sleep(10 * time.Second)
		n.kill()
		n.start()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if s := n.awaitPhase(w.GetUid(), stopping, 1); s.GetDead() {
			n.t.Errorf("dead %v before the deadline", time.Since(began))
		}
		n.awaitDead(w.GetUid())
		if took := time.Since(began); took < 40*time.Second || took > 42*time.Second {
			n.t.Errorf("it was killed after %v, want at the deadline of 40 s", took)
		}
	})
}

// A step that takes its time is given up when a hold comes.
func TestHost_HoldInterruptsPull(t *testing.T) {
	inBubble(t, func(n *node) {
		pulling := make(chan struct{}, 1)
		n.engine.Before = func(ctx context.Context, _ id.Sandbox, a engine.Action) error {
			if a.Step != engine.StepImages {
				return nil
			}
			pulling <- struct{}{}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		<-pulling
		began := time.Now()
		n.hold(&sandboxhostv1.Hold{Purpose: drain})
		n.awaitDead(w.GetUid())
		if took := time.Since(began); took > time.Second {
			n.t.Errorf("the hold waited %v for a pull", took)
		}
	})
}

// What cannot be done is said, and the sandbox is not called dead for it.
func TestHost_TroubleUnderAHold(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		broken := true
		n.engine.Before = func(_ context.Context, _ id.Sandbox, a engine.Action) error {
			if broken && a.Step == engine.StepRelease {
				return fault.New(fault.Unavailable, "device is busy")
			}
			return nil
		}
		n.hold(&sandboxhostv1.Hold{Purpose: drain})
		s := n.await(w.GetUid(), "trouble", func(s state) bool { return s.GetTrouble() != "" })
		if s.GetDead() || !s.GetHeld() {
			n.t.Errorf("with trouble %q it says held %v, dead %v", s.GetTrouble(), s.GetHeld(), s.GetDead())
		}
		synctest.Wait()
		broken = false
		n.awaitDead(w.GetUid())
		n.await(w.GetUid(), "no trouble", func(s state) bool { return s.GetTrouble() == "" })
	})
}

// A hold that cannot be written down does not stand, and nor does its lift.
func TestHost_HoldOnAFullDisk(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.full.Store(true)
		if _, err := n.host.EnsureHold(&sandboxhostv1.Hold{Purpose: drain}); fault.KindOf(err) != fault.Exhausted {
			n.t.Errorf("hold on a full disk: %v, want Exhausted", err)
		}
		n.awaitPhase(w.GetUid(), running, 1)
		n.full.Store(false)
		n.hold(&sandboxhostv1.Hold{Purpose: drain})
		n.awaitDead(w.GetUid())
		n.full.Store(true)
		if err := n.host.LiftHold(drain); fault.KindOf(err) != fault.Exhausted {
			n.t.Errorf("lift on a full disk: %v, want Exhausted", err)
		}
		n.awaitDead(w.GetUid())
		n.full.Store(false)
	})
}

// A container that cannot be read is left alone, so a held sandbox with one is not dead.
func TestHost_UnreadableIsNotDead(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.engine.Garble(id.Sandbox(w.GetUid()), "a")
		n.hold(&sandboxhostv1.Hold{Purpose: drain})
		n.host.Look("")
		s := n.await(w.GetUid(), "held", func(s state) bool {
			return s.GetHeld() && s.GetStatus().GetReason() == host.ReasonUnreadable
		})
		if s.GetDead() {
			n.t.Errorf("a sandbox with an unreadable container is called dead: %v", s)
		}
	})
}

// A sandbox that is held is at rest, however it was ended: nobody looks at it more often
// than at one that runs.
func TestHost_HeldIsAtRest(t *testing.T) {
	for _, command := range []string{"sleep", mem.CommandIgnoreTerm} { // ends when it is told, or by a kill
		inBubble(t, func(n *node) {
			w := wishFor(host.ManagerLocal, command)
			n.ensure(w)
			n.awaitPhase(w.GetUid(), running, 1)
			n.hold(&sandboxhostv1.Hold{Purpose: drain})
			n.awaitDead(w.GetUid())
			time.Sleep(10 * time.Minute)
			before := n.looked.Load()
			time.Sleep(time.Hour)
			if looks := n.looked.Load() - before; looks > 20 {
				n.t.Errorf("%s: it was looked at %d times in an hour of rest, want one in 5 minutes", command, looks)
			}
		})
	}
}

// Whoever follows the holds hears of each that stands, also of those from before a kill
// of the host, and of each change.
func TestHost_FollowHolds(t *testing.T) {
	inBubble(t, func(n *node) {
		n.hold(&sandboxhostv1.Hold{Purpose: drain})
		n.kill()
		if err := n.host.FollowHolds(n.t.Context(), func([]*sandboxhostv1.Hold) error { return nil }); !errors.Is(err, fault.Unavailable) {
			n.t.Errorf("a host that does not run: %v, want Unavailable", err)
		}
		n.start()
		ctx, cancel := context.WithCancel(n.t.Context())
		defer cancel()
		var told [][]*sandboxhostv1.Hold // by the goroutine below, and read while it waits
		ended := make(chan error, 1)
		go func() { // ends with ctx; waited for below
			ended <- n.host.FollowHolds(ctx, func(all []*sandboxhostv1.Hold) error {
				told = append(told, all)
				return nil
			})
		}()
		synctest.Wait()
		n.hold(&sandboxhostv1.Hold{Purpose: shutdown, UntilReboot: true})
		synctest.Wait()
		n.lift(drain)
		synctest.Wait()
		n.lift(drain) // changes nothing
		synctest.Wait()
		var got []string
		for _, all := range told {
			var names []string
			for _, h := range all {
				names = append(names, h.GetPurpose().String())
			}
			got = append(got, strings.Join(names, "+"))
		}
		want := []string{"HOLD_PURPOSE_DRAIN", "HOLD_PURPOSE_DRAIN+HOLD_PURPOSE_SHUTDOWN", "HOLD_PURPOSE_SHUTDOWN"}
		if !slices.Equal(got, want) {
			n.t.Errorf("told of %q, want %q", got, want)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			n.t.Errorf("the follower ended with %v", err)
		}
	})
}
