package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/logging"
)

// reapOrphans takes away dead processes that were given to this one, because it
// is the first of its namespace or was made to take them, until ctx ends. The
// components' own processes are left to those who wait for them: each is asked for
// by its number, never "any child".
func (r *Runner) reapOrphans(ctx context.Context) {
	ours, err := takesOrphans()
	if err != nil {
		r.deps.Log.Warn("orphans not reaped", logging.Err(err))
	}
	if !ours {
		return
	}
	signals := make(chan os.Signal, 1) // one that is not yet taken stands for all
	signal.Notify(signals, unix.SIGCHLD)
	defer signal.Stop(signals)
	for {
		if err := r.reapOnce(); err != nil {
			r.once("orphans", func() { r.deps.Log.Warn("orphans not reaped", logging.Err(err)) })
		}
		select {
		case <-signals:
		case <-ctx.Done():
			return
		}
	}
}

// takesOrphans reports whether the kernel gives us processes that we did not make.
func takesOrphans() (bool, error) {
	if os.Getpid() == 1 {
		return true, nil
	}
	var set int32
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&set)), 0, 0, 0); err != nil {
		return false, fmt.Errorf("ask for orphans: %w", err)
	}
	return set != 0, nil
}

// reapOnce reaps what is dead and not ours. The lock keeps a child that is being
// made from being taken for an orphan.
func (r *Runner) reapOnce() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := map[int]bool{}
	for _, c := range r.children {
		own[c.pid] = true
	}
	pids, err := childrenOfUs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if own[pid] || r.askers[pid] {
			continue
		}
		_, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		if err != nil && !errors.Is(err, unix.ECHILD) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("reap process %d: %w", pid, err)
		}
	}
	return nil
}

// childrenOfUs lists the processes whose parent we are.
func childrenOfUs() ([]int, error) {
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has ended, and another has its children
		}
		if err != nil {
			return nil, fmt.Errorf("list own children: %w", err)
		}
		for _, field := range bytes.Fields(text) {
			pid, err := strconv.Atoi(string(field))
			if err != nil {
				return nil, fmt.Errorf("list own children: %w", err)
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Ask runs a command that is no component to its end, so that nobody takes its
// exit away.
func (r *Runner) Ask(cmd *exec.Cmd) error {
	r.mu.Lock()
	if err := cmd.Start(); err != nil {
		r.mu.Unlock()
		return err
	}
	pid := cmd.Process.Pid
	r.askers[pid] = true
	r.mu.Unlock()
	err := cmd.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.askers, pid)
	return err
}
