package enginetest

import (
	"context"
	"syscall"
	"testing"
	"time"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
)

func testNothing(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep)
	if o := b.observe(a); !o.Empty() || o.Logs || o.UID != uidOf(a) {
		t.Errorf("got %+v, want nothing of %s", o, uidOf(a))
	}
	if b.survives(a) {
		t.Error("a sandbox that was never made survives")
	}
	b.clear(a) // to remove nothing is success
}

func testLife(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep)
	for range 2 {
		b.prepare(a)
	}
	o := b.observe(a)
	if !o.Namespaces || b.f.Network && len(o.Addresses) != 1 || len(o.Containers) != 0 {
		t.Fatalf("prepared, got %+v", o)
	}
	for range 2 {
		b.create(a, "a")
	}
	o = b.observe(a)
	if len(o.Containers) != 1 || o.Containers[0].State != engine.Created || !o.Containers[0].Task {
		t.Fatalf("created, got %+v, want one that can be started", o)
	}
	note := o.Containers[0].Note
	if note.GetWish().GetUid() != a.Wish.GetUid() || note.GetAttempt() != 1 || note.GetContainer() != "a" ||
		note.GetSpecHash() != a.SpecHash || note.GetWish().GetSpec().GetContainers()[0].GetImage() != b.f.Image {
		t.Errorf("got note %v, want the whole wish", note)
	}
	for range 2 {
		b.start(a, "a")
	}
	o = b.observe(a)
	c := find(o, containerID(a, "a"))
	if c.State != engine.Running || c.PID == 0 || c.StartedAt.IsZero() || c.Exit != nil || !b.survives(a) {
		t.Fatalf("started, got %+v", c)
	}
	if exit := b.terminate(a, "a"); exit.Unknown || exit.At.IsZero() || exit.OOMKilled || exit.OOMKills > 0 {
		t.Errorf("stopped, got %+v", exit)
	}
	b.signal(a, "a", syscall.SIGTERM)
	for range 2 {
		b.must(a, engine.Action{Step: engine.StepDelete, ContainerID: containerID(a, "a")})
	}
	for range 2 {
		b.must(a, engine.Action{Step: engine.StepRelease})
	}
	for range 2 {
		b.clear(a)
	}
}

func testExit(t *testing.T, b *bench) {
	a := b.attempt(b.f.Exit(7), b.f.Exit(0))
	b.run(a)
	for name, want := range map[string]uint32{"a": 7, "b": 0} {
		if exit := b.awaitExit(a, name); exit.Unknown || exit.Code != want {
			t.Errorf("container %s: got %+v, want code %d", name, exit, want)
		}
	}
	b.clear(a)

	a = b.attempt(b.f.Sleep)
	b.run(a)
	b.signal(a, "a", syscall.SIGKILL)
	timeout := time.After(limit)
	for done := false; !done; {
		select {
		case uid := <-b.e.Changes():
			done = uid == uidOf(a) || uid == ""
		case <-timeout:
			t.Fatal("no hint that the container has ended")
		}
	}
	if exit := b.awaitExit(a, "a"); exit.Unknown || exit.Code != 128+9 {
		t.Errorf("killed, got %+v, want code 137", exit)
	}
	b.clear(a)
}

func testIgnoreTerm(t *testing.T, b *bench) {
	a := b.attempt(b.f.IgnoreTerm)
	b.run(a)
	b.await(a, "ignoring SIGTERM", func(o engine.Observed) bool {
		return b.f.Ignores == nil || b.f.Ignores(find(o, containerID(a, "a")).PID)
	})
	b.signal(a, "a", syscall.SIGTERM)
	if got := stateOf(b.observe(a), containerID(a, "a")); got != engine.Running {
		t.Errorf("after SIGTERM got state %d, want running", got)
	}
	b.signal(a, "a", syscall.SIGKILL)
	if exit := b.awaitExit(a, "a"); exit.Code != 128+9 {
		t.Errorf("got %+v, want code 137", exit)
	}
	b.clear(a)
}

func testMissingImage(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep)
	a.Wish.Spec.Containers[0].Image = b.f.Missing
	wantKind(t, b.do(a, engine.Action{Step: engine.StepImages}), fault.NotFound)
	if o := b.observe(a); !o.Empty() {
		t.Errorf("left: %+v", o)
	}
}

