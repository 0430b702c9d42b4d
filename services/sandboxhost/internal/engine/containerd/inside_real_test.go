package containerd

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/testimage"
)

// setting reads one file of a container's control group, in whichever hierarchy it is.
func (n *node) setting(t *testing.T, group string, names ...string) string {
	t.Helper()
	for _, name := range names {
		for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			found, err := filepath.Glob(filepath.Join(dir, group, name))
			if err != nil {
				t.Fatal(err)
			}
			if len(found) > 0 {
				raw, err := os.ReadFile(found[0])
				if err != nil {
					t.Fatal(err)
				}
				return strings.TrimSpace(string(raw))
			}
		}
	}
	t.Fatalf("group %s has none of %v", group, names)
	return ""
}

// What is said about limits is what the kernel enforces, and the process goes on.
func TestEngine_LimitsReachTheKernel(t *testing.T) {
	n := newNode(t)
	a := attempt(t, pushed(t), prog("sleep"))
	n.run(t, a)
	defer n.clear(t, uidOf(a))
	group := n.engine.group(uidOf(a).Lower(), "a")
	before := n.await(t, uidOf(a), "running", func(o engine.Observed) bool { return o.Containers[0].PID != 0 }).Containers[0]
	unlimited := n.setting(t, group, "memory.max", "memory.limit_in_bytes")
	tests := []struct {
		limits       *resourcev1.ResourceLimits
		memory, pids string
	}{
		{&resourcev1.ResourceLimits{MemoryLimitBytes: new(int64(64 << 20)), PidsLimit: new(int64(50))}, "67108864", "50"},
		{&resourcev1.ResourceLimits{MemoryLimitBytes: new(int64(128 << 20)), PidsLimit: new(int64(60))}, "134217728", "60"},
		{nil, unlimited, "4096"},
	}
	for _, tt := range tests {
		a.Wish = proto.CloneOf(a.Wish)
		a.Wish.Spec.Containers[0].Limits = tt.limits
		err := n.engine.Do(t.Context(), a, engine.Action{Step: engine.StepLimits, Container: "a", ContainerID: before.ID})
		if err != nil {
			t.Fatal(err)
		}
		memory, pids := n.setting(t, group, "memory.max", "memory.limit_in_bytes"), n.setting(t, group, "pids.max")
		if memory != tt.memory || pids != tt.pids {
			t.Errorf("%v: the kernel has memory %s and pids %s, want %s and %s", tt.limits, memory, pids, tt.memory, tt.pids)
		}
	}
	after, err := n.engine.Observe(t.Context(), uidOf(a))
	if err != nil || after.Containers[0].PID != before.PID {
		t.Errorf("got %+v, %v, want process %d", after, err, before.PID)
	}
}

// Commands that run out of time leave no process behind, whatever they started: in
// their session or in one of their own. (EXE-7)
func TestEngine_CommandsDoNotPileUp(t *testing.T) {
	n := newNode(t)
	a := attempt(t, pushed(t), prog("sleep"))
	n.run(t, a)
	defer n.clear(t, uidOf(a))
	group, key := n.engine.group(uidOf(a).Lower(), "a"), engine.ContainerID(uidOf(a), "a", 1)
	const rounds = 5
	for range rounds {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		_, err := n.engine.Exec(ctx, engine.Command{ContainerID: key, ID: "check", Args: []string{testimage.Program, "family"}})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want a deadline that is exceeded", err)
		}
	}
	n.await(t, uidOf(a), "alone", func(engine.Observed) bool { return n.alive(t, group) == 1 })
}

// alive counts the processes of a group that are no zombies.
func (n *node) alive(t *testing.T, group string) int {
	t.Helper()
	pids, err := n.engine.cgroups.Processes(group)
	if err != nil {
		t.Fatal(err)
	}
	alive := 0
	for _, pid := range pids {
		if raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat")); err == nil && !strings.Contains(string(raw), ") Z ") {
			alive++
		}
	}
	return alive
}

