package host_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// A removal cuts a pull short. (LIF-4)
func TestHost_RemoveInterruptsPull(t *testing.T) {
	inBubble(t, func(n *node) {
		pulling := make(chan struct{})
		n.engine.Before = func(ctx context.Context, _ id.Sandbox, a engine.Action) error {
			if a.Step != engine.StepImages {
				return nil
			}
			close(pulling)
			<-ctx.Done()
			return ctx.Err()
		}
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		<-pulling
		began := time.Now()
		if err := n.host.Remove(n.t.Context(), id.Sandbox(w.GetUid()), host.ManagerLocal); err != nil {
			n.t.Fatal(err)
		}
		n.await(w.GetUid(), "torn down", func(s state) bool { return s.GetStatus().GetTornDownAt() != nil })
		if took := time.Since(began); took > time.Second {
			n.t.Errorf("removal took %v", took)
		}
	})
}

// A step that cannot succeed fails the attempt with its cause and leaves nothing. (LIF-4)
func TestHost_StepFails(t *testing.T) {
	steps := []engine.Step{engine.StepImages, engine.StepNamespaces, engine.StepNetwork, engine.StepCreate, engine.StepStart}
	for _, step := range steps {
		t.Run(string(step), func(t *testing.T) {
			inBubble(t, func(n *node) {
				n.engine.Before = func(_ context.Context, _ id.Sandbox, a engine.Action) error {
					if a.Step == step {
						return fault.New(fault.NotFound, "no such thing as this")
					}
					return nil
				}
				w := wishFor(host.ManagerLocal, "sleep", "sleep")
				w.Spec.RestartPolicy = resourcev1.RestartPolicy_RESTART_POLICY_NEVER
				n.ensure(w)
				s := n.awaitPhase(w.GetUid(), failed, 1)
				if !strings.Contains(s.GetStatus().GetMessage(), "no such thing as this") {
					n.t.Errorf("got message %q, want the cause", s.GetStatus().GetMessage())
				}
				if o := n.observe(w.GetUid()); !o.Empty() {
					n.t.Errorf("left: %+v", o)
				}
			})
		})
	}
}

// The reason of the fault stands beside its message while the attempt has failed or waits for the next, also
// for the next host, and goes when the step succeeds.
func TestHost_TellsTheReasonOfAFault(t *testing.T) {
	inBubble(t, func(n *node) {
		broken := fault.WithReason(fault.New(fault.NotFound, "open /data: there is none"), "HOST_PATH_MISSING")
		var failure atomic.Pointer[error]
		failure.Store(&broken)
		n.engine.Before = func(_ context.Context, _ id.Sandbox, a engine.Action) error {
			if a.Step == engine.StepCreate {
				return *failure.Load()
			}
			return nil
		}
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		waits := func(s state) bool {
			return s.GetStatus().GetReason() == host.ReasonBackoff && s.GetStatus().GetCauseReason() == "HOST_PATH_MISSING"
		}
		n.await(w.GetUid(), "waiting, with the cause", waits)
		n.kill()
		n.start()
		n.await(w.GetUid(), "waiting, with the cause, for the next host", waits)
		var none error
		failure.Store(&none)
		if s := n.await(w.GetUid(), "running", func(s state) bool { return s.GetStatus().GetPhase() == running }); s.GetStatus().GetCauseReason() != "" {
			n.t.Errorf("one that runs says %v", s.GetStatus())
		}
	})
	inBubble(t, func(n *node) {
		n.engine.Before = func(context.Context, id.Sandbox, engine.Action) error {
			return fault.WithReason(fault.New(fault.Invalid, "this is not to be had"), "NO_SUCH_THING")
		}
		w := wishFor(host.ManagerLocal, "sleep")
		w.Spec.RestartPolicy = resourcev1.RestartPolicy_RESTART_POLICY_NEVER
		n.ensure(w)
		if s := n.awaitPhase(w.GetUid(), failed, 1); s.GetStatus().GetCauseReason() != "NO_SUCH_THING" {
			n.t.Errorf("one that failed for good says %v", s.GetStatus())
		}
	})
}