func testAbsentProgram(t *testing.T, b *bench) {
	a := b.attempt(b.f.Absent)
	b.prepare(a)
	create := engine.Action{Step: engine.StepCreate, Container: "a", ContainerID: containerID(a, "a")}
	err := b.do(a, create)
	if err == nil {
		create.Step = engine.StepStart
		err = b.do(a, create)
	}
	wantKind(t, err, fault.NotFound, fault.Invalid, fault.Denied)
	b.clear(a)
}

func testConflicts(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep)
	b.run(a)
	wantKind(t, b.do(a, engine.Action{Step: engine.StepDelete, ContainerID: containerID(a, "a")}), fault.Conflict)
	wantKind(t, b.do(a, engine.Action{Step: engine.StepRelease}), fault.Conflict)
	if got := stateOf(b.observe(a), containerID(a, "a")); got != engine.Running {
		t.Errorf("got state %d, want running", got)
	}
	b.clear(a)
}

func testSurvivors(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep, b.f.Sleep)
	b.run(a)
	before := b.observe(a)
	b.e = b.c.Restart(t, func() {})
	after := b.observe(a)
	if !b.survives(a) || !after.Namespaces || len(after.Containers) != 2 {
		t.Fatalf("got %+v, want what was there: %+v", after, before)
	}
	for i, c := range after.Containers {
		was := before.Containers[i]
		if c.ID != was.ID || c.PID != was.PID || c.State != engine.Running || !c.StartedAt.Equal(was.StartedAt) {
			t.Errorf("got %+v, want %+v", c, was)
		}
	}
	if b.f.Network && (len(after.Addresses) != 1 || after.Addresses[0] != before.Addresses[0]) {
		t.Errorf("got addresses %v, want %v", after.Addresses, before.Addresses)
	}
	b.clear(a)
}

func testExitWhileAway(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep)
	b.run(a)
	c := find(b.observe(a), containerID(a, "a"))
	b.e = b.c.Restart(t, func() { b.c.End(t, c, syscall.SIGKILL) })
	if exit := b.awaitExit(a, "a"); exit.Unknown || exit.Code != 128+9 {
		t.Errorf("got %+v, want code 137", exit)
	}
	b.clear(a)
}

func testHalfMade(t *testing.T, b *bench) {
	steps := func(a engine.Attempt) []engine.Action {
		return []engine.Action{
			{Step: engine.StepImages},
			{Step: engine.StepNamespaces},
			{Step: engine.StepNetwork},
			{Step: engine.StepCreate, Container: "a", ContainerID: containerID(a, "a")},
			{Step: engine.StepStart, Container: "a", ContainerID: containerID(a, "a")},
		}
	}
	for cut := range len(steps(b.attempt(b.f.Sleep))) {
		a := b.attempt(b.f.Sleep)
		for i, action := range steps(a)[:cut+1] {
			if action.Step == engine.StepNetwork && !b.f.Network {
				continue
			}
			if i == cut {
				ctx, cancel := context.WithTimeout(b.ctx, 3*time.Millisecond)
				_ = b.e.Do(ctx, a, action) // cut short or done: both must be removable
				cancel()
				continue
			}
			b.must(a, action)
		}
		b.clear(a)
	}
}

func testHalfMadeRestart(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep)
	b.prepare(a)
	b.create(a, "a")
	b.e = b.c.Restart(t, func() {})
	if o := b.observe(a); !b.survives(a) || stateOf(o, containerID(a, "a")) != engine.Created {
		t.Fatalf("got %+v, want a created container", o)
	}
	b.create(a, "a")
	b.start(a, "a")
	if c := find(b.observe(a), containerID(a, "a")); c.State != engine.Running {
		t.Errorf("got %+v, want it running", c)
	}
	b.clear(a)
}

