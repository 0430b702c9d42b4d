package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/logs"
	"staddle.internal/services/sandboxhost/internal/testimage"
)

// attempt makes the first attempt of a new sandbox.
func attempt(t *testing.T, ref string, specs ...*resourcev1.ContainerSpec) engine.Attempt {
	t.Helper()
	spec := &resourcev1.SandboxSpec{Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING}
	for i, s := range specs {
		s.Name, s.Image = string(rune('a'+i)), ref
		spec.Containers = append(spec.Containers, s)
	}
	hash, err := engine.SpecHash(spec)
	if err != nil {
		t.Fatal(err)
	}
	return engine.Attempt{
		Wish:     &sandboxhostv1.Wish{Uid: string(id.NewSandbox()), Name: "web", Manager: "local", Generation: 1, Spec: spec},
		SpecHash: hash, Number: 1,
	}
}

func prog(args ...string) *resourcev1.ContainerSpec {
	return &resourcev1.ContainerSpec{Command: append([]string{testimage.Program}, args...)}
}

func uidOf(a engine.Attempt) id.Sandbox { return id.Sandbox(a.Wish.GetUid()) }

// run takes an attempt to where all containers were started.
func (n *node) run(t *testing.T, a engine.Attempt) {
	t.Helper()
	actions := []engine.Action{{Step: engine.StepImages}, {Step: engine.StepNamespaces}, {Step: engine.StepNetwork}}
	for _, c := range a.Wish.GetSpec().GetContainers() {
		actions = append(actions,
			engine.Action{Step: engine.StepCreate, Container: c.GetName()},
			engine.Action{Step: engine.StepStart, Container: c.GetName()})
	}
	for _, action := range actions {
		if err := n.engine.Do(t.Context(), a, action); err != nil {
			t.Fatalf("%s: %v", action.Step, err)
		}
	}
}

// await observes until it is as asked.
func (n *node) await(t *testing.T, uid id.Sandbox, what string, is func(engine.Observed) bool) engine.Observed {
	t.Helper()
	limit := time.NewTimer(waitLimit)
	defer limit.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		o, err := n.engine.Observe(t.Context(), uid)
		if err == nil && is(o) {
			return o
		}
		select {
		case <-n.engine.Changes():
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("not %s, but %+v, %v", what, o, err)
		}
	}
}

func (n *node) awaitExit(t *testing.T, uid id.Sandbox) engine.Exit {
	t.Helper()
	o := n.await(t, uid, "ended", func(o engine.Observed) bool {
		return len(o.Containers) > 0 && o.Containers[0].State == engine.Exited
	})
	return *o.Containers[0].Exit
}

// clear removes a sandbox.
func (n *node) clear(t *testing.T, uid id.Sandbox) {
	t.Helper()
	if err := n.removeOne(t.Context(), uid); err != nil {
		t.Fatalf("remove sandbox: %v", err)
	}
	if o, err := n.engine.Observe(t.Context(), uid); err != nil || !o.Empty() || o.Logs {
		t.Fatalf("left: %+v, %v", o, err)
	}
}

// output reads all that container a wrote to one stream, once it has ended or
// the marker was seen.
func (n *node) output(t *testing.T, uid id.Sandbox, stderr bool, marker string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	var b strings.Builder
	at := logs.Position{UID: uid, Container: "a", Attempt: 1, Stdout: !stderr, Stderr: stderr}
	err := n.engine.Logs().Read(ctx, at, logs.Mode{Follow: true, Tail: -1}, func(c logs.Chunk) error {
		b.Write(c.Data)
		if marker != "" && strings.Contains(b.String(), marker) {
			return io.EOF
		}
		return nil
	})
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("read logs: %v; so far:\n%s", err, b.String())
	}
	return b.String()
}

func pushed(t *testing.T) string {
	t.Helper()
	ref := testimage.Serve(t) + "/test/prog:1"
	testimage.Push(t, ref, testimage.New(t))
	return ref
}

