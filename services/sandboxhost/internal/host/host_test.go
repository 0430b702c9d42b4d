package host_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/engine/mem"
	"staddle.internal/services/sandboxhost/internal/host"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// node is a machine whose host can be killed and started again: engine, journal
// file and clock outlive it.
type node struct {
	t      *testing.T
	path   string
	engine *mem.Engine
	boot   string
	booted time.Time
	reason chan string

	host    *host.Host
	journal *journal.Journal
	cancel  context.CancelFunc
	ended   chan error
}

func newNode(t *testing.T) *node {
	return &node{
		t:      t,
		path:   filepath.Join(t.TempDir(), "journal.db"),
		engine: mem.New(),
		boot:   "boot-1",
		booted: time.Now().Add(-time.Hour),
		reason: make(chan string, 1),
	}
}

// begin starts a host without waiting for it. It returns what ready closes.
func (n *node) begin() chan struct{} {
	n.t.Helper()
	j, _, err := journal.Open(journal.Options{Path: n.path, Kind: host.JournalKind, Version: host.JournalVersion})
	if err != nil {
		n.t.Fatal(err)
	}
	n.journal = j
	n.host = host.New(
		host.Config{Node: "node1", BootID: n.boot, SandboxNetwork: true, BootHold: 15 * time.Second, Limit: 5},
		host.Deps{
			Engine: n.engine, Journal: j, Log: slog.New(slog.DiscardHandler),
			Now: func() time.Duration { return time.Since(n.booted) },
			NotReady: func(reason string) {
				select {
				case n.reason <- reason:
				default:
				}
			},
		})
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.ended = cancel, make(chan error, 1)
	ready := make(chan struct{})
	go func() { n.ended <- n.host.Run(ctx, func() { close(ready) }) }() // kill waits for it
	return ready
}

func (n *node) start() {
	n.t.Helper()
	ready := n.begin()
	select {
	case <-ready:
	case err := <-n.ended:
		n.t.Fatalf("host ended: %v", err)
	case <-time.After(time.Minute):
		n.t.Fatal("host not ready after a minute")
	}
}

// kill ends the host. Whatever it was doing is cut off.
func (n *node) kill() {
	n.t.Helper()
	n.cancel()
	if err := <-n.ended; !errors.Is(err, context.Canceled) {
		n.t.Fatalf("host ended: %v", err)
	}
	if err := n.journal.Close(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) reboot() {
	n.kill()
	n.engine.Reboot()
	n.boot += "+"
	n.booted = time.Now()
}

func (n *node) ensure(w *sandboxhostv1.Wish) {
	n.t.Helper()
	if _, err := n.host.Ensure(n.t.Context(), w); err != nil {
		n.t.Fatalf("ensure: %v", err)
	}
}

type state = *sandboxhostv1.SandboxState

// await waits until a sandbox is as asked, a minute of fake time at most.
func (n *node) await(uid string, what string, is func(state) bool) state {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := watch.Await(ctx, n.host.States(), id.Sandbox(uid), is)
	if err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
	return s
}

func (n *node) awaitPhase(uid string, phase resourcev1.SandboxPhase, attempt uint64) state {
	n.t.Helper()
	return n.await(uid, fmt.Sprintf("attempt %d %v", attempt, phase), func(s state) bool {
		return s.GetStatus().GetPhase() == phase && s.GetStatus().GetAttempt() == attempt
	})
}

const (
	running = resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	pending = resourcev1.SandboxPhase_SANDBOX_PHASE_PENDING
	stopped = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	failed  = resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
)

func wishFor(manager string, commands ...string) *sandboxhostv1.Wish {
	w := &sandboxhostv1.Wish{
		Uid: string(id.NewSandbox()), Name: "web", Manager: manager, Generation: 1,
		Spec: &resourcev1.SandboxSpec{Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING},
	}
	for i, c := range commands {
		w.Spec.Containers = append(w.Spec.Containers, &resourcev1.ContainerSpec{
			Name: string(rune('a' + i)), Image: mem.Image, Command: strings.Fields(c),
		})
	}
	return w
}

func (n *node) observe(uid string) engine.Observed {
	n.t.Helper()
	o, err := n.engine.Observe(context.Background(), id.Sandbox(uid))
	if err != nil {
		n.t.Fatal(err)
	}
	return o
}

// startedOnce demands that no container was started twice, and returns how many
// were.
func (n *node) startedOnce() int {
	n.t.Helper()
	for container, times := range n.engine.Starts() {
		if times != 1 {
			n.t.Errorf("container %s was started %d times, want once", container, times)
		}
	}
	return len(n.engine.Starts())
}

// inBubble runs f with fake time and a started node.
func inBubble(t *testing.T, f func(n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		f(n)
		n.kill()
	})
}

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

