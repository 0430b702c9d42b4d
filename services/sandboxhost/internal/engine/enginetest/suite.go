// Package enginetest is what every engine must pass: the promises of
// engine.Engine as tests.
//
// The engine in memory and the one over containerd run the same suite, so that
// what is tested above with the one holds with the other. It must ask nothing of
// an engine that the contract does not promise. It stands outside the trail.
package enginetest

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// limit bounds every wait of the suite.
const limit = 30 * time.Second

// Fixture says what the engine's images can do.
type Fixture struct {
	// Image is there, or can be had; Missing can be asked for and is not there.
	Image, Missing string
	// Sleep runs until SIGTERM. IgnoreTerm runs until SIGKILL.
	Sleep, IgnoreTerm []string
	// Ignores says whether a process of IgnoreTerm has come so far. Nil if it has at once.
	Ignores func(pid uint32) bool
	// Exit ends at once with a code.
	Exit func(code int) []string
	// Absent is a program that is not in the image.
	Absent []string
	// Hang, as a command beside a container, never ends by itself.
	Hang []string
	// Network is false when there is no network for sandboxes.
	Network bool
}

// Control is one node for a test. All is removed when the test ends.
type Control struct {
	// Engine works on the node.
	Engine engine.Engine
	// Restart ends the engine as a killed process ends, calls meanwhile, and
	// returns a new engine on the same node. Never nil.
	Restart func(t *testing.T, meanwhile func()) engine.Engine
	// Silence keeps the shim of a sandbox from answering, or lets it go on.
	Silence func(t *testing.T, uid id.Sandbox, silent bool)
	// End ends the container by a signal, without the engine.
	End func(t *testing.T, c engine.Container, signal syscall.Signal)
}

// Run runs the suite. New makes a node of its own for each test.
func Run(t *testing.T, f Fixture, newControl func(t *testing.T) *Control) {
	tests := map[string]func(t *testing.T, b *bench){
		"nothing is no error":                testNothing,
		"a life, each step twice":            testLife,
		"exit code and hint":                 testExit,
		"a container that ignores the stop":  testIgnoreTerm,
		"image that is not there":            testMissingImage,
		"program that is not there":          testAbsentProgram,
		"what must not be removed":           testConflicts,
		"survivors of a restart":             testSurvivors,
		"exit while the engine was away":     testExitWhileAway,
		"half made, then removed":            testHalfMade,
		"half made, found after a restart":   testHalfMadeRestart,
		"a second attempt beside namespaces": testSecondAttempt,
		"a shim that does not answer":        testSilentShim,
		"sandboxes are apart":                testApart,
		"limits change in place":             testLimits,
		"stop signal":                        testStopSignal,
		"commands beside a container":        testCommands,
		"pre-stop command":                   testPreStop,
		"what is written lives on":           testWrittenLivesOn,
		"all parts are listed":               testInventory,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newControl(t)
			test(t, &bench{t: t, f: f, c: c, e: c.Engine, ctx: t.Context()})
		})
	}
}

// bench is a test's hold on one engine.
type bench struct {
	t   *testing.T
	f   Fixture
	c   *Control
	e   engine.Engine
	ctx context.Context //nolint:containedctx // of one test
}

// attempt makes the first attempt of a new sandbox; its containers are called a,
// b, c.
func (b *bench) attempt(commands ...[]string) engine.Attempt {
	b.t.Helper()
	spec := &resourcev1.SandboxSpec{Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING}
	if !b.f.Network {
		spec.Network = resourcev1.NetworkMode_NETWORK_MODE_HOST
	}
	for i, c := range commands {
		spec.Containers = append(spec.Containers, &resourcev1.ContainerSpec{
			Name: string(rune('a' + i)), Image: b.f.Image, Command: c,
		})
	}
	hash, err := engine.SpecHash(spec)
	if err != nil {
		b.t.Fatal(err)
	}
	return engine.Attempt{
		Wish: &sandboxhostv1.Wish{
			Uid: string(id.NewSandbox()), Name: "suite", Manager: "local", Generation: 1, Spec: spec,
		},
		SpecHash: hash, Number: 1,
	}
}

func uidOf(a engine.Attempt) id.Sandbox { return id.Sandbox(a.Wish.GetUid()) }

func containerID(a engine.Attempt, name string) string {
	return engine.ContainerID(uidOf(a), name, a.Number)
}

func (b *bench) do(a engine.Attempt, action engine.Action) error {
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	return b.e.Do(ctx, a, action)
}

func (b *bench) must(a engine.Attempt, action engine.Action) {
	b.t.Helper()
	if err := b.do(a, action); err != nil {
		b.t.Fatalf("%s %s: %v", action.Step, action.Container, err)
	}
}