func TestEngine_KeepsExitWhileContainerdIsDown(t *testing.T) {
	n := newNode(t)
	ref := pushed(t)
	during := attempt(t, ref, prog("exit-after", "10000", "7"), prog("sleep")) // long after containerd is down
	before := attempt(t, ref, prog("exit", "5"))
	after := attempt(t, ref, prog("sleep"))
	for _, a := range []engine.Attempt{before, after, during} {
		n.run(t, a)
	}
	n.awaitExit(t, uidOf(before))
	survivor, err := n.engine.Observe(t.Context(), uidOf(after))
	if err != nil {
		t.Fatal(err)
	}
	pid := n.await(t, uidOf(during), "running", func(o engine.Observed) bool { return len(o.Containers) == 2 }).Containers[0].PID
	n.Kill(t)
	awaitGone(t, pid)
	if _, err := n.engine.Observe(t.Context(), uidOf(after)); err == nil {
		t.Error("containerd is down and a question was answered")
	}
	n.Up(t)
	for uid, want := range map[id.Sandbox]uint32{uidOf(during): 7, uidOf(before): 5} {
		if exit := n.awaitExit(t, uid); exit.Unknown || exit.Code != want {
			t.Errorf("sandbox %s: got %+v, want code %d", uid, exit, want)
		}
	}
	again := n.await(t, uidOf(after), "observed", func(o engine.Observed) bool { return len(o.Containers) == 1 })
	if again.Containers[0].PID != survivor.Containers[0].PID || again.Containers[0].State != engine.Running {
		t.Errorf("got %+v, want it untouched: %+v", again, survivor)
	}
	for _, a := range []engine.Attempt{during, before, after} {
		n.clear(t, uidOf(a))
	}
}

// awaitGone waits until a process has ended, dead or a zombie.
func awaitGone(t *testing.T, pid uint32) {
	t.Helper()
	limit := time.NewTimer(waitLimit)
	defer limit.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for syscall.Kill(int(pid), 0) == nil {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("process %d has not ended", pid)
		}
	}
}