func TestHost_Reboot(t *testing.T) {
	stopAfter := &resourcev1.DisconnectPolicy{StopAfter: durationpb.New(time.Minute)}
	tests := []struct {
		name       string
		manager    string
		disconnect *resourcev1.DisconnectPolicy
		named      bool
		within     time.Duration // runs again; 0 means held
		notBefore  time.Duration
	}{
		{"local starts at once", host.ManagerLocal, nil, false, 100 * time.Millisecond, 0},
		{"named by the cluster", host.ManagerCluster, stopAfter, true, 100 * time.Millisecond, 0},
		{"kept without contact", host.ManagerCluster, nil, false, 16 * time.Second, 15 * time.Second},
		{"held without contact", host.ManagerCluster, stopAfter, false, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(n *node) {
				w := wishFor(tt.manager, "sleep")
				w.Spec.Disconnect = tt.disconnect
				n.ensure(w)
				n.awaitPhase(w.GetUid(), running, 1)
				n.reboot()
				n.start()
				began := time.Now()
				if tt.named {
					n.ensure(w)
				}
				if tt.within == 0 {
					time.Sleep(50 * time.Second)
					n.await(w.GetUid(), "held", func(s state) bool {
						return s.GetStatus().GetReason() == host.ReasonWaitingForCluster && s.GetStatus().GetPhase() == pending
					})
					return
				}
				s := n.awaitPhase(w.GetUid(), running, 2)
				if took := time.Since(began); took > tt.within || took < tt.notBefore {
					n.t.Errorf("runs again after %v, want %v to %v", took, tt.notBefore, tt.within)
				}
				if exits := s.GetStatus().GetExits(); len(exits) != 1 || !exits[0].GetUnknown() {
					n.t.Errorf("got exits %v, want one that is unknown", exits)
				}
			})
		})
	}
}

// Work that must not run twice runs after a reboot only if it had not begun.
func TestHost_RebootNever(t *testing.T) {
	for _, begun := range []bool{true, false} {
		t.Run(fmt.Sprintf("begun %v", begun), func(t *testing.T) {
			inBubble(t, func(n *node) {
				w := wishFor(host.ManagerLocal, "sleep")
				w.Spec.RestartPolicy = resourcev1.RestartPolicy_RESTART_POLICY_NEVER
				reached := make(chan struct{})
				n.engine.Before = func(ctx context.Context, _ id.Sandbox, a engine.Action) error {
					if begun || a.Step != engine.StepStart {
						return nil
					}
					close(reached)
					<-ctx.Done()
					return ctx.Err()
				}
				n.ensure(w)
				if begun {
					n.awaitPhase(w.GetUid(), running, 1)
				} else {
					<-reached
				}
				n.reboot()
				n.engine.Before = nil
				n.start()
				if begun {
					n.awaitPhase(w.GetUid(), failed, 1)
				} else {
					n.awaitPhase(w.GetUid(), running, 2)
				}
				n.startedOnce()
			})
		})
	}
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

func TestHost_Disconnect(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerCluster, "sleep")
		w.Spec.Disconnect = &resourcev1.DisconnectPolicy{StopAfter: durationpb.New(30 * time.Second)}
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		for range 10 {
			time.Sleep(10 * time.Second)
			n.host.SetAuthority(time.Since(n.booted))
		}
		last := time.Now()
		n.awaitPhase(w.GetUid(), running, 1)
		n.awaitPhase(w.GetUid(), stopped, 1)
		if after := time.Since(last); after < 30*time.Second || after > 31*time.Second {
			n.t.Errorf("stopped %v after the last renewal, want 30 s", after)
		}
		n.host.SetAuthority(time.Since(n.booted))
		n.awaitPhase(w.GetUid(), running, 2)
	})
}

// A restart of the host gives a sandbox that is cut off no more time.
func TestHost_DisconnectSurvivesRestart(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerCluster, "sleep")
		w.Spec.Disconnect = &resourcev1.DisconnectPolicy{StopAfter: durationpb.New(30 * time.Second)}
		n.ensure(w)
		renewed := time.Now()
		n.host.SetAuthority(renewed.Sub(n.booted))
		n.awaitPhase(w.GetUid(), running, 1)
		time.Sleep(20 * time.Second)
		n.kill()
		n.start()
		n.host.SetAuthority(renewed.Sub(n.booted))
		n.awaitPhase(w.GetUid(), stopped, 1)
		if after := time.Since(renewed); after < 30*time.Second || after > 31*time.Second {
			n.t.Errorf("stopped %v after the last renewal, want 30 s", after)
		}
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
