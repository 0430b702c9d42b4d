package host_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/engine/mem"
	"staddle.internal/services/sandboxhost/internal/host"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// ready is the condition of a sandbox, and why it is so.
func ready(s state) (resourcev1.ConditionState, string) {
	for _, c := range s.GetStatus().GetConditions() {
		if c.GetType() == "Ready" {
			return c.GetState(), c.GetReason()
		}
	}
	return 0, ""
}

func (n *node) awaitReady(w *sandboxhostv1.Wish, want resourcev1.ConditionState, reason string) state {
	n.t.Helper()
	return n.await(w.GetUid(), want.String()+" "+reason, func(s state) bool {
		got, why := ready(s)
		return got == want && strings.Contains(why, reason)
	})
}

const (
	isReady  = resourcev1.ConditionState_CONDITION_STATE_TRUE
	notReady = resourcev1.ConditionState_CONDITION_STATE_FALSE
)

func listener(address string) engine.Listener {
	return engine.Listener{Address: netip.MustParseAddrPort(address)}
}

func withPort(w *sandboxhostv1.Wish) *sandboxhostv1.Wish {
	w.Spec.Containers[0].Ports = []*resourcev1.ContainerPort{{Port: 8080}}
	return w
}

func probing(command ...string) *resourcev1.Probe {
	return &resourcev1.Probe{
		Check:  &resourcev1.Probe_Exec{Exec: &resourcev1.ExecAction{Command: command}},
		Period: durationpb.New(2 * time.Second),
	}
}

func TestHost_ReadyWhenRunning(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitReady(w, isReady, "")
		w.Generation, w.Spec.Desired = 2, resourcev1.DesiredState_DESIRED_STATE_STOPPED
		n.ensure(w)
		n.awaitReady(w, notReady, "it is STOPPED")
	})
}

// A port that is not open is explained, and waited for however long it takes. (LIF-6)
func TestHost_PortsAreWaitedFor(t *testing.T) {
	inBubble(t, func(n *node) {
		w := withPort(wishFor(host.ManagerLocal, "sleep"))
		n.ensure(w)
		n.awaitReady(w, notReady, "container a: nothing listens on port 8080/tcp, nor on any other")
		n.engine.Listen(listener("0.0.0.0:3000"))
		n.awaitReady(w, notReady, "but on 3000/tcp; is it the right port?")
		n.engine.Listen(listener("127.0.0.1:8080"))
		n.awaitReady(w, notReady, "is bound to 127.0.0.1 only")
		time.Sleep(40 * time.Second) // of the bubble
		n.engine.Listen(listener("[::]:8080"))
		n.awaitReady(w, isReady, "")
	})
}

// At rest nothing is asked: a port that was seen open is not looked for again.
func TestHost_PortsAtRest(t *testing.T) {
	inBubble(t, func(n *node) {
		n.engine.Listen(listener("0.0.0.0:8080"))
		w := withPort(wishFor(host.ManagerLocal, "sleep"))
		n.ensure(w)
		seq := n.awaitReady(w, isReady, "").GetStatus().GetSeq()
		n.engine.Listen()
		time.Sleep(20 * time.Minute) // of the bubble
		s, err := n.host.Get(id.Sandbox(w.GetUid()))
		if err != nil || s.GetStatus().GetSeq() != seq {
			n.t.Errorf("got %v, %v, want nothing new since %d", s.GetStatus(), err, seq)
		}
	})
}

