package host

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/engine/mem"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

func command(words ...string) *resourcev1.ContainerSpec {
	return &resourcev1.ContainerSpec{Image: mem.Image, Command: words}
}

// specOf makes a spec of containers called a, b, c.
func specOf(policy resourcev1.RestartPolicy, containers ...*resourcev1.ContainerSpec) *resourcev1.SandboxSpec {
	for i, c := range containers {
		c.Name = string(rune('a' + i))
	}
	return &resourcev1.SandboxSpec{
		Desired:       resourcev1.DesiredState_DESIRED_STATE_RUNNING,
		RestartPolicy: policy,
		Containers:    containers,
	}
}

const (
	always    = resourcev1.RestartPolicy_RESTART_POLICY_ALWAYS
	onFailure = resourcev1.RestartPolicy_RESTART_POLICY_ON_FAILURE
	never     = resourcev1.RestartPolicy_RESTART_POLICY_NEVER
)

func TestNext_Life(t *testing.T) {
	sleep := func() *resourcev1.ContainerSpec { return command("sleep") }
	exit := func(code string) *resourcev1.ContainerSpec { return command(mem.CommandExit, code) }
	stop := func(s *resourcev1.SandboxSpec) { s.Desired = resourcev1.DesiredState_DESIRED_STATE_STOPPED }
	start := func(s *resourcev1.SandboxSpec) { s.Desired = resourcev1.DesiredState_DESIRED_STATE_RUNNING }
	init := func(code string) *resourcev1.ContainerSpec {
		c := exit(code)
		c.Init = true
		return c
	}
	initSleep := func() *resourcev1.ContainerSpec {
		c := sleep()
		c.Init = true
		return c
	}
	limits := func(pids int64) *resourcev1.ResourceLimits { return &resourcev1.ResourceLimits{PidsLimit: &pids} }
	tests := []struct {
		name    string
		spec    *resourcev1.SandboxSpec
		then    func(m *model)
		attempt uint64
		phase   resourcev1.SandboxPhase
		reason  string
		alive   int
	}{
		{"runs", specOf(always, sleep(), sleep()), nil, 1, running, "", 2},
		{"ended with 0 and stays", specOf(never, exit("0"), exit("0")), nil, 1, stopped, ReasonExited, 0},
		{"ended with 3 and stays", specOf(never, exit("3"), exit("0")), nil, 1, failed, ReasonExited, 0},
		{"one ended, the other goes on", specOf(never, exit("3"), sleep()), nil, 1, running, "", 1},
		{"one ended well, the other goes on", specOf(onFailure, exit("0"), sleep()), nil, 1, running, "", 1},
		{"all ended well", specOf(onFailure, exit("0"), exit("0")), nil, 1, stopped, ReasonExited, 0},
		{"ended and comes again", specOf(always, sleep(), sleep()), func(m *model) {
			m.end("a", engine.Exit{Code: 0})
		}, 2, running, "", 2},
		{"failed and comes again", specOf(onFailure, sleep(), sleep()), func(m *model) {
			m.end("b", engine.Exit{Code: 1})
		}, 2, running, "", 2},
		{"lost and comes again", specOf(onFailure, sleep()), func(m *model) {
			m.engine.Vanish(m.uid, "a")
		}, 2, running, "", 1},
		{"lost and must not run twice", specOf(never, sleep()), func(m *model) {
			m.engine.Vanish(m.uid, "a")
		}, 1, failed, ReasonExited, 0},
		{"stopped", specOf(always, sleep(), sleep()), func(m *model) { m.wish(stop) }, 1, stopped, ReasonStopped, 0},
		{"stopped by force", specOf(always, command(mem.CommandIgnoreTerm), sleep()), func(m *model) {
			m.wish(stop)
		}, 1, stopped, ReasonStopped, 0},
		{"stopped and started", specOf(always, sleep()), func(m *model) {
			m.wish(stop)
			m.settle()
			m.wish(start)
		}, 2, running, "", 1},
		{"ended, stopped and started", specOf(never, exit("1")), func(m *model) {
			m.wish(stop)
			m.settle()
			m.wish(start)
		}, 2, failed, ReasonExited, 0},
		{"another spec", specOf(always, sleep()), func(m *model) {
			m.wish(func(s *resourcev1.SandboxSpec) { s.Hostname = "other" })
		}, 2, running, "", 1},
		{"another spec after the end", specOf(never, exit("1")), func(m *model) {
			m.wish(func(s *resourcev1.SandboxSpec) { s.Containers[0].Command = []string{"sleep"} })
		}, 2, running, "", 1},
		{"same spec, next generation", specOf(always, sleep()), func(m *model) {
			m.wish(start)
		}, 1, running, "", 1},
		{"no such image, never", specOf(never, &resourcev1.ContainerSpec{Image: "example.org/none:1"}), nil, 1, failed, ReasonStepFailed, 0},
		{"cut off", specOf(always, sleep()), func(m *model) { m.cutOff = true }, 1, stopped, ReasonDisconnected, 0},
		{"cut off and back", specOf(always, sleep()), func(m *model) {
			m.cutOff = true
			m.settle()
			m.cutOff = false
		}, 2, running, "", 1},
		{"held", specOf(always, sleep(), sleep()), func(m *model) { m.held = true }, 1, stopped, ReasonHeld, 0},
		{"held by force", specOf(always, command(mem.CommandIgnoreTerm), sleep()), func(m *model) { m.held = true }, 1, stopped, ReasonHeld, 0},
		{"held and let go", specOf(always, sleep()), func(m *model) {
			m.held = true
			m.settle()
			m.held = false
		}, 2, running, "", 1},
		{"held over a reboot and let go", specOf(always, sleep()), func(m *model) {
			m.held = true
			m.settle()
			m.reboot()
			m.settle()
			if m.alive() != 0 || m.rec.GetStatus().GetAttempt() != 1 {
				t.Errorf("it runs after a reboot although it is held\n%s", m.story())
			}
			m.held = false
		}, 2, running, "", 1},
		{"let go while it is being stopped", specOf(always, command(mem.CommandIgnoreTerm)), func(m *model) {
			m.held = true
			m.step()
			m.step()
			m.held = false
		}, 2, running, "", 1},
		{"held, and must not run twice", specOf(never, sleep()), func(m *model) {
			m.held = true
			m.settle()
			m.held = false
		}, 1, stopped, ReasonHeld, 0},
		{"held, must not run twice, and is started by hand", specOf(never, sleep()), func(m *model) {
			m.held = true
			m.settle()
			m.held = false
			m.wish(stop)
			m.wish(start)
		}, 2, running, "", 1},
		{"ended before it was held", specOf(never, exit("3")), func(m *model) {
			m.held = true
			m.settle()
			m.held = false
		}, 1, failed, ReasonExited, 0},
		{"another spec while held", specOf(never, sleep()), func(m *model) {
			m.held = true
			m.settle()
			m.wish(func(s *resourcev1.SandboxSpec) { s.Hostname = "other" })
			m.settle()
			m.held = false
		}, 2, running, "", 1},
		{"stopped while held", specOf(always, sleep()), func(m *model) {
			m.held = true
			m.settle()
			m.wish(stop)
			m.settle()
			m.held = false
		}, 1, stopped, ReasonHeld, 0},
		{"init containers, then the others", specOf(always, sleep(), init("0"), init("0")), nil, 1, running, "", 1},
		{"init container failed and stays", specOf(never, init("3"), sleep()), nil, 1, failed, ReasonExited, 0},
		{"waits for an init container", specOf(always, initSleep(), sleep()), nil, 1, starting, "", 1},
		{"init container ended well", specOf(onFailure, initSleep(), sleep()), func(m *model) {
			m.end("a", engine.Exit{Code: 0})
		}, 1, running, "", 1},
		{"init container failed and comes again", specOf(onFailure, initSleep(), sleep()), func(m *model) {
			m.end("a", engine.Exit{Code: 2})
		}, 2, starting, "", 1},
		{"init container stopped", specOf(onFailure, initSleep(), sleep()), func(m *model) { m.wish(stop) }, 1, stopped, ReasonStopped, 0},
		{"init containers run once per attempt, also without a journal", specOf(always, init("0"), sleep()), func(m *model) {
			m.forgetLife()
			m.rec, _ = restore(nil, nil, m.observe(), lifeOf{boot: m.boot}, m.at())
			m.settle()
			if n := m.engine.Starts()[engine.ContainerID(m.uid, "a", 1)]; n != 1 {
				t.Errorf("the init container was started %d times", n)
			}
		}, 1, running, "", 1},
		{"init containers again with each attempt", specOf(always, init("0"), sleep()), func(m *model) {
			m.end("b", engine.Exit{Code: 0})
		}, 2, running, "", 1},
		{"other limits in place", specOf(always, sleep(), sleep()), func(m *model) {
			m.wish(func(s *resourcev1.SandboxSpec) { s.Containers[1].Limits = limits(7) })
			m.settle()
			if got := m.observe().Containers[1].Limits.GetPidsLimit(); got != 7 {
				t.Errorf("the limit is %d, want 7\n%s", got, m.story())
			}
			m.wish(func(s *resourcev1.SandboxSpec) { s.Containers[1].Limits = nil })
			m.settle()
			if got := m.observe().Containers[1].Limits; got != nil {
				t.Errorf("the limits are %v, want none\n%s", got, m.story())
			}
		}, 1, running, "", 2},
		{"other limits and another spec", specOf(always, sleep()), func(m *model) {
			m.wish(func(s *resourcev1.SandboxSpec) { s.Containers[0].Limits, s.Hostname = limits(7), "other" })
		}, 2, running, "", 1},
		{"other limits while it is replaced", specOf(always, command(mem.CommandIgnoreTerm)), func(m *model) {
			m.wish(func(s *resourcev1.SandboxSpec) { s.Hostname = "other" })
			m.step()
			m.wish(func(s *resourcev1.SandboxSpec) { s.Containers[0].Limits = limits(7) })
			m.settle()
			if got := m.observe().Containers[0]; got.Limits.GetPidsLimit() != 7 || got.Note.GetWish().GetSpec().GetHostname() != "other" {
				t.Errorf("got %v, want all of the newest wish\n%s", got, m.story())
			}
		}, 2, running, "", 1},
		{"other limits after the end", specOf(never, exit("1")), func(m *model) {
			m.wish(func(s *resourcev1.SandboxSpec) { s.Containers[0].Limits = limits(7) })
		}, 2, failed, ReasonExited, 0},
		{"unhealthy and comes again", specOf(onFailure, sleep()), func(m *model) { m.unhealthy = true }, 2, running, "", 1},
		{"unhealthy and must not run twice", specOf(never, sleep()), func(m *model) {
			m.unhealthy = true
		}, 1, failed, ReasonUnhealthy, 0},
		{"policy and grace in place", specOf(always, sleep()), func(m *model) {
			m.wish(func(s *resourcev1.SandboxSpec) {
				s.RestartPolicy, s.TerminationGracePeriod = never, durationpb.New(time.Second)
				s.RestartBackoff = &resourcev1.RestartBackoff{Initial: durationpb.New(time.Second)}
				s.Disconnect, s.NodeSelector = &resourcev1.DisconnectPolicy{}, map[string]string{"zone": "a"}
			})
		}, 1, running, "", 1},
		{"interface taken away", specOf(always, sleep()), func(m *model) { m.engine.Detach(m.uid) }, 1, running, "", 1},
		{"unreadable", specOf(always, sleep()), func(m *model) {
			m.engine.Garble(m.uid, "a")
			m.wish(stop)
		}, 1, running, "", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newModel(t, tt.spec)
			m.settle()
			if tt.then != nil {
				tt.then(m)
				m.settle()
			}
			s := m.rec.GetStatus()
			if s.GetAttempt() != tt.attempt || s.GetPhase() != tt.phase || s.GetReason() != tt.reason || m.alive() != tt.alive {
				t.Errorf("got attempt %d %v %q with %d alive, want %d %v %q with %d\n%s", s.GetAttempt(), s.GetPhase(),
					s.GetReason(), m.alive(), tt.attempt, tt.phase, tt.reason, tt.alive, m.story())
			}
			if tt.phase >= stopped && !m.observe().Empty() {
				t.Errorf("got %+v left after the end, want nothing", m.observe())
			}
		})
	}
}

