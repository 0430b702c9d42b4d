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
	unhealthy bool
	cutOff    bool
	held      bool
	deadline  bool // of the hold is over
	takenDown bool // since the host ran last
	graceOver bool
	shimOver  bool // has not answered for too long
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
	m.images, m.failed, m.graceOver, m.shimOver, m.unhealthy = false, false, false, false, false
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
		CutOff: m.cutOff, Held: m.held, BackoffOver: true, ImagesReady: m.images, Failed: m.failed, Unhealthy: m.unhealthy,
		SilentOver: m.shimOver && m.observe().Silent,
		GraceOver:  make(map[string]bool), Noted: m.noted, Signalled: m.signalled,
	}
	for _, c := range in.Observed.Containers {
		in.GraceOver[c.ID] = m.graceOver || m.held && m.deadline
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
		enter(m.rec, d, told{}, m.at())
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
	if m.held && bringsUp(a.Step) {
		m.t.Fatalf("%s is done under a hold\n%s", a.Step, m.story())
	}
	if a.Step == engine.StepCreate {
		for _, c := range m.observe().Containers {
			if c.State == engine.Running && c.Note.GetContainer() == a.Container {
				m.t.Fatalf("a second container of %s is made beside a live one\n%s", a.Container, m.story())
			}
		}
	}
	if a.Step == engine.StepCreate || a.Step == engine.StepStart {
		m.checkOrder(a.Container)
	}
	if a.Step == engine.StepDelete {
		m.checkNoted(a.ContainerID)
	}
	if a.Step == engine.StepSignal || a.Step == engine.StepPreStop {
		m.rec = proto.CloneOf(m.rec)
		beginStop(m.rec, a.ContainerID, m.at())
		m.saved = m.rec
	}
	attempt := engine.Attempt{
		Wish: m.rec.GetWish(), SpecHash: m.hash(m.rec.GetWish().GetSpec()), Number: m.rec.GetStatus().GetAttempt(),
	}
	if err := m.engine.Do(context.Background(), attempt, a); err != nil && a.Step != engine.StepPreStop {
		if !bringsUp(a.Step) {
			m.t.Fatalf("%s: %v\n%s", a.Step, err, m.story())
		}
		m.failed = m.rec.GetStatus().GetPhase() < running
	}
	switch a.Step {
	case engine.StepImages:
		m.images = true
	case engine.StepSignal:
		m.checkPreStopped(a)
		m.signalled[a.ContainerID] = a.Signal
	case engine.StepPreStop:
		endPreStop(m.rec, a.ContainerID, m.at())
		m.saved = m.rec
	}
}

// checkOrder demands that init containers run alone, one after the other, and that
// no other is made before all of them have ended well.
func (m *model) checkOrder(name string) {
	if (Input{Record: m.rec, Observed: m.observe()}).initOver() && !containerSpec(m.rec, name).GetInit() {
		return // what was written about them may be lost
	}
	for _, spec := range startOrder(m.rec.GetWish().GetSpec().GetContainers()) {
		if spec.GetName() == name {
			return
		}
		for _, s := range m.rec.GetStatus().GetContainers() {
			if spec.GetInit() && s.GetName() == spec.GetName() && (s.GetExit() == nil || badExit(s.GetExit())) {
				m.t.Fatalf("%s is made before init container %s has ended well\n%s", name, spec.GetName(), m.story())
			}
		}
	}
}

// checkPreStopped demands that a container is asked to end only after its pre-stop
// command.
func (m *model) checkPreStopped(a engine.Action) {
	for _, c := range m.observe().Containers {
		if c.ID == a.ContainerID && c.Made().GetPreStop() != nil && a.Signal != syscall.SIGKILL && m.engine.PreStops()[c.ID] == 0 {
			m.t.Fatalf("%s is asked to end before its pre-stop command\n%s", c.ID, m.story())
		}
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
		if s := m.rec.GetStatus(); m.observe().Silent && !m.shimOver && s.GetPhase() != running {
			m.shimOver = true
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

// disturb does something that may happen at any time.
func (m *model) disturb(r *rand.Rand) {
	name := string(rune('a' + r.IntN(3)))
	switch r.IntN(13) {
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
			m.rec, _ = restore(nil, nil, o, lifeOf{boot: m.boot}, m.at())
			m.saved = m.rec
		}
	case 7: // somebody tidies interfaces up
		m.engine.Detach(m.uid)
	case 8: // reboot, or the node is taken down and up
		m.takenDown = r.IntN(2) == 0
		m.reboot()
		m.takenDown = false
	case 9: // a hold is placed or lifted
		m.held, m.deadline = !m.held, r.IntN(3) == 0
	case 11: // a probe says no
		m.unhealthy = m.rec.GetStatus().GetPhase() == running
	case 12: // the shim hangs, or goes on
		m.engine.Silence(m.uid, r.IntN(2) == 0)
	case 10: // other limits, in place
		m.wish(func(s *resourcev1.SandboxSpec) {
			c := s.GetContainers()[r.IntN(len(s.GetContainers()))]
			c.Limits = &resourcev1.ResourceLimits{PidsLimit: new(int64(1 + r.IntN(3)))}
		})
	}
}

func (m *model) reboot() {
	m.engine.Reboot()
	m.forgetLife()
	if !m.takenDown {
		m.boot += "+"
	}
	m.restart()
}

func (m *model) restart() {
	before := m.rec
	m.rec, _ = restore(m.saved, nil, m.observe(), lifeOf{boot: m.boot, takenDown: m.takenDown}, m.at())
	m.saved = m.rec
	m.checkForward(before)
}
