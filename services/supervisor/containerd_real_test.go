package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/config"
)

// binaries finds the repository's bin folder, with the pinned containerd in it.
func binaries(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		bin := filepath.Join(dir, "bin")
		if _, err := os.Stat(filepath.Join(bin, "containerd")); err == nil {
			return bin
		}
	}
	t.Fatal("found no bin/containerd in any parent folder; build it first (make build)")
	return ""
}

// newContainerdNode has a managed containerd and one component that needs it.
func newContainerdNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t, "", part{name: "a", mode: "serve", more: "needs: [containerd]"})
	path := filepath.Join(n.root, "etc/node.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bin := binaries(t)
	managed := strings.Replace(string(text), "managed: false", "managed: true", 1)
	n.write(managed + fmt.Sprintf("    - {name: %s, command: [%s, --config, %s], env: {PATH: %q}}\n", config.ContainerdName,
		filepath.Join(bin, "containerd"), filepath.Join(n.root, "var/containerd/config.toml"), bin+":/usr/sbin:/usr/bin:/sbin:/bin"))
	return n
}

func TestSupervisor_ManagesContainerd(t *testing.T) {
	n := newContainerdNode(t)
	n.start()
	n.untilState("a", ready)
	first := n.graph()[config.ContainerdName]
	sockets := n.socketsOf("containerd")
	if len(sockets) != 2 {
		t.Errorf("got sockets %v, want the one for us and the one for shims", sockets)
	}

	if err := syscall.Kill(int(first.GetPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := n.untilAgain(config.ContainerdName, first.GetPid())
	if got := n.graph()["a"]; got.GetStarts() != 1 {
		t.Errorf("got %v, want it untouched by a crash of its need", got)
	}

	n.signal(syscall.SIGKILL)
	n.wait()
	n.start()
	n.untilState("a", ready)
	if alive(int(second.GetPid())) {
		t.Errorf("got containerd %d of the first supervisor alive, want it ended with it", second.GetPid())
	}
	if code := n.stop(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
	if got := n.order("to", "stopped"); len(got) != 2 || got[1] != config.ContainerdName {
		t.Errorf("got stopped in order %v, want containerd last", got)
	}
}

// What lasts of a task whose state a reboot took is removed by containerd itself,
// which has to be led there.
func TestSupervisor_ContainerdClearsTasksOfTheBootBefore(t *testing.T) {
	n := newContainerdNode(t)
	left := filepath.Join(n.root, "var/containerd/io.containerd.runtime.v2.task", "staddle", "left")
	if err := os.MkdirAll(left, 0o711); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.untilState("a", ready)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if code := n.stop(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
}

// socketsOf lists the bound sockets below the node's run folder of that name.
func (n *node) socketsOf(name string) []string {
	n.t.Helper()
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		n.t.Fatal(err)
	}
	seen := map[string]bool{}
	var paths []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		path := fields[len(fields)-1]
		if strings.HasPrefix(path, filepath.Join(n.root, "run", name)) && !seen[path] {
			seen[path] = true
			paths = append(paths, path)
		}
	}
	return paths
}

// containerd has a parent-death signal, which must not come because the program of
// its parent was replaced: not even by the next program after that.
func TestReexec_KeepsContainerd(t *testing.T) {
	n := newContainerdNode(t)
	n.start()
	before := n.untilState("containerd", ready)
	for range 3 {
		n.reexeced()
		if got := n.untilState("containerd", ready); got.GetPid() != before.GetPid() || got.GetStarts() != 1 {
			t.Fatalf("got %v, want the process %d kept", got, before.GetPid())
		}
	}
	if err := syscall.Kill(int(before.GetPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	again := n.untilAgain("containerd", before.GetPid())
	n.signal(syscall.SIGKILL)
	n.wait()
	n.eventually(func() bool { return !alive(int(again.GetPid())) }, func() string { return "containerd to end with its supervisor" })
}

// containerd whose socket is lost while it starts, before it has given an answer, is
// started again at once, and not when its start takes too long. Where it was lost so
// early that containerd itself could not go on, and ended, it is taken once more.
func TestSupervisor_ContainerdLosesItsSocketWhileItStarts(t *testing.T) {
	n := newContainerdNode(t)
	path := filepath.Join(n.root, "run/containerd.sock")
	ctx, enough := context.WithCancel(t.Context())
	taken := make(chan int, 1)
	go func() { // waited for below
		times := 0
		for ; ctx.Err() == nil; runtime.Gosched() {
			if os.Remove(path) == nil {
				times++
			}
		}
		taken <- times
	}()
	n.start()
	n.eventually(func() bool { return strings.Contains(n.out.String(), path+" was removed") }, func() string {
		return "a line that says why containerd is started again:\n" + n.out.String()
	})
	enough()
	if times := <-taken; times == 0 {
		t.Error("the socket was lost without being taken")
	}
	n.until("containerd", "started again", func(c *supervisorv1.Component) bool { return c.GetStarts() >= 2 && c.GetState() == ready })
}
