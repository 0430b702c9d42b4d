package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

func TestHost_KilledAtEveryStep(t *testing.T) {
	// Two containers come with 7 steps and go with 6: two signals, two deletes,
	// release, logs.
	for _, moment := range []string{"before", "after"} {
		for nth := 1; nth <= 13; nth++ {
			t.Run(fmt.Sprintf("%s step %d", moment, nth), func(t *testing.T) {
				inBubble(t, func(n *node) {
					cut := make(chan struct{})
					count := 0
					hook := func(context.Context, id.Sandbox, engine.Action) error {
						if count++; count == nth {
							n.cancel()
							close(cut)
							return errors.New("killed")
						}
						return nil
					}
					if moment == "before" {
						n.engine.Before = hook
					} else {
						n.engine.After = hook
					}
					w := wishFor(host.ManagerLocal, "sleep", "sleep")
					n.ensure(w)
					revive := func() {
						<-cut
						n.kill()
						n.start()
					}
					if nth <= 7 {
						revive()
					}
					first := n.awaitPhase(w.GetUid(), running, 1)
					if err := n.host.Remove(n.t.Context(), id.Sandbox(w.GetUid()), host.ManagerLocal); err != nil {
						n.t.Fatal(err)
					}
					if nth > 7 {
						revive()
					}
					last := n.await(w.GetUid(), "torn down", func(s state) bool { return s.GetStatus().GetTornDownAt() != nil })
					if got := n.startedOnce(); got != 2 {
						n.t.Errorf("%d containers were started, want 2", got)
					}
					if got := len(last.GetStatus().GetExits()); got != 2 {
						n.t.Errorf("%d exits are kept, want 2: %v", got, last.GetStatus().GetExits())
					}
					if first.GetStatus().GetSeq() >= last.GetStatus().GetSeq() {
						n.t.Errorf("seq went from %d to %d", first.GetStatus().GetSeq(), last.GetStatus().GetSeq())
					}
					if o := n.observe(w.GetUid()); !o.Empty() || o.Logs {
						n.t.Errorf("left after removal: %+v", o)
					}
				})
			})
		}
	}
}

func TestHost_AdoptsSurvivor(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerCluster, "sleep")
		n.ensure(w)
		before := n.awaitPhase(w.GetUid(), running, 1)
		for range 3 {
			n.kill()
			n.start()
		}
		after := n.awaitPhase(w.GetUid(), running, 1)
		was, is := before.GetStatus(), after.GetStatus()
		if was.GetContainers()[0].GetPid() != is.GetContainers()[0].GetPid() || was.GetAddresses()[0] != is.GetAddresses()[0] {
			n.t.Errorf("got %v, want the same process and address as %v", is, was)
		}
		if is.GetSeq() <= was.GetSeq() {
			n.t.Errorf("seq went from %d to %d", was.GetSeq(), is.GetSeq())
		}
		n.startedOnce()
	})
}

// The exit of a container that ended while nobody looked is neither lost nor
// taken for another, and the restart policy is applied once. (LIF-3)
func TestHost_ExitWhileAway(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.kill()
		if err := n.engine.End(id.Sandbox(w.GetUid()), "a", engine.Exit{Code: 7}); err != nil {
			n.t.Fatal(err)
		}
		n.start()
		s := n.awaitPhase(w.GetUid(), running, 2)
		if exits := s.GetStatus().GetExits(); len(exits) != 1 || exits[0].GetCode() != 7 || exits[0].GetAttempt() != 1 {
			n.t.Errorf("got exits %v, want code 7 of attempt 1", exits)
		}
		n.startedOnce()
	})
}

