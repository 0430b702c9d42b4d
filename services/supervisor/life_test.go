package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"
)

// Killed at any moment of a replacement the supervisor leaves nothing that holds up
// the next: its children end by their leash, and what it tried ends with it.
func TestRestartSupervisor_KilledAtAnyMoment(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	for _, ms := range []int{0, 20, 60, 120, 200, 300, 400, 600} { // the trial, the exec, the take-over
		after := time.Duration(ms) * time.Millisecond
		n.start()
		n.untilState("c", ready)
		var pids []int
		for _, c := range n.graph() {
			pids = append(pids, int(c.GetPid()))
		}
		of, api := n.own(), n.api
		ctx, stop := context.WithCancel(t.Context())
		asked := make(chan error, 1)
		go func() { // waited for below
			_, err := api.RestartSupervisor(ctx, &supervisorv1.RestartSupervisorRequest{Life: of.GetLife(), Number: of.GetNumber()})
			asked <- err
		}()
		<-time.After(after)
		n.signal(syscall.SIGKILL)
		n.wait()
		stop()
		err := <-asked
		t.Logf("killed after %s: %v", after, err)
		n.eventually(func() bool { return !slices.ContainsFunc(pids, alive) }, func() string { return fmt.Sprintf("%v to end", pids) })
		if err := n.conn.Close(); err != nil {
			t.Error(err)
		}
	}
	n.start()
	n.untilState("c", ready)
	if got := n.own(); got.GetNumber() != 1 {
		t.Errorf("got program %v, want the first of a new life", got)
	}
	n.noTrace()
	if code := n.stop(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
}

// A full disk under its own folder keeps the supervisor neither from its work nor
// from making way for the next program.
func TestSupervisor_FullDiskOfItsFolder(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	dir := filepath.Join(n.root, "var/supervisor")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		n.stop()
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n.start() // its lock and its folders are there
	n.untilState("c", ready)
	full := func() {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, "full"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{64 << 10, 4 << 10, 1} {
			for err == nil {
				_, err = f.Write(make([]byte, size))
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			err = nil
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	full()
	n.reexeced()
	pid := n.untilState("a", ready).GetPid()
	if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.untilAgain("a", pid)
	n.signal(syscall.SIGKILL)
	n.wait()
	n.start() // on the full disk
	n.untilState("c", ready)
}