// What is tried again says why, and nothing of it stays once that step has succeeded, also while the next takes long.
func TestHost_TellsNoReasonOfAStepThatHasSucceeded(t *testing.T) {
	inBubble(t, func(n *node) {
		mended, slow := make(chan struct{}), make(chan struct{})
		n.engine.Before = func(ctx context.Context, _ id.Sandbox, a engine.Action) error {
			switch a.Step {
			case engine.StepNetwork:
				select {
				case <-mended:
				default:
					return fault.WithReason(fault.New(fault.Unavailable, "no room"), "DISK_FULL")
				}
			case engine.StepCreate:
				select {
				case <-slow:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		}
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.await(w.GetUid(), "tried again", func(s state) bool {
			return s.GetStatus().GetReason() == host.ReasonRetrying && s.GetStatus().GetCauseReason() == "DISK_FULL"
		})
		close(mended)
		n.await(w.GetUid(), "relieved", func(s state) bool {
			return s.GetStatus().GetPhase() < running && s.GetStatus().GetReason() == "" && s.GetStatus().GetCauseReason() == "" && s.GetStatus().GetMessage() == ""
		})
		close(slow)
		n.awaitPhase(w.GetUid(), running, 1)
	})
}

func TestHost_StepFailsOnce(t *testing.T) {
	for nth := 1; nth <= 13; nth++ {
		t.Run(fmt.Sprintf("step %d", nth), func(t *testing.T) {
			inBubble(t, func(n *node) {
				count := 0
				n.engine.Before = func(context.Context, id.Sandbox, engine.Action) error {
					if count++; count == nth {
						return fault.New(fault.Unavailable, "not now")
					}
					return nil
				}
				w := wishFor(host.ManagerLocal, "sleep", "sleep")
				n.ensure(w)
				n.awaitPhase(w.GetUid(), running, 1)
				if err := n.host.Remove(n.t.Context(), id.Sandbox(w.GetUid()), host.ManagerLocal); err != nil {
					n.t.Fatal(err)
				}
				n.await(w.GetUid(), "torn down", func(s state) bool { return s.GetStatus().GetTornDownAt() != nil })
				n.startedOnce()
			})
		})
	}
}

// An engine that does nothing and says that it did is not asked without a pause.
func TestHost_StepWithoutEffect(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		count := 0
		n.engine.After = func(ctx context.Context, uid id.Sandbox, a engine.Action) error {
			if a.Step != engine.StepRelease {
				return nil
			}
			count++
			return n.engine.Do(ctx, engine.Attempt{Wish: w, Number: 1}, engine.Action{Step: engine.StepNamespaces})
		}
		w.Generation, w.Spec.Desired = 2, resourcev1.DesiredState_DESIRED_STATE_STOPPED
		n.ensure(w)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if count < 4 || count > 30 {
			n.t.Errorf("released %d times in 30 s, want a few", count)
		}
		n.await(w.GetUid(), "told", func(s state) bool { return strings.Contains(s.GetStatus().GetMessage(), "changed nothing") })
	})
}

// On a full disk survivors are adopted and kept, no status goes back, and all goes
// on when there is room again. (ADO-4)
func TestHost_StartsOnAFullDisk(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerCluster, "sleep")
		n.ensure(w)
		seq := n.awaitPhase(w.GetUid(), running, 1).GetStatus().GetSeq()
		n.full.Store(true)
		for range 3 {
			time.Sleep(time.Second)
			n.kill()
			n.start()
			is := n.awaitPhase(w.GetUid(), running, 1).GetStatus().GetSeq()
			if is <= seq {
				t.Errorf("seq went from %d to %d", seq, is)
			}
			seq = is
		}
		other := wishFor(host.ManagerLocal, "sleep")
		if _, err := n.host.Ensure(n.t.Context(), other); !errors.Is(err, fault.Exhausted) {
			t.Errorf("a wish on a full disk: got %v, want Exhausted", err)
		}
		if err := n.engine.End(id.Sandbox(w.GetUid()), "a", engine.Exit{Code: 7}); err != nil {
			t.Fatal(err)
		}
		n.await(w.GetUid(), "says what is wrong", func(s state) bool { return strings.Contains(s.GetStatus().GetMessage(), "no space left") })
		n.full.Store(false)
		is := n.awaitPhase(w.GetUid(), running, 2).GetStatus()
		if exits := is.GetExits(); len(exits) != 1 || exits[0].GetCode() != 7 {
			t.Errorf("got exits %v, want code 7 once", exits)
		}
		time.Sleep(time.Second)
		n.kill()
		n.start() // with a number that was counted on from the one that was owed
		if after := n.awaitPhase(w.GetUid(), running, 2).GetStatus(); after.GetSeq() <= is.GetSeq() {
			t.Errorf("seq went from %d to %d", is.GetSeq(), after.GetSeq())
		}
		n.startedOnce()
	})
}