// What was known before the host died holds until something newer is. (ADO-5)
func TestHost_ReadyOverARestart(t *testing.T) {
	inBubble(t, func(n *node) {
		n.engine.Listen(listener("0.0.0.0:8080"))
		w := withPort(wishFor(host.ManagerLocal, "sleep"))
		w.Spec.Containers[0].ReadinessProbe = probing(mem.CommandExit, "0")
		n.ensure(w)
		n.awaitReady(w, isReady, "")
		n.kill()
		gate := make(chan struct{})
		n.engine.OnExec = func(ctx context.Context, _ engine.Command) (engine.CommandResult, error) {
			select {
			case <-gate:
				return engine.CommandResult{Code: 1, Output: "busy"}, nil
			case <-ctx.Done():
				return engine.CommandResult{}, context.Cause(ctx)
			}
		}
		n.start()
		if got, why := ready(n.awaitPhase(w.GetUid(), running, 1)); got != isReady {
			n.t.Errorf("adopted, got %v %q, want what was known before", got, why)
		}
		close(gate)
		n.awaitReady(w, notReady, "container a: readiness probe: the command ended with code 1: busy")
		n.startedOnce()
	})
}

// A failing liveness or startup probe ends the attempt as the end of a container does.
func TestHost_UnhealthyStartsAgain(t *testing.T) {
	for _, name := range []string{"liveness", "startup"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(n *node) {
				w := wishFor(host.ManagerLocal, "sleep")
				if name == "liveness" {
					w.Spec.Containers[0].LivenessProbe = probing(mem.CommandExit, "4")
				} else {
					w.Spec.Containers[0].StartupProbe = probing(mem.CommandHang)
				}
				n.ensure(w)
				began := time.Now()
				s := n.awaitPhase(w.GetUid(), pending, 2)
				if took := time.Since(began); took < 4*time.Second || took > 9*time.Second {
					n.t.Errorf("three failures took %v", took)
				}
				if why := s.GetStatus().GetMessage(); !strings.HasPrefix(why, "container a: "+name+" probe: ") || s.GetStatus().GetReason() != host.ReasonBackoff {
					n.t.Errorf("got %s: %q", s.GetStatus().GetReason(), why)
				}
				n.awaitPhase(w.GetUid(), running, 2)
			})
		})
	}
}

// A startup probe holds the others back, and readiness waits for it.
func TestHost_StartupFirst(t *testing.T) {
	inBubble(t, func(n *node) {
		var asked []string
		begun := time.Now()
		n.engine.OnExec = func(_ context.Context, c engine.Command) (engine.CommandResult, error) {
			asked = append(asked, c.ID)
			if c.ID == "probe-started" && time.Since(begun) < 5*time.Second {
				return engine.CommandResult{Code: 1}, nil
			}
			return engine.CommandResult{}, nil
		}
		w := wishFor(host.ManagerLocal, "sleep")
		w.Spec.Containers[0].StartupProbe = probing("started")
		w.Spec.Containers[0].StartupProbe.FailureThreshold = 30
		w.Spec.Containers[0].ReadinessProbe = probing("ready")
		n.ensure(w)
		n.awaitReady(w, notReady, "container a: startup probe: the command ended with code 1")
		n.awaitReady(w, isReady, "")
		if got := strings.Join(asked, " "); got != "probe-started probe-started probe-started probe-started probe-ready" {
			n.t.Errorf("asked %s", got)
		}
	})
}

// A runtime that cannot be asked says nothing about health.
func TestHost_UnknownKeepsTheLast(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		w.Spec.Containers[0].LivenessProbe = probing(mem.CommandExit, "0")
		w.Spec.Containers[0].ReadinessProbe = probing(mem.CommandExit, "0")
		n.engine.Listen(listener("0.0.0.0:1"))
		w.Spec.Containers[0].ReadinessProbe.Check = &resourcev1.Probe_Tcp{Tcp: &resourcev1.TcpCheck{Port: 1}}
		n.ensure(w)
		n.awaitReady(w, isReady, "")
		n.engine.Deafen(fault.New(fault.Unavailable, "nobody answers"))
		time.Sleep(5 * time.Minute) // of the bubble
		s, err := n.host.Get(id.Sandbox(w.GetUid()))
		if got, why := ready(s); err != nil || got != isReady || s.GetStatus().GetAttempt() != 1 {
			n.t.Errorf("got %v %q, %v, want what was known before", got, why, err)
		}
		n.engine.Deafen(nil)
		n.engine.Listen()
		n.awaitReady(w, notReady, "readiness probe")
	})
}