// A journal that cannot be read is set aside, and rebuilt from the survivors. (ADO-4)
func TestHost_JournalLost(t *testing.T) {
	damages := map[string]func(data []byte) []byte{
		"empty":   func([]byte) []byte { return nil },
		"half":    func(data []byte) []byte { return data[:len(data)/2] },
		"garbled": func(data []byte) []byte { return append([]byte(strings.Repeat("x", 8192)), data[8192:]...) },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(n *node) {
				w := wishFor(host.ManagerCluster, "sleep", "sleep")
				n.ensure(w)
				before := n.awaitPhase(w.GetUid(), running, 1)
				n.kill()
				data, err := os.ReadFile(n.path)
				if err != nil {
					n.t.Fatal(err)
				}
				if err := os.WriteFile(n.path, damage(data), 0o600); err != nil {
					n.t.Fatal(err)
				}
				time.Sleep(time.Millisecond) // a lost journal counts on from the wall clock
				n.start()
				after := n.awaitPhase(w.GetUid(), running, 1)
				if before.GetStatus().GetSeq() >= after.GetStatus().GetSeq() {
					n.t.Errorf("seq went from %d to %d", before.GetStatus().GetSeq(), after.GetStatus().GetSeq())
				}
				if got := n.startedOnce(); got != 2 {
					n.t.Errorf("%d containers were started, want 2", got)
				}
				n.ensure(w) // the same wish is still the same
			})
		})
	}
}

// What containerd was asked for before a kill may be made after the next life has removed
// all that it saw, and was told to forget it. It is removed as well, and leaves no status
// that somebody would have to forget once more.
func TestHost_MadeAfterItWasForgotten(t *testing.T) {
	for _, manager := range []string{host.ManagerLocal, host.ManagerCluster} {
		inBubble(t, func(n *node) {
			w := wishFor(manager, "sleep")
			n.ensure(w)
			n.awaitPhase(w.GetUid(), running, 1)
			uid := id.Sandbox(w.GetUid())
			if err := n.host.Remove(n.t.Context(), uid, manager); err != nil {
				n.t.Fatal(err)
			}
			n.await(w.GetUid(), "torn down", func(s state) bool { return s.GetStatus().GetTornDownAt() != nil })
			if err := n.host.Forget(n.t.Context(), uid, manager); err != nil {
				n.t.Fatal(err)
			}
			n.kill()
			for _, step := range []engine.Step{engine.StepNamespaces, engine.StepCreate} {
				action := engine.Action{Step: step, Container: w.GetSpec().GetContainers()[0].GetName()}
				if err := n.engine.Do(n.t.Context(), engine.Attempt{Wish: w, Number: 1}, action); err != nil {
					n.t.Fatalf("make it late: %v", err)
				}
			}
			n.start()
			ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
			defer cancel()
			if err := watch.AwaitGone(ctx, n.host.States(), uid); err != nil {
				n.t.Fatal(err)
			}
			if left := n.observe(w.GetUid()); len(left.Containers) != 0 {
				n.t.Errorf("left of it: %+v", left)
			}
			if _, err := n.host.Ensure(n.t.Context(), w); fault.Reason(err) != "TOMBSTONE" {
				n.t.Errorf("its uid is taken again: %v", err)
			}
			n.kill()
			n.start()
			if all, err := n.host.List(); err != nil || len(all) != 0 {
				n.t.Errorf("after another start there is %v, %v", all, err)
			}
		})
	}
}

// A machine that is put back to an earlier day has the journal of that day. What it
// tells then is newer than all that it told before, or nobody would believe it.
func TestHost_JournalPutBack(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerCluster, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.kill()
		kept, err := os.ReadFile(n.path)
		if err != nil {
			n.t.Fatal(err)
		}
		var before uint64
		for range 5 {
			time.Sleep(time.Second)
			n.start()
			before = n.awaitPhase(w.GetUid(), running, 1).GetStatus().GetSeq()
			n.kill()
		}
		if err := os.WriteFile(n.path, kept, 0o600); err != nil {
			n.t.Fatal(err)
		}
		time.Sleep(time.Second)
		n.start()
		if after := n.awaitPhase(w.GetUid(), running, 1).GetStatus().GetSeq(); after <= before {
			n.t.Errorf("seq went from %d to %d", before, after)
		}
	})
}

// What is left of a sandbox that nobody wishes for goes away, and its uid may
// come again.
func TestHost_RemovesStray(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		w := wishFor(host.ManagerCluster, "sleep")
		err := n.engine.Do(t.Context(), engine.Attempt{Wish: w, Number: 1}, engine.Action{Step: engine.StepNamespaces})
		if err != nil {
			t.Fatal(err)
		}
		n.start()
		if err := watch.AwaitGone(t.Context(), n.host.States(), id.Sandbox(w.GetUid())); err != nil {
			t.Fatal(err)
		}
		if o := n.observe(w.GetUid()); !o.Empty() {
			t.Errorf("left: %+v", o)
		}
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.kill()
	})
}

