package teardown

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/services/sandboxhost/internal/engine"
)

// handles are open processes: a pid that was used again is never hit.
type handles []int

// openAll opens those of the processes that are still there.
func openAll(pids []int) handles {
	var h handles
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			h = append(h, fd)
		}
	}
	return h
}

func (h handles) close() {
	for _, fd := range h {
		_ = unix.Close(fd)
	}
}

// signal sends s to all; one that has ended is as good.
func (h handles) signal(s unix.Signal) {
	for _, fd := range h {
		_ = unix.PidfdSendSignal(fd, s, nil, 0)
	}
}

// wait says whether all ended within the limit.
func (h handles) wait(ctx context.Context, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	left := append(handles(nil), h...)
	for len(left) > 0 {
		rest := time.Until(deadline)
		if rest <= 0 || ctx.Err() != nil {
			return false
		}
		polled := []unix.PollFd{{Fd: int32(left[0]), Events: unix.POLLIN}}
		n, err := unix.Poll(polled, int(min(rest, 200*time.Millisecond).Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
		if n > 0 {
			left = left[1:]
		}
	}
	return true
}

// shims are the shims that work for this node's containerd.
func (d down) shims() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if engine.IsShim(arguments(pid), d.cfg.Node.Containerd.Address, d.cfg.Node.Containerd.Namespace) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// mainProcesses are those that are the first of a pid namespace other than ours.
func mainProcesses(pids []int) []int {
	var mains []int
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err == nil && isMain(string(raw)) {
			mains = append(mains, pid)
		}
	}
	return mains
}

// isMain reads from /proc/<pid>/status whether a process has number 1 where it lives.
func isMain(status string) bool {
	for line := range strings.Lines(status) {
		if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok {
			all := strings.Fields(numbers)
			return len(all) > 1 && all[len(all)-1] == "1"
		}
	}
	return false
}

// arguments is the command line of a process, empty if it is gone.
func arguments(pid int) []string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(raw) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
}