// prepare takes an attempt to where its containers can be made.
func (b *bench) prepare(a engine.Attempt) {
	b.t.Helper()
	b.must(a, engine.Action{Step: engine.StepImages})
	b.must(a, engine.Action{Step: engine.StepNamespaces})
	if b.f.Network {
		b.must(a, engine.Action{Step: engine.StepNetwork})
	}
}

func (b *bench) create(a engine.Attempt, name string) {
	b.t.Helper()
	b.must(a, engine.Action{Step: engine.StepCreate, Container: name, ContainerID: containerID(a, name)})
}

func (b *bench) start(a engine.Attempt, name string) {
	b.t.Helper()
	b.must(a, engine.Action{Step: engine.StepStart, Container: name, ContainerID: containerID(a, name)})
}

func (b *bench) signal(a engine.Attempt, name string, s syscall.Signal) {
	b.t.Helper()
	b.must(a, engine.Action{Step: engine.StepSignal, Container: name, ContainerID: containerID(a, name), Signal: s})
}

// run takes an attempt to where all its containers were started.
func (b *bench) run(a engine.Attempt) {
	b.t.Helper()
	b.prepare(a)
	for _, c := range a.Wish.GetSpec().GetContainers() {
		b.create(a, c.GetName())
		b.start(a, c.GetName())
	}
}

// clear removes a sandbox as a keeper would, and demands that nothing is left.
func (b *bench) clear(a engine.Attempt) {
	b.t.Helper()
	for _, c := range b.observe(a).Containers {
		b.must(a, engine.Action{Step: engine.StepSignal, ContainerID: c.ID, Signal: syscall.SIGKILL})
		if c.State == engine.Running {
			b.await(a, "ended", func(o engine.Observed) bool { return stateOf(o, c.ID) != engine.Running })
		}
		b.must(a, engine.Action{Step: engine.StepDelete, ContainerID: c.ID})
	}
	b.must(a, engine.Action{Step: engine.StepRelease})
	b.must(a, engine.Action{Step: engine.StepLogs})
	if o := b.observe(a); !o.Empty() || o.Logs {
		b.t.Errorf("left after the removal: %+v", o)
	}
	if b.survives(a) {
		b.t.Error("is a survivor after the removal")
	}
}

func (b *bench) observe(a engine.Attempt) engine.Observed {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	o, err := b.e.Observe(ctx, uidOf(a))
	if err != nil {
		b.t.Fatalf("observe: %v", err)
	}
	return o
}

func (b *bench) survives(a engine.Attempt) bool {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	uids, err := b.e.Survivors(ctx)
	if err != nil {
		b.t.Fatalf("list survivors: %v", err)
	}
	return slices.Contains(uids, uidOf(a))
}

// await observes after each hint, and now and then, until it is as asked.
func (b *bench) await(a engine.Attempt, what string, is func(engine.Observed) bool) engine.Observed {
	b.t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		o := b.observe(a)
		if is(o) {
			return o
		}
		select {
		case <-b.e.Changes():
		case <-again.C:
		case <-deadline.C:
			b.t.Fatalf("not %s after %s, but: %+v", what, limit, o)
		}
	}
}

// terminate sends SIGTERM until the container called name has ended: the kernel
// drops one that comes before the first process of a pid namespace asks for it.
func (b *bench) terminate(a engine.Attempt, name string) engine.Exit {
	b.t.Helper()
	b.await(a, "ended", func(o engine.Observed) bool {
		b.signal(a, name, syscall.SIGTERM)
		return stateOf(o, containerID(a, name)) == engine.Exited
	})
	return b.awaitExit(a, name)
}

// awaitExit waits until the container called name has ended.
func (b *bench) awaitExit(a engine.Attempt, name string) engine.Exit {
	b.t.Helper()
	key := containerID(a, name)
	o := b.await(a, "ended", func(o engine.Observed) bool { return stateOf(o, key) == engine.Exited })
	c := find(o, key)
	if c.Exit == nil {
		b.t.Fatalf("container %s has ended without an exit: %+v", key, c)
	}
	return *c.Exit
}

func find(o engine.Observed, key string) engine.Container {
	for _, c := range o.Containers {
		if c.ID == key {
			return c
		}
	}
	return engine.Container{}
}

func stateOf(o engine.Observed, key string) engine.ContainerState { return find(o, key).State }

func wantKind(t *testing.T, err error, kinds ...fault.Kind) {
	t.Helper()
	if !slices.ContainsFunc(kinds, func(k fault.Kind) bool { return errors.Is(err, k) }) {
		t.Errorf("got %v of kind %v, want one of %v", err, fault.KindOf(err), kinds)
	}
}
