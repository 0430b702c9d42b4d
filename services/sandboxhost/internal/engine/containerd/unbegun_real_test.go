package containerd

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"staddle.internal/services/sandboxhost/internal/engine"
)

// shimThatWaits starts a shim as containerd leaves one behind when it dies between
// starting it and reading its log, and is started again: it listens, the folder of
// its log is gone, and it waits. Returned is its end.
func (n *node) shimThatWaits(t *testing.T, containerID, socket string) <-chan error {
	t.Helper()
	dir := filepath.Join(t.TempDir(), containerID)
	must(t, os.Mkdir(dir, 0o700))
	must(t, unix.Mkfifo(filepath.Join(dir, "log"), 0o600))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	must(t, err)
	l.SetUnlinkOnClose(false)
	file, err := l.File()
	must(t, err)
	cmd := exec.Command(filepath.Join(n.Bin(), "containerd-shim-runc-v2"), "-namespace", n.cfg.Namespace, "-id", containerID, "-address", n.Address)
	cmd.Dir, cmd.ExtraFiles = dir, []*os.File{file}
	must(t, cmd.Start())
	must(t, l.Close())
	must(t, file.Close())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ended by the engine, or below
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	n.await(t, "", "waiting for its log", func(engine.Observed) bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", cmd.Process.Pid))
		must(t, err)
		for _, path := range tasks {
			if raw, err := os.ReadFile(path); err == nil && string(raw) == "wait_for_partner" {
				return true
			}
		}
		return false
	})
	groups, err := filepath.Glob("/sys/fs/cgroup/*" + n.engine.group(engine.ShimGroup) + "/cgroup.procs")
	must(t, err)
	unified, err := filepath.Glob("/sys/fs/cgroup" + n.engine.group(engine.ShimGroup) + "/cgroup.procs")
	must(t, err)
	for _, path := range append(groups, unified...) {
		must(t, os.WriteFile(path, []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	}
	if began, err := neverBegan(cmd.Process.Pid); err != nil || began {
		t.Errorf("its folder is there: it never began is %t, %v", began, err)
	}
	must(t, os.RemoveAll(dir))
	if began, err := neverBegan(cmd.Process.Pid); err != nil || !began {
		t.Errorf("its folder is gone: it never began is %t, %v", began, err)
	}
	return ended
}

// A shim whose containerd died before it read its log waits for ever where the next one
// of the sandbox is looked for. It is in nobody's way.
func TestEngine_LIF2_ShimThatNeverBeganIsInNobodysWay(t *testing.T) {
	n := newNode(t)
	a := attempt(t, pushed(t), prog("sleep"))
	n.run(t, a)
	first := engine.ContainerID(uidOf(a), "a", 1)
	known, err := readBootstrap(filepath.Join(n.engine.bundles(), first))
	must(t, err)
	for _, pid := range n.Shims(t) {
		if began, err := neverBegan(pid); err != nil || began {
			t.Errorf("a shim that works: it never began is %t, %v", began, err)
		}
	}
	must(t, n.engine.signal(t.Context(), first, unix.SIGKILL))
	n.awaitExit(t, uidOf(a))
	must(t, n.engine.remove(t.Context(), first))
	n.await(t, uidOf(a), "without a shim", func(engine.Observed) bool { return len(n.Shims(t)) == 0 })
	must(t, os.RemoveAll(known.socket()))
	ended := n.shimThatWaits(t, first, known.socket())
	a.Number = 2
	n.run(t, a)
	o := n.await(t, uidOf(a), "running", func(o engine.Observed) bool { return len(o.Containers) == 1 && o.Containers[0].State == engine.Running })
	if !strings.HasSuffix(o.Containers[0].ID, "-2") {
		t.Errorf("got %+v, want the second attempt", o.Containers[0])
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the shim that waited ended with %v, want killed", err)
	}
	n.clear(t, uidOf(a))
}
