package host

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/engine/mem"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// model drives Next against an engine in memory, without keeper, time or
// journal: every decision is applied as the keeper would.
type model struct {
	t         *testing.T
	uid       id.Sandbox
	engine    *mem.Engine
	boot      string
	rec       *sandboxhostv1.SandboxRecord
	saved     *sandboxhostv1.SandboxRecord // as the journal has it
	images    bool
	failed    bool
	cutOff    bool
	graceOver bool
	signalled map[string]syscall.Signal
	noted     map[string]bool
	trail     []string
}

func newModel(t *testing.T, spec *resourcev1.SandboxSpec) *model {
	m := &model{t: t, uid: id.NewSandbox(), engine: mem.New(), boot: "boot"}
	wish := &sandboxhostv1.Wish{Uid: string(m.uid), Name: "web", Manager: ManagerLocal, Generation: 1, Spec: spec}
	m.rec = newRecord(wish, m.hash(spec), "boot", m.at())
	m.saved = m.rec
	m.forgetLife()
	return m
}

func (m *model) at() moment { return moment{Wall: time.Unix(1e9, 0), Boot: time.Hour} }

func (m *model) forgetLife() {
	m.images, m.failed, m.graceOver = false, false, false
	m.signalled, m.noted = make(map[string]syscall.Signal), make(map[string]bool)
}

func (m *model) hash(spec *resourcev1.SandboxSpec) string {
	h, err := engine.SpecHash(spec)
	if err != nil {
		m.t.Fatal(err)
	}
	return h
}

func (m *model) observe() engine.Observed {
	o, err := m.engine.Observe(context.Background(), m.uid)
	if err != nil {
		m.t.Fatal(err)
	}
	return o
}

// wish replaces the spec under the next generation.
func (m *model) wish(change func(*resourcev1.SandboxSpec)) {
	w := proto.CloneOf(m.rec.GetWish())
	w.Generation++
	change(w.Spec)
	hash := m.hash(w.GetSpec())
	if hash != m.rec.GetAttemptSpecHash() {
		m.images = false
	}
	m.rec = proto.CloneOf(m.rec)
	accept(m.rec, w, hash, m.at())
	m.saved = m.rec
}

// step applies one decision and reports whether it was to rest.
func (m *model) step() (rested bool) {
	m.t.Helper()
	in := Input{
		Record: m.rec, SpecHash: m.hash(m.rec.GetWish().GetSpec()), Observed: m.observe(),
		CutOff: m.cutOff, BackoffOver: true, ImagesReady: m.images, Failed: m.failed,
		GraceOver: m.graceOver, Noted: m.noted, Signalled: m.signalled,
	}
	before := proto.CloneOf(m.rec)
	d := Next(in)
	if !proto.Equal(before, m.rec) {
		m.t.Fatalf("Next changed the record")
	}
	m.trail = append(m.trail, fmt.Sprintf("%d %v %s %s", d.Kind, phaseName(d.Phase), d.Action.Step, d.Action.Container))
	m.rec = proto.CloneOf(m.rec)
	switch d.Kind {
	case Rest:
		return true
	case Act:
		m.do(d.Action)
	case NoteExit:
		noteExit(m.rec, d.Container, m.at())
		m.noted[d.Container.ID] = true
	case Enter:
		enter(m.rec, d, "", m.at())
	case Begin:
		begin(m.rec, in.SpecHash, 0, 0, m.at())
		m.forgetLife()
	case TornDown:
		tornDown(m.rec, m.at())
	}
	if d.Kind != Act && (d.Kind != Enter || d.Phase >= running) {
		m.saved = m.rec
	}
	m.checkForward(before)
	return false
}

func (m *model) do(a engine.Action) {
	if a.Step == engine.StepCreate {
		for _, c := range m.observe().Containers {
			if c.State == engine.Running && c.Note.GetContainer() == a.Container {
				m.t.Fatalf("a second container of %s is made beside a live one\n%s", a.Container, m.story())
			}
		}
	}
	if a.Step == engine.StepDelete {
		m.checkNoted(a.ContainerID)
	}
	attempt := engine.Attempt{
		Wish: m.rec.GetWish(), SpecHash: m.hash(m.rec.GetWish().GetSpec()), Number: m.rec.GetStatus().GetAttempt(),
	}
	if err := m.engine.Do(context.Background(), attempt, a); err != nil {
		if !bringsUp(a.Step) {
			m.t.Fatalf("%s: %v\n%s", a.Step, err, m.story())
		}
		m.failed = true
	}
	switch a.Step {
	case engine.StepImages:
		m.images = true
	case engine.StepSignal:
		m.signalled[a.ContainerID] = a.Signal
	}
}

