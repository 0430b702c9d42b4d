package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/config"
)

// reached waits until somebody who comes now reaches a process by its path.
func reached(t *testing.T, b *bed.Bed, process, when string) {
	t.Helper()
	bed.Eventually(t, waitLong, process+" is reached "+when, func(context.Context) (bool, string) {
		conn, err := bed.DialAs(b.Paths.Socket(process), 0)
		if err != nil {
			return false, err.Error()
		}
		return conn.Close() == nil, ""
	})
}

// onePerComponent checks that no component has two processes.
func onePerComponent(t *testing.T, b *bed.Bed) {
	t.Helper()
	bed.Eventually(t, waitLong, "one process per component", func(context.Context) (bool, string) {
		var ours []int
		for pid, name := range b.Processes() {
			if name != "containerd-shim-runc-v2" && name != "runc" && name != "staddle" {
				ours = append(ours, pid)
			}
		}
		want := len(components(t, b)) + 1 // and the supervisor
		return len(ours) == want, fmt.Sprintf("%d processes, want %d: %v", len(ours), want, b.Processes())
	})
}

// UDS-7: sockets that somebody removes are there again within seconds, whoever made
// them, one by one and all at once.
func TestMachine_UDS7_RemovedSocketsComeBack(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	b.OK("run", "-d", "--name", "web", bed.ProbeImage, "--", "count", "1ms")
	awaitPhase(t, b, "web", "RUNNING")
	web := onHost(t, b, "web")
	all := append(slices.Clone(ourProcesses), "supervisor", config.ContainerdName)
	for _, process := range all {
		must(t, os.Remove(b.Paths.Socket(process)))
		reached(t, b, process, "after its socket was removed")
	}
	b.WaitReady() // containerd, which does not mend its own, was started again
	for _, process := range all {
		must(t, os.Remove(b.Paths.Socket(process)))
	}
	for _, process := range all {
		reached(t, b, process, "after all sockets were removed")
	}
	b.WaitReady()
	onePerComponent(t, b)
	if s := await(t, b, web.GetUid(), "running", running); sprint(pids(s)) != sprint(pids(web.GetStatus())) || s.GetAttempt() != 1 {
		t.Errorf("the sandbox was touched: %v, want %v", s, web.GetStatus())
	}
	b.OK("rm", "web")
	settled(t, b)
}

// SYS-4: all that is in the runtime folder but what belongs to single sandboxes is
// removed, under a running runner and before its next start. Sandboxes go on, and the
// node works as before.
func TestMachine_SYS4_RuntimeFolderIsEmptied(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	b.OK("run", "-d", "--name", "web", bed.ProbeImage, "--", "count", "1ms")
	awaitPhase(t, b, "web", "RUNNING")
	web := onHost(t, b, "web")
	ofSandboxes := []string{"sandboxhost", "containerd", "shims", "runc", "storage"}
	for round, again := range []func(){
		func() {},
		func() { b.StopRunner(supervisor); supervisor = b.Start() },
		func() { b.KillRunner(supervisor, true); supervisor = b.Start() },
	} {
		entries, err := os.ReadDir(b.Paths.Run())
		must(t, err)
		for _, e := range entries {
			if !slices.Contains(ofSandboxes, e.Name()) {
				clearAway(t, filepath.Join(b.Paths.Run(), e.Name()))
			}
		}
		again()
		for _, process := range append(slices.Clone(ourProcesses), "supervisor", config.ContainerdName) {
			reached(t, b, process, fmt.Sprintf("in round %d", round))
		}
		b.WaitReady()
		onePerComponent(t, b)
		s := await(t, b, web.GetUid(), "running", running)
		if sprint(pids(s)) != sprint(pids(web.GetStatus())) || s.GetAttempt() != 1 {
			t.Errorf("round %d: the sandbox was touched: %v, want %v", round, s, web.GetStatus())
		}
		was := counted(t, output(t, b, web.GetUid(), "main", 1))
		bed.Eventually(t, waitLong, "output goes on", moreThan(t, b, web.GetUid(), "main", was))
		b.OK("run", "--rm", "--name", "fresh", bed.ProbeImage, "--", "lines", "3")
	}
	b.OK("rm", "web")
	settled(t, b)
}

// clearAway removes a folder into which somebody still writes.
func clearAway(t *testing.T, path string) {
	t.Helper()
	bed.Eventually(t, waitLong, path+" is gone", func(context.Context) (bool, string) {
		err := os.RemoveAll(path)
		return err == nil, fmt.Sprint(err)
	})
}