// TestNext_ComesToRest is the specification: whatever happens at whatever step,
// the sandbox comes to rest as it is wished for, never runs twice, never goes
// back, and removed leaves nothing.
func TestNext_ComesToRest(t *testing.T) {
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := newModel(t, randomSpec(r))
		for range r.IntN(30) {
			m.step()
			if r.IntN(4) == 0 {
				m.disturb(r)
			}
		}
		m.cutOff, m.held = false, true
		m.settle()
		if o := m.observe(); !dead(m.rec.GetStatus()) || !o.Empty() || m.alive() > 0 {
			t.Fatalf("seed %d: held, but %+v is left\n%s", seed, o, m.story())
		}
		m.held = r.IntN(2) == 0
		m.settle()
		m.held = false
		m.settle()
		s := m.rec.GetStatus()
		wanted := m.rec.GetWish().GetSpec().GetDesired() == resourcev1.DesiredState_DESIRED_STATE_RUNNING
		switch {
		case !wanted && (s.GetPhase() < stopped || !m.observe().Empty()):
			t.Fatalf("seed %d: stopped, but %v\n%s", seed, s.GetPhase(), m.story())
		case wanted && policy(m.rec) == always && s.GetPhase() != running:
			t.Fatalf("seed %d: should run, but %v\n%s", seed, s.GetPhase(), m.story())
		case s.GetPhase() == running && len(m.observe().Addresses) == 0:
			t.Fatalf("seed %d: running without an address\n%s", seed, m.story())
		case wanted && s.GetPhase() == running && m.alive() == 0:
			t.Fatalf("seed %d: running without a process\n%s", seed, m.story())
		}
		m.rec = proto.CloneOf(m.rec)
		remove(m.rec)
		m.settle()
		o := m.observe()
		if !o.Empty() || o.Logs || m.rec.GetStatus().GetTornDownAt() == nil {
			t.Fatalf("seed %d: removed, but left: %+v\n%s", seed, o, m.story())
		}
	}
}

