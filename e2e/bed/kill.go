package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// PID returns the process id of a component, and fails the test if it has none.
func (b *Bed) PID(component string) int {
	b.t.Helper()
	pid := 0
	Eventually(b.t, 10*time.Second, component+" has a process", func(ctx context.Context) (bool, string) {
		graph, err := b.Graph(ctx)
		if err != nil {
			return false, err.Error()
		}
		pid = int(graph[component].GetPid())
		return pid != 0, graph[component].String()
	})
	return pid
}

// Kill ends the process of a component by SIGKILL and waits until it is gone, and
// the supervisor knows: else it would still be shown as ready for a moment.
func (b *Bed) Kill(component string) {
	b.t.Helper()
	pid := b.PID(component)
	KillPID(b, pid)
	Eventually(b.t, 10*time.Second, "the supervisor knows that "+component+" was killed", func(ctx context.Context) (bool, string) {
		graph, err := b.Graph(ctx)
		if err != nil {
			return false, err.Error()
		}
		return int(graph[component].GetPid()) != pid, graph[component].String()
	})
}

// KillPID ends a process that the bed started by SIGKILL and waits until it runs
// no more.
func KillPID(b *Bed, pid int) {
	b.t.Helper()
	err := syscall.Kill(pid, syscall.SIGKILL)
	if err != nil && !errors.Is(err, syscall.ESRCH) { // it ended by itself meanwhile
		b.t.Fatalf("kill %d: %v", pid, err)
	}
	Eventually(b.t, 10*time.Second, fmt.Sprintf("process %d gone", pid), func(context.Context) (bool, string) {
		return !Alive(pid), procState(pid)
	})
}

// Alive says whether a process runs; one that waits to be reaped does not.
func Alive(pid int) bool {
	s := procState(pid)
	return s != "" && s != "Z" && s != "X"
}

// procState is the one-letter state of a process, "" if there is none.
func procState(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(raw), ") ")
	state, _, _ := strings.Cut(after, " ")
	return state
}

// Processes returns the ids of all processes that the bed's binaries run with
// this bed's root in their command line or address, by the name of their program.
func (b *Bed) Processes() map[int]string {
	found := map[int]string{}
	entries, err := os.ReadDir("/proc")
	b.must(err)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil {
			continue // gone meanwhile, or a kernel thread
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		if strings.Contains(string(line), b.Paths.Root) && filepath.Dir(strings.TrimSuffix(exe, " (deleted)")) == b.bin && Alive(pid) {
			found[pid] = filepath.Base(exe)
		}
	}
	return found
}

// Shims returns the process ids of the container shims of the bed.
func (b *Bed) Shims() []int {
	var pids []int
	for pid, name := range b.Processes() {
		if name == "containerd-shim-runc-v2" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// KillSupervisor ends the supervisor alone by SIGKILL and waits until all that it
// started has ended by itself; shims, workloads and command lines stay.
func (b *Bed) KillSupervisor(supervisor *os.Process) {
	b.t.Helper()
	b.must(supervisor.Kill())
	Eventually(b.t, 20*time.Second, "the children of a killed supervisor ended", func(context.Context) (bool, string) {
		var left []string
		for pid, name := range b.Processes() {
			if name != "containerd-shim-runc-v2" && name != "runc" && name != "staddle" { // the last is a person's
				left = append(left, fmt.Sprintf("%s %d", name, pid))
			}
		}
		return len(left) == 0, strings.Join(left, ", ")
	})
}

// KillRunner ends every process of ours by SIGKILL, the supervisor first;
// containerd too if asked. Shims and workloads stay.
func (b *Bed) KillRunner(supervisor *os.Process, containerd bool) {
	b.t.Helper()
	b.must(supervisor.Kill())
	for pid, name := range b.Processes() {
		ours := strings.HasPrefix(name, "staddle")
		if ours || (containerd && name == "containerd") {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by its leash meanwhile
		}
	}
	b.awaitRunnerGone(containerd)
}

// StopRunner asks the supervisor to end, and waits until every process of ours and
// containerd has. Shims and workloads stay.
func (b *Bed) StopRunner(supervisor *os.Process) {
	b.t.Helper()
	b.must(supervisor.Signal(syscall.SIGTERM))
	b.awaitRunnerGone(true)
}

func (b *Bed) awaitRunnerGone(containerd bool) {
	b.t.Helper()
	Eventually(b.t, 15*time.Second, "runner gone", func(context.Context) (bool, string) {
		var left []string
		for pid, name := range b.Processes() {
			if strings.HasPrefix(name, "staddle") || (containerd && name == "containerd") {
				left = append(left, fmt.Sprintf("%s %d", name, pid))
			}
		}
		return len(left) == 0, strings.Join(left, ", ")
	})
}

// Stop freezes a component by SIGSTOP and then ends it, so that it is away until
// Continue: the supervisor is frozen first and cannot start it again.
func (b *Bed) Stop(component string) {
	b.t.Helper()
	pid := b.PID(component)
	b.must(syscall.Kill(b.supervisorPID(), syscall.SIGSTOP))
	KillPID(b, pid)
}

// Continue lets the supervisor go on, which starts what is away.
func (b *Bed) Continue(string) {
	b.t.Helper()
	b.must(syscall.Kill(b.supervisorPID(), syscall.SIGCONT))
}

// supervisorPID is the process that holds the supervisor's lock.
func (b *Bed) supervisorPID() int {
	b.t.Helper()
	raw, err := os.ReadFile(b.Paths.Lock("supervisor"))
	b.must(err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	b.must(err)
	return pid
}
