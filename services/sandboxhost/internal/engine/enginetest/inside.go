package enginetest

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

func testLimits(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep)
	b.run(a)
	before := find(b.observe(a), containerID(a, "a"))
	update := engine.Action{Step: engine.StepLimits, Container: "a", ContainerID: before.ID}
	const memory = 64 << 20
	for _, want := range []*resourcev1.ResourceLimits{
		{MemoryLimitBytes: new(int64(memory)), CpuLimitMillicores: new(int64(500)), PidsLimit: new(int64(50))},
		{PidsLimit: new(int64(70))}, // the others are lifted
		{},
	} {
		a.Wish = proto.CloneOf(a.Wish)
		a.Wish.Spec.Containers[0].Limits = want
		for range 2 {
			b.must(a, update)
		}
		got := find(b.observe(a), before.ID)
		if !proto.Equal(got.Limits, want) || got.PID != before.PID {
			t.Errorf("got limits %v of process %d, want %v of %d", got.Limits, got.PID, want, before.PID)
		}
		b.e = b.c.Restart(t, func() {})
		if got := find(b.observe(a), before.ID); !proto.Equal(got.Limits, want) {
			t.Errorf("after a restart got limits %v, want %v", got.Limits, want)
		}
	}
	b.terminate(a, "a")
	b.must(a, update) // it does not run any more
	b.clear(a)
}

func testStopSignal(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep, b.f.Sleep)
	a.Wish.Spec.Containers[1].StopSignal = "SIGUSR2"
	b.run(a)
	o := b.observe(a)
	for i, want := range []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR2} {
		if got := engine.StopSignal(o.Containers[i].Note); got != want {
			t.Errorf("container %s: got stop signal %v, want %v", o.Containers[i].ID, got, want)
		}
	}
	b.clear(a)
}

func testCommands(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep)
	b.run(a)
	cmd := engine.Command{ContainerID: containerID(a, "a"), ID: "check", Args: b.f.Exit(3)}
	exec := func(limit time.Duration, args []string) (engine.CommandResult, error) {
		ctx, cancel := context.WithTimeout(b.ctx, limit)
		defer cancel()
		cmd.Args = args
		return b.e.Exec(ctx, cmd)
	}
	for range 2 { // the same id again and again
		if res, err := exec(limit, b.f.Exit(3)); err != nil || res.Code != 3 {
			t.Errorf("got %+v and %v, want code 3", res, err)
		}
	}
	if res, err := exec(limit, b.f.Exit(0)); err != nil || res.Code != 0 {
		t.Errorf("got %+v and %v, want code 0", res, err)
	}
	_, err := exec(limit, b.f.Absent)
	wantKind(t, err, fault.NotFound, fault.Invalid, fault.Denied)
	const short = 500 * time.Millisecond
	for range 2 {
		if _, err := exec(short, b.f.Hang); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v of a command that hangs, want a deadline that is exceeded", err)
		}
	}
	if res, err := exec(limit, b.f.Exit(0)); err != nil || res.Code != 0 {
		t.Errorf("after one that hung got %+v and %v, want code 0", res, err)
	}
	if got := stateOf(b.observe(a), cmd.ContainerID); got != engine.Running {
		t.Errorf("got state %d of the container after the commands, want running", got)
	}
	b.terminate(a, "a")
	if _, err := exec(limit, b.f.Exit(0)); err == nil {
		t.Error("got no error of a command in a container that has ended")
	}
	b.clear(a)
}

func testPreStop(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep, b.f.Sleep, b.f.Sleep)
	for i, args := range [][]string{b.f.Exit(0), b.f.Exit(4), b.f.Hang} {
		a.Wish.Spec.Containers[i].PreStop = &resourcev1.ExecAction{Command: args}
	}
	b.run(a)
	preStop := func(ctx context.Context, name string) error {
		return b.e.Do(ctx, a, engine.Action{Step: engine.StepPreStop, Container: name, ContainerID: containerID(a, name)})
	}
	if err := preStop(b.ctx, "a"); err != nil {
		t.Errorf("got %v of a pre-stop command that ends well", err)
	}
	wantKind(t, preStop(b.ctx, "b"), fault.Invalid)
	const short = 500 * time.Millisecond
	ctx, cancel := context.WithTimeout(b.ctx, short)
	defer cancel()
	if err := preStop(ctx, "c"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v of a pre-stop command that hangs, want a deadline that is exceeded", err)
	}
	b.terminate(a, "a")
	if err := preStop(b.ctx, "a"); err != nil {
		t.Errorf("got %v of a container that has ended, want success", err)
	}
	b.clear(a)
}