func testSecondAttempt(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep)
	b.run(a)
	before := b.observe(a)
	b.signal(a, "a", syscall.SIGKILL)
	b.awaitExit(a, "a")
	b.must(a, engine.Action{Step: engine.StepDelete, ContainerID: containerID(a, "a")})
	a.Number = 2
	b.run(a)
	after := b.observe(a)
	if len(after.Containers) != 1 || after.Containers[0].ID == before.Containers[0].ID || after.Containers[0].Note.GetAttempt() != 2 {
		t.Errorf("got %+v, want one container of attempt 2", after)
	}
	if b.f.Network && after.Addresses[0] != before.Addresses[0] {
		t.Errorf("got address %v, want %v again", after.Addresses, before.Addresses)
	}
	b.clear(a)
}

// While its shim stands still a container is what it was, can be told to end, and is in
// the way of no other sandbox. What then ended is told once the shim goes on.
func testSilentShim(t *testing.T, b *bench) {
	a, other := b.attempt(b.f.Sleep, b.f.IgnoreTerm), b.attempt(b.f.Sleep)
	b.run(a)
	b.run(other)
	was := b.observe(a)
	b.c.Silence(t, uidOf(a), true)
	for range 2 { // also by who did not see it before
		o := b.observe(a)
		if !o.Silent || len(o.Containers) != 2 || o.Containers[0].PID != was.Containers[0].PID || o.Containers[1].State != engine.Running {
			t.Fatalf("got %+v, want it silent, and as it was: %+v", o, was)
		}
		b.e = b.c.Restart(t, func() {})
	}
	if o := b.observe(other); o.Silent || o.Containers[0].State != engine.Running {
		t.Errorf("got %+v, want the other untouched", o)
	}
	wantKind(t, b.do(a, engine.Action{Step: engine.StepDelete, ContainerID: containerID(a, "a")}), fault.Unavailable)
	b.signal(a, "a", syscall.SIGKILL)
	b.c.Silence(t, uidOf(a), false)
	if exit := b.awaitExit(a, "a"); exit.Unknown || exit.Code != 128+uint32(syscall.SIGKILL) {
		t.Errorf("got %+v, want code 137", exit)
	}
	b.c.Silence(t, uidOf(a), true)
	b.must(a, engine.Action{Step: engine.StepEndShim})
	b.must(a, engine.Action{Step: engine.StepEndShim}) // there is none any more
	if exit := b.awaitExit(a, "b"); !exit.Unknown {
		t.Errorf("got %+v, want an unknown exit", exit)
	}
	if o := b.observe(other); o.Containers[0].State != engine.Running {
		t.Errorf("got %+v, want the other untouched", o)
	}
	b.await(a, "removed", func(engine.Observed) bool { // once the runtime has noticed
		remove := func(name string) error {
			return b.do(a, engine.Action{Step: engine.StepDelete, ContainerID: containerID(a, name)})
		}
		return remove("a") == nil && remove("b") == nil
	})
	b.clear(a)
	b.clear(other)
}

func testApart(t *testing.T, b *bench) {
	one, two := b.attempt(b.f.Sleep), b.attempt(b.f.Sleep)
	b.run(one)
	b.run(two)
	if b.f.Network && b.observe(one).Addresses[0] == b.observe(two).Addresses[0] {
		t.Errorf("both have the address %v", b.observe(one).Addresses)
	}
	b.clear(one)
	if c := find(b.observe(two), containerID(two, "a")); c.State != engine.Running {
		t.Errorf("got %+v, want the other untouched", c)
	}
	b.clear(two)
}

func testWrittenLivesOn(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep)
	a.Wish.Spec.ScratchVolumes = []*resourcev1.ScratchVolume{{Name: "work"}}
	a.Wish.Spec.Containers[0].Scratch = []*resourcev1.ScratchMount{{Volume: "work", Path: "/work"}}
	b.run(a)
	b.signal(a, "a", syscall.SIGKILL)
	b.awaitExit(a, "a")
	b.must(a, engine.Action{Step: engine.StepDelete, ContainerID: containerID(a, "a")})
	b.must(a, engine.Action{Step: engine.StepRelease})
	if o := b.observe(a); !o.Empty() || !o.Logs || !b.survives(a) {
		t.Errorf("given back, got %+v, want nothing but what it wrote", o)
	}
	b.e = b.c.Restart(t, func() {})
	a.Number = 2
	b.run(a)
	b.clear(a)
}
