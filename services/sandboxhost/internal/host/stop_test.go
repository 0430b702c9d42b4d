package host_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/engine/mem"
	"staddle.internal/services/sandboxhost/internal/host"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

func preStop(words ...string) *resourcev1.ExecAction { return &resourcev1.ExecAction{Command: words} }

// removed ends a sandbox and returns how long that took and its last state.
func (n *node) removed(w *sandboxhostv1.Wish) (time.Duration, state) {
	n.t.Helper()
	began := time.Now()
	if err := n.host.Remove(n.t.Context(), id.Sandbox(w.GetUid()), host.ManagerLocal); err != nil {
		n.t.Fatal(err)
	}
	last := n.await(w.GetUid(), "torn down", func(s state) bool { return s.GetStatus().GetTornDownAt() != nil })
	return time.Since(began).Round(time.Second), last
}

// A pre-stop command takes its time out of the grace period and leaves some to the
// signal; however it ends, the stop goes on.
func TestHost_PreStop(t *testing.T) {
	tests := []struct {
		name    string
		preStop *resourcev1.ExecAction
		command string
		took    time.Duration
		signal  uint32
	}{
		{"ends well", preStop(mem.CommandExit, "0"), "sleep", 0, 15},
		{"fails", preStop(mem.CommandExit, "1"), "sleep", 0, 15},
		{"is not there", preStop(mem.CommandAbsent), "sleep", 0, 15},
		{"hangs", preStop(mem.CommandHang), "sleep", 18 * time.Second, 15},
		{"hangs, and so does the container", preStop(mem.CommandHang), mem.CommandIgnoreTerm, 20 * time.Second, 9},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(n *node) {
				w := wishFor(host.ManagerLocal, tt.command)
				w.Spec.TerminationGracePeriod = durationpb.New(20 * time.Second)
				w.Spec.Containers[0].PreStop = tt.preStop
				n.ensure(w)
				n.awaitPhase(w.GetUid(), running, 1)
				took, last := n.removed(w)
				if got := last.GetStatus().GetExits()[0].GetSignal(); took != tt.took || got != tt.signal {
					n.t.Errorf("took %v and ended by signal %d, want %v and %d", took, got, tt.took, tt.signal)
				}
				if got := n.engine.PreStops()[engine.ContainerID(id.Sandbox(w.GetUid()), "a", 1)]; got != 1 {
					n.t.Errorf("the command was run %d times, want once", got)
				}
			})
		})
	}
}

// The grace period of a container counts from its own stop, that of the sandbox from
// the sandbox's.
func TestHost_GraceOfAContainer(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, mem.CommandIgnoreTerm, mem.CommandIgnoreTerm, mem.CommandIgnoreTerm)
		w.Spec.TerminationGracePeriod = durationpb.New(12 * time.Second)
		w.Spec.Containers[0].TerminationGracePeriod = durationpb.New(5 * time.Second)
		w.Spec.Containers[2].TerminationGracePeriod = durationpb.New(3 * time.Second)
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		began := time.Now()
		_, last := n.removed(w)
		want := map[string]time.Duration{"c": 3 * time.Second, "b": 12 * time.Second, "a": 17 * time.Second}
		for _, e := range last.GetStatus().GetExits() {
			if got := e.GetExitedAt().AsTime().Sub(began).Round(time.Second); got != want[e.GetContainer()] {
				n.t.Errorf("container %s ended after %v, want %v", e.GetContainer(), got, want[e.GetContainer()])
			}
		}
	})
}

// A stop that is cut off by the death of the host goes on where it was, with what is
// left of its time. (LIF-8)
func TestHost_KilledDuringAStop(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		w.Spec.Containers[0].TerminationGracePeriod = durationpb.New(20 * time.Second)
		w.Spec.Containers[0].PreStop = preStop(mem.CommandHang)
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		began := time.Now()
		if err := n.host.Remove(n.t.Context(), id.Sandbox(w.GetUid()), host.ManagerLocal); err != nil {
			n.t.Fatal(err)
		}
		for range 3 {
			time.Sleep(4 * time.Second) // of the bubble
			n.kill()
			n.start()
		}
		n.await(w.GetUid(), "torn down", func(s state) bool { return s.GetStatus().GetTornDownAt() != nil })
		if took := time.Since(began).Round(time.Second); took != 18*time.Second {
			n.t.Errorf("took %v, want 18s", took)
		}
	})
}

// The waits between attempts are those of the spec.
func TestHost_BackoffOfASandbox(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "exit 1")
		w.Spec.RestartBackoff = &resourcev1.RestartBackoff{
			Initial: durationpb.New(8 * time.Second), Cap: durationpb.New(10 * time.Second),
		}
		n.ensure(w)
		s := n.awaitPhase(w.GetUid(), pending, 2)
		if wait := time.Until(s.GetStatus().GetNextAt().AsTime()); wait < 6*time.Second || wait > 8*time.Second {
			n.t.Errorf("attempt 2 waits for %v, want up to a quarter less than 8s", wait)
		}
		s = n.awaitPhase(w.GetUid(), pending, 4)
		if wait := time.Until(s.GetStatus().GetNextAt().AsTime()); wait < 7500*time.Millisecond || wait > 10*time.Second {
			n.t.Errorf("attempt 4 waits for %v, want up to a quarter less than the cap of 10s", wait)
		}
	})
}

// Limits that cannot be set now are named, and nothing else waits for them.
func TestHost_LimitsRefused(t *testing.T) {
	inBubble(t, func(n *node) {
		n.refuse(engine.StepLimits, "below what is in use")
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		w.Generation, w.Spec.Containers[0].Limits = 2, &resourcev1.ResourceLimits{PidsLimit: new(int64(3))}
		n.ensure(w)
		s := n.await(w.GetUid(), "explained", func(s state) bool { return s.GetTrouble() != "" })
		if s.GetStatus().GetPhase() != running || s.GetStatus().GetContainers()[0].GetLimits() != nil {
			n.t.Errorf("got %v, want a sandbox that runs with its old limits", s)
		}
		time.Sleep(30 * time.Second) // of the bubble: many tries
		ended := time.Now()
		if err := n.engine.End(id.Sandbox(w.GetUid()), "a", engine.Exit{Code: 1}); err != nil {
			n.t.Fatal(err)
		}
		n.awaitPhase(w.GetUid(), running, 2)
		if took := time.Since(ended); took > time.Second {
			n.t.Errorf("the end of a container was acted on after %v", took)
		}
	})
}