func randomSpec(r *rand.Rand) *resourcev1.SandboxSpec {
	policies := []resourcev1.RestartPolicy{always, onFailure, never}
	var containers []*resourcev1.ContainerSpec
	policy := policies[r.IntN(len(policies))]
	n := 1 + r.IntN(3)
	for i := range n {
		c := command("sleep")
		switch init := i < n-1 && r.IntN(2) == 0; {
		case init:
			code := 0
			if policy == never { // else it would be tried for ever
				code = r.IntN(5) / 4
			}
			c = command(mem.CommandExit, strconv.Itoa(code))
			c.Init = true
		case r.IntN(3) == 0:
			c = command(mem.CommandIgnoreTerm)
		}
		if !c.GetInit() && r.IntN(3) == 0 {
			c.PreStop = &resourcev1.ExecAction{Command: []string{mem.CommandExit, strconv.Itoa(r.IntN(2))}}
		}
		containers = append(containers, c)
	}
	return specOf(policy, containers...)
}

// A live container of an attempt that the record does not know is ended before
// anything new is made.
func TestNext_OtherAttemptGoesFirst(t *testing.T) {
	m := newModel(t, specOf(always, command("sleep")))
	m.settle()
	m.rec = proto.CloneOf(m.rec)
	startAttempt(m.rec, 2, m.rec.GetAttemptSpecHash(), m.at())
	m.forgetLife()
	m.settle()
	if s := m.rec.GetStatus(); s.GetAttempt() != 2 || s.GetPhase() != running || m.alive() != 1 || len(m.observe().Containers) != 1 {
		t.Errorf("got attempt %d %v with %d alive, want attempt 2 alone\n%s", s.GetAttempt(), s.GetPhase(), m.alive(), m.story())
	}
}

// The container before waits for the end of the one after it.
func TestNext_StopsInReverse(t *testing.T) {
	m := newModel(t, specOf(always, command("sleep"), command(mem.CommandIgnoreTerm), command("sleep")))
	m.settle()
	m.wish(func(s *resourcev1.SandboxSpec) { s.Desired = resourcev1.DesiredState_DESIRED_STATE_STOPPED })
	for !m.step() {
		continue
	}
	if got := m.alive(); got != 2 {
		t.Errorf("%d are alive while the second ignores the stop, want 2\n%s", got, m.story())
	}
	m.settle()
	if got := m.alive(); got != 0 {
		t.Errorf("%d are alive after the grace period, want none", got)
	}
}