// checkNoted demands that the exit of a container was written down before it is
// removed.
func (m *model) checkNoted(containerID string) {
	for _, c := range m.observe().Containers {
		if c.ID == containerID && c.State == engine.Exited && !noted(m.rec, c.Note.GetContainer(), c.Note.GetAttempt()) {
			m.t.Fatalf("%s is removed before its exit is written down\n%s", containerID, m.story())
		}
	}
}

func (m *model) checkForward(before *sandboxhostv1.SandboxRecord) {
	was, is := before.GetStatus(), m.rec.GetStatus()
	if is.GetAttempt() < was.GetAttempt() || is.GetAttempt() == was.GetAttempt() && is.GetPhase() < was.GetPhase() {
		m.t.Fatalf("went back from %d %v to %d %v\n%s", was.GetAttempt(), was.GetPhase(), is.GetAttempt(), is.GetPhase(), m.story())
	}
}

// settle steps until at rest. A sandbox that waits for a container to end sees
// its grace period pass.
func (m *model) settle() {
	m.t.Helper()
	const limit = 200
	for range limit {
		if !m.step() {
			continue
		}
		if s := m.rec.GetStatus(); len(m.signalled) > 0 && !m.graceOver && len(m.observe().Containers) > 0 && s.GetPhase() >= stopping {
			m.graceOver = true
			continue
		}
		return
	}
	m.t.Fatalf("no rest after %d steps\n%s", limit, m.story())
}

func (m *model) story() string {
	tail := m.trail[max(0, len(m.trail)-40):]
	return strings.Join(tail, "\n") + "\n" + m.rec.String()
}

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

func (m *model) end(name string, exit engine.Exit) {
	m.t.Helper()
	if err := m.engine.End(m.uid, name, exit); err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) alive() int {
	n := 0
	for _, c := range m.observe().Containers {
		if c.State == engine.Running {
			n++
		}
	}
	return n
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
		m.cutOff = false
		m.settle()
		s := m.rec.GetStatus()
		wanted := m.rec.GetWish().GetSpec().GetDesired() == resourcev1.DesiredState_DESIRED_STATE_RUNNING
		switch {
		case !wanted && (s.GetPhase() < stopped || !m.observe().Empty()):
			t.Fatalf("seed %d: stopped, but %v\n%s", seed, s.GetPhase(), m.story())
		case wanted && policy(m.rec) == always && s.GetPhase() != running:
			t.Fatalf("seed %d: should run, but %v\n%s", seed, s.GetPhase(), m.story())
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
	for range 1 + r.IntN(3) {
		if r.IntN(3) == 0 {
			containers = append(containers, command(mem.CommandIgnoreTerm))
		} else {
			containers = append(containers, command("sleep"))
		}
	}
	return specOf(policies[r.IntN(len(policies))], containers...)
}

// disturb does something that may happen at any time.
func (m *model) disturb(r *rand.Rand) {
	name := string(rune('a' + r.IntN(3)))
	switch r.IntN(8) {
	case 0:
		_ = m.engine.End(m.uid, name, engine.Exit{Code: uint32(r.IntN(2))}) // may not run
	case 1:
		m.engine.Vanish(m.uid, name)
	case 2:
		m.wish(func(s *resourcev1.SandboxSpec) { s.Desired = resourcev1.DesiredState(1 + r.IntN(2)) })
	case 3:
		m.wish(func(s *resourcev1.SandboxSpec) { s.Hostname = fmt.Sprintf("h%d", r.IntN(3)) })
	case 4:
		m.cutOff = !m.cutOff
	case 5: // the host was killed: what only the keeper knew is gone
		m.forgetLife()
		m.restart()
	case 6: // the journal is lost
		if o := m.observe(); newestNote(o) != nil && !m.cutOff {
			m.forgetLife()
			m.rec, _ = restore(nil, nil, o, m.boot, m.at())
			m.saved = m.rec
		}
	case 7: // reboot
		m.engine.Reboot()
		m.forgetLife()
		m.boot += "+"
		m.restart()
	}
}

func (m *model) restart() {
	before := m.rec
	m.rec, _ = restore(m.saved, nil, m.observe(), m.boot, m.at())
	m.saved = m.rec
	m.checkForward(before)
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