// A runtime that cannot be asked holds the host, it is never "no survivors".
func TestHost_WaitsForAnswers(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.kill()
		n.engine.Deafen(fault.New(fault.Unavailable, "connection refused"))
		ready := n.begin()
		if reason := <-n.reason; !strings.Contains(reason, "connection refused") {
			n.t.Errorf("got reason %q, want the cause", reason)
		}
		if _, err := n.host.Ensure(n.t.Context(), w); !errors.Is(err, fault.Unavailable) {
			n.t.Errorf("got %v while not ready, want Unavailable", err)
		}
		time.Sleep(time.Minute)
		select {
		case <-ready:
			n.t.Error("ready without an answer")
		default:
		}
		n.engine.Deafen(nil)
		<-ready
		n.awaitPhase(w.GetUid(), running, 1)
		n.startedOnce()
	})
}

// While the runtime is away a running sandbox stays as it is.
func TestHost_EngineAway(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.engine.Deafen(fault.New(fault.Unavailable, "connection refused"))
		n.host.Look("")
		n.await(w.GetUid(), "unseen", func(s state) bool { return s.GetStatus().GetReason() == host.ReasonUnseen })
		n.engine.Deafen(nil)
		n.await(w.GetUid(), "calm", func(s state) bool {
			return s.GetStatus().GetReason() == "" && s.GetStatus().GetPhase() == running
		})
		n.startedOnce()
	})
}

func TestHost_BackoffGrowsAndSurvives(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "exit 1")
		n.ensure(w)
		began := time.Now()
		n.awaitPhase(w.GetUid(), pending, 5)
		n.kill()
		n.start()
		n.awaitPhase(w.GetUid(), pending, 6)
		// 0.5 + 1 + 2 + 4 s, less a quarter at most.
		if took := time.Since(began); took < 5500*time.Millisecond || took > 8*time.Second {
			n.t.Errorf("four back-offs took %v, want 5.5 to 8 s", took)
		}
		if got := n.startedOnce(); got != 5 {
			n.t.Errorf("%d starts, want 5", got)
		}
	})
}

func TestHost_StopDeadlineSurvives(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "ignore-term")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		w.Generation, w.Spec.Desired = 2, resourcev1.DesiredState_DESIRED_STATE_STOPPED
		n.ensure(w)
		began := time.Now()
		for range 3 {
			time.Sleep(2 * time.Second)
			n.kill()
			n.start()
		}
		s := n.awaitPhase(w.GetUid(), stopped, 1)
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			n.t.Errorf("stop took %v, want the 10 s of its grace period", took)
		}
		if e := s.GetStatus().GetExits()[0]; e.GetSignal() != 9 {
			n.t.Errorf("got exit %v, want signal 9", e)
		}
	})
}

// A mailbox that is full says so at once.
func TestHost_BusyKeeper(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		ctx, cancel := context.WithCancel(context.Background())
		answers := make(chan error, 1000)
		for range cap(answers) {
			go func() { // all answers are read below
				_, err := n.host.Ensure(ctx, w)
				answers <- err
			}()
		}
		for range cap(answers) {
			if err := <-answers; err != nil && !errors.Is(err, fault.Unavailable) {
				n.t.Errorf("got %v, want success or Unavailable", err)
			}
		}
		cancel()
	})
}

// A container of a release that we cannot read is shown and left alone.
func TestHost_Unreadable(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.kill()
		n.engine.Garble(id.Sandbox(w.GetUid()), "a")
		if err := os.Remove(n.path); err != nil {
			n.t.Fatal(err)
		}
		n.start()
		n.await(w.GetUid(), "shown", func(s state) bool { return s.GetStatus().GetReason() == host.ReasonUnreadable })
		synctest.Wait()
		if o := n.observe(w.GetUid()); len(o.Containers) != 1 || o.Containers[0].State != engine.Running {
			n.t.Errorf("got %+v, want the container untouched", o)
		}
	})
}