// What a command prints comes back, and its user and folder are the container's.
func TestEngine_CommandOutput(t *testing.T) {
	n := newNode(t)
	spec := prog("sleep")
	spec.User, spec.WorkingDir = "1234:1234", "/tmp"
	a := attempt(t, pushed(t), spec)
	n.run(t, a)
	defer n.clear(t, uidOf(a))
	res, err := n.engine.Exec(t.Context(), engine.Command{
		ContainerID: engine.ContainerID(uidOf(a), "a", 1), ID: "check", Args: []string{testimage.Program, "print-exit", "3"},
	})
	if err != nil || res.Code != 0 || !strings.Contains(res.Output, "line 2\n") || !strings.Contains(res.Output, "error 0\n") {
		t.Errorf("got %+v, %v, want both outputs", res, err)
	}
}

// What listens is seen, and reached, from inside the sandbox only.
func TestEngine_InsideTheNetwork(t *testing.T) {
	n := newNode(t)
	a := attempt(t, pushed(t), prog("listen", "0.0.0.0:18080"), prog("listen", "127.0.0.1:18081"))
	n.run(t, a)
	defer n.clear(t, uidOf(a))
	var got []string
	o := n.await(t, uidOf(a), "listening", func(engine.Observed) bool {
		list, err := n.engine.Listeners(t.Context(), uidOf(a))
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, l := range list {
			got = append(got, l.Address.String())
		}
		return len(got) == 2
	})
	if !slices.Contains(got, "127.0.0.1:18081") {
		t.Errorf("got %v, want loopback too", got)
	}
	dial := func(at netip.AddrPort) error {
		conn, err := n.engine.Dial(t.Context(), uidOf(a), at)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	address := o.Addresses[0]
	if err := dial(netip.AddrPortFrom(address, 18080)); err != nil {
		t.Errorf("connect to the open port: %v", err)
	}
	err := dial(netip.AddrPortFrom(address, 18081))
	if err == nil || errors.Is(err, fault.Unavailable) {
		t.Errorf("connect to the port on loopback by the address: got %v, want a refusal", err)
	}
	if conn, err := net.Dial("tcp", "127.0.0.1:18080"); err == nil {
		t.Errorf("the port is open outside: %v", errors.Join(conn.Close()))
	}
	if _, err := n.engine.Listeners(t.Context(), id.NewSandbox()); !errors.Is(err, fault.Unavailable) {
		t.Errorf("of a sandbox that is not there got %v, want unavailable", err)
	}
}

// LIF-5: a probe, or what a person runs, that the kernel ends for memory is told apart from
// the main process and its children, also when somebody ends the main one right after.
func TestEngine_LIF5_KillOfACommandForMemoryIsNotTheContainers(t *testing.T) {
	n := newNode(t)
	c := prog("sleep")
	c.Limits = &resourcev1.ResourceLimits{MemoryLimitBytes: new(int64(64 << 20))}
	a := attempt(t, pushed(t), c)
	n.run(t, a)
	containerID := engine.ContainerID(uidOf(a), "a", 1)
	for i, args := range [][]string{{testimage.Program, "exit", "137"}, {testimage.Program, "eat"}} {
		res, err := n.engine.Exec(t.Context(), engine.Command{ContainerID: containerID, ID: "probe", Args: args})
		if err != nil || res.Code != killed || res.OOMKilled != (i == 1) {
			t.Errorf("%q: got %+v, %v", args, res, err)
		}
		p, err := n.engine.Open(t.Context(), engine.Beside{UID: uidOf(a), ContainerID: containerID, Args: args, Detached: true})
		must(t, err)
		ended, err := p.Wait(t.Context())
		if err != nil || ended.Code != killed || ended.OOMKilled != (i == 1) {
			t.Errorf("%q, for a person: got %+v, %v", args, ended, err)
		}
		must(t, p.Close(t.Context()))
	}
	o := n.await(t, uidOf(a), "running", func(o engine.Observed) bool { return len(o.Containers) == 1 })
	if got := o.Containers[0]; got.State != engine.Running || got.OOMKills != 2 || got.OOMKillsBeside != 2 {
		t.Errorf("the container: got %+v, want it running and two kills counted, both beside it", got)
	}
	must(t, n.engine.signal(t.Context(), containerID, syscall.SIGKILL))
	if exit := n.awaitExit(t, uidOf(a)); exit.Code != killed || exit.OOMKilled || exit.OOMKills != 2 {
		t.Errorf("its end: got %+v, want two kills counted, of which none was the main process", exit)
	}
	n.clear(t, uidOf(a))
}