func TestEngine_ShimKilledIsUnknownExit(t *testing.T) {
	n := newNode(t)
	a := attempt(t, pushed(t), prog("sleep"), prog("sleep"))
	n.run(t, a)
	shims := n.Shims(t)
	if len(shims) != 1 {
		t.Fatalf("two containers of one sandbox have shims %v, want one", shims)
	}
	if err := syscall.Kill(shims[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if exit := n.awaitExit(t, uidOf(a)); !exit.Unknown {
		t.Errorf("got %+v, want unknown", exit)
	}
	n.clear(t, uidOf(a))
}

func TestEngine_KilledForMemory(t *testing.T) {
	n := newNode(t)
	c := prog("eat")
	memory := int64(16 << 20)
	c.Limits = &resourcev1.ResourceLimits{MemoryLimitBytes: &memory}
	a := attempt(t, pushed(t), c)
	n.run(t, a)
	if exit := n.awaitExit(t, uidOf(a)); !exit.OOMKilled || exit.OOMKills != 1 || exit.Code != killed {
		t.Errorf("got %+v, want killed for memory", exit)
	}
	n.clear(t, uidOf(a))
}

func TestEngine_WhatAContainerSees(t *testing.T) {
	n := newNode(t)
	c := prog("show", "one two", "")
	c.User, c.WorkingDir = "app", "/tmp"
	c.Env = []*resourcev1.EnvironmentVariable{{Name: "FROM_SPEC", Value: "a=b c"}, {Name: "FROM_IMAGE", Value: "replaced"}}
	a := attempt(t, pushed(t), c)
	n.run(t, a)
	o, err := n.engine.Observe(t.Context(), uidOf(a))
	if err != nil || len(o.Addresses) != 1 {
		t.Fatalf("got %+v, %v, want an address", o, err)
	}
	got := n.output(t, uidOf(a), false, "\nend\n")
	for _, want := range []string{
		"hostname=web\n", "uid=1000\ngid=1000\n", "cwd=/tmp\n", "args=/bin/prog show one two \n",
		"env:FROM_SPEC=a=b c\n", "env:FROM_IMAGE=replaced\n", "env:PATH=/bin\n",
		"/etc/hostname:web\n", fmt.Sprintf("/etc/hosts:%s\tweb\n", o.Addresses[0]), "addr:" + o.Addresses[0].String() + "/24\n",
		"/proc/self/status:NoNewPrivs:\t1\n", "/proc/self/status:Seccomp:\t2\n", "/proc/self/status:CapEff:\t0000000000000000\n",
		"/proc/self/status:CapBnd:\t00000000000405fb\n", "/proc/self/status:Groups:\t2000\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	for line := range strings.Lines(got) {
		if name, ok := strings.CutPrefix(line, "fd:"); ok && !strings.HasPrefix(name, "0:") && !strings.HasPrefix(name, "1:") &&
			!strings.HasPrefix(name, "2:") && !strings.Contains(name, "anon_inode") && !strings.Contains(name, "/proc/") && !strings.Contains(name, "/sys/fs/cgroup/") { // Go itself looks at its limits
			t.Errorf("open in the container: %s", name)
		}
	}
	n.clear(t, uidOf(a))
}

func TestEngine_NetworkReachesNode(t *testing.T) {
	n := newNode(t)
	gateway := n.cfg.Network.Subnet.Addr().Next()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(gateway, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	n.end()
	n.cfg.Network.AllowNodePorts = []string{fmt.Sprintf("tcp/%d", l.Addr().(*net.TCPAddr).Port)}
	n.begin(t)
	a := attempt(t, pushed(t), prog("connect", l.Addr().String()))
	n.run(t, a)
	if err := l.SetDeadline(time.Now().Add(waitLimit)); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	from := netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr()
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	o, err := n.engine.Observe(t.Context(), uidOf(a))
	if err != nil || len(o.Addresses) != 1 || o.Addresses[0] != from {
		t.Errorf("connection from %s, sandbox is %+v, %v", from, o, err)
	}
	if exit := n.awaitExit(t, uidOf(a)); exit.Code != 0 {
		t.Errorf("got %+v", exit)
	}
	n.clear(t, uidOf(a))
}

func TestEngine_OutputIsWholeOverRestart(t *testing.T) {
	n := newNode(t)
	const lines = 2_000_000 // far more than its pipe of 1 MiB holds, so that it cannot end while nobody reads
	a := attempt(t, pushed(t), prog("print-exit", fmt.Sprint(lines)))
	n.run(t, a)
	n.end()
	n.begin(t)
	if exit := n.awaitExit(t, uidOf(a)); exit.Code != 0 {
		t.Errorf("got %+v", exit)
	}
	got := n.output(t, uidOf(a), false, "")
	want := new(strings.Builder)
	for i := range lines {
		fmt.Fprintf(want, "line %d\n", i)
	}
	if got != want.String() {
		t.Errorf("got %d bytes, want %d, the same: %t", len(got), want.Len(), got == want.String())
	}
	if got := strings.Count(n.output(t, uidOf(a), true, ""), "\n"); got != lines/10 {
		t.Errorf("got %d lines of errors, want %d", got, lines/10)
	}
	n.clear(t, uidOf(a))
}

func TestEngine_HostNetwork(t *testing.T) {
	n := newNode(t)
	a := attempt(t, pushed(t), prog("show"))
	a.Wish.Spec.Network = resourcev1.NetworkMode_NETWORK_MODE_HOST
	n.run(t, a)
	got := n.output(t, uidOf(a), false, "\nend\n")
	gateway := n.cfg.Network.Subnet.Addr().Next().String()
	if !strings.Contains(got, "addr:"+gateway+"/24\n") || !strings.Contains(got, "hostname=web\n") {
		t.Errorf("want the node's addresses and an own host name:\n%s", got)
	}
	o, err := n.engine.Observe(t.Context(), uidOf(a))
	if err != nil || len(o.Addresses) != 0 || !o.Namespaces {
		t.Errorf("got %+v, %v", o, err)
	}
	n.clear(t, uidOf(a))
}

// containerd that dies while it removes the folder of a task leaves a hidden one,
// and can never remove another of that name again.
// A shim that does not answer when containerd starts is forgotten by it. It must not
// be in the way of the next attempt, nor stay behind.
func TestEngine_HungShimIsInNobodysWay(t *testing.T) {
	n := newNode(t)
	a := attempt(t, pushed(t), prog("sleep"), prog("sleep"))
	n.run(t, a)
	hung := n.Shims(t)
	if len(hung) != 1 {
		t.Fatalf("got shims %v, want one", hung)
	}
	if err := syscall.Kill(hung[0], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	n.Kill(t)
	n.Up(t)
	if exit := n.awaitExit(t, uidOf(a)); !exit.Unknown {
		t.Errorf("got %+v, want unknown", exit)
	}
	o := n.await(t, uidOf(a), "ended", func(o engine.Observed) bool {
		return !slices.ContainsFunc(o.Containers, func(c engine.Container) bool { return c.State != engine.Exited })
	})
	for _, c := range o.Containers {
		remove := engine.Action{Step: engine.StepDelete, Container: c.Note.GetContainer(), ContainerID: c.ID}
		if err := n.engine.Do(t.Context(), a, remove); err != nil {
			t.Fatal(err)
		}
	}
	a.Number++
	n.run(t, a)
	if now := n.Shims(t); len(now) != 1 || now[0] == hung[0] {
		t.Errorf("got shims %v after %v, want a new one alone", now, hung)
	}
	n.clear(t, uidOf(a))
}

func TestEngine_FoldersThatContainerdForgotAreInNobodysWay(t *testing.T) {
	n := newNode(t)
	a := attempt(t, pushed(t), prog("sleep"))
	name := engine.ContainerID(uidOf(a), a.Wish.GetSpec().GetContainers()[0].GetName(), a.Number)
	dir := filepath.Join(n.cfg.State, "io.containerd.runtime.v2.task", n.cfg.Namespace)
	for _, left := range []string{name, "." + name} {
		if err := os.MkdirAll(filepath.Join(dir, left, "rootfs"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	n.run(t, a)
	n.clear(t, uidOf(a))
	left, err := filepath.Glob(filepath.Join(dir, "*"+name))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A start whose runtime was killed after it let the process go, before it had removed the
// pipe by which it did or after that, is one that was done.
func TestEngine_LIF2_StartCutHalfWayIsAStart(t *testing.T) {
	n := newNode(t)
	for _, removed := range []bool{false, true} {
		a := attempt(t, pushed(t), prog("sleep"))
		name := a.Wish.GetSpec().GetContainers()[0].GetName()
		for _, action := range []engine.Action{
			{Step: engine.StepImages}, {Step: engine.StepNamespaces}, {Step: engine.StepNetwork}, {Step: engine.StepCreate, Container: name},
		} {
			if err := n.engine.Do(t.Context(), a, action); err != nil {
				t.Fatalf("%s: %v", action.Step, err)
			}
		}
		created := n.await(t, uidOf(a), "created", func(o engine.Observed) bool { return len(o.Containers) == 1 })
		if c := created.Containers[0]; c.State != engine.Created || !c.Task {
			t.Errorf("before the start: got %+v", c)
		}
		n.letGo(t, engine.ContainerID(uidOf(a), name, a.Number), removed)
		if err := n.engine.Do(t.Context(), a, engine.Action{Step: engine.StepStart, Container: name}); err != nil {
			t.Fatalf("pipe removed: %t: %v", removed, err)
		}
		o := n.await(t, uidOf(a), "running", func(o engine.Observed) bool { return o.Containers[0].State == engine.Running })
		if o.Containers[0].PID == 0 || o.Containers[0].StartedAt.IsZero() {
			t.Errorf("pipe removed: %t: got %+v, want a process", removed, o)
		}
		must(t, n.engine.signal(t.Context(), o.Containers[0].ID, syscall.SIGTERM))
		if exit := n.awaitExit(t, uidOf(a)); exit.Code != 0 || exit.Unknown {
			t.Errorf("pipe removed: %t: got %+v, want code 0", removed, exit)
		}
		n.clear(t, uidOf(a))
	}
}

// letGo lets the process of a container go as the runtime does, which then removes the
// pipe.
func (n *node) letGo(t *testing.T, containerID string, remove bool) {
	t.Helper()
	fifo := n.engine.startPipe(containerID)
	if raw, err := os.ReadFile(fifo); err != nil || len(raw) == 0 {
		t.Fatalf("let the process go: %q, %v", raw, err)
	}
	if remove {
		must(t, os.Remove(fifo))
	}
}

// The runtime remembers a container whose shim was killed until it is told to forget it.
func TestEngine_LIF9_StateOfAKilledShimIsRemoved(t *testing.T) {
	n := newNode(t)
	a := attempt(t, pushed(t), prog("sleep"))
	n.run(t, a)
	state := filepath.Join(n.cfg.Paths.Run(), "runc", n.cfg.Namespace)
	if kept, err := os.ReadDir(state); err != nil || len(kept) != 1 {
		t.Fatalf("the runtime remembers %v, %v, want one container", kept, err)
	}
	for _, pid := range n.Shims(t) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if exit := n.awaitExit(t, uidOf(a)); !exit.Unknown {
		t.Errorf("got %+v, want unknown", exit)
	}
	n.clear(t, uidOf(a))
	if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// What the runtime remembers of a try that was killed half way is no verdict about the
// next one.
func TestEngine_LIF2_StateOfAHalfMadeContainerIsInNobodysWay(t *testing.T) {
	n := newNode(t)
	a := attempt(t, pushed(t), prog("sleep"))
	name := engine.ContainerID(uidOf(a), a.Wish.GetSpec().GetContainers()[0].GetName(), a.Number)
	if err := os.MkdirAll(filepath.Join(n.cfg.Paths.Run(), "runc", n.cfg.Namespace, name), 0o711); err != nil {
		t.Fatal(err)
	}
	n.run(t, a)
	n.clear(t, uidOf(a))
}

// containerd was killed after it had hidden the folder of a task, and before it had
// removed it: it never looks there again.
func TestEngine_LIF2_FolderThatContainerdHidIsRemoved(t *testing.T) {
	n := newNode(t)
	a := attempt(t, pushed(t), prog("sleep"))
	n.run(t, a)
	dir := filepath.Join(n.cfg.State, "io.containerd.runtime.v2.task", n.cfg.Namespace)
	name := engine.ContainerID(uidOf(a), a.Wish.GetSpec().GetContainers()[0].GetName(), a.Number)
	shims := n.Shims(t)
	n.Kill(t)
	for _, pid := range shims {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(dir, name), filepath.Join(dir, "."+name)); err != nil {
		t.Fatal(err)
	}
	n.Up(t)
	if exit := n.awaitExit(t, uidOf(a)); !exit.Unknown {
		t.Errorf("got %+v, want unknown", exit)
	}
	n.clear(t, uidOf(a))
	left, err := filepath.Glob(filepath.Join(dir, "*"+name))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
