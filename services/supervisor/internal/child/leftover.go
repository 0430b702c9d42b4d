package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// noteSuffix of the files that say which process a component has.
const noteSuffix = ".pid"

const killTimeout = 5 * time.Second

// orphanGrace is how long a left-over of ours may still take: its leash has told
// it to end, and each can be killed at any instant without loss, so that a quick
// start counts for more.
const orphanGrace = 500 * time.Millisecond

// note identifies one process for good: its number may be used again, but not by
// a process with the same start time in the same boot.
type note struct {
	boot    string
	pid     int
	started string
}

func (n note) String() string { return fmt.Sprintf("%s %d %s\n", n.boot, n.pid, n.started) }

func parseNote(text string) (note, error) {
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return note{}, fmt.Errorf("read note: %.80q is none", text)
	}
	pid, err := strconv.Atoi(fields[1])
	if err != nil || pid <= 1 {
		return note{}, fmt.Errorf("read note: %q is no process id", fields[1])
	}
	return note{boot: fields[0], pid: pid, started: fields[2]}, nil
}

// startTime is when a process was started, in ticks since boot.
func startTime(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The name in parentheses may hold anything, also spaces and parentheses.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return "", fmt.Errorf("read process %d: its stat has %d fields", pid, len(fields))
	}
	return string(fields[19]), nil
}

func notePath(dir, name string) string { return filepath.Join(dir, name+noteSuffix) }

// writeNote remembers the process of a component for the next supervisor.
func writeNote(dir, name, boot string, pid int) error {
	started, err := startTime(pid)
	if err != nil {
		return fmt.Errorf("note process of %s: %w", name, err)
	}
	passing := filepath.Join(dir, "."+name+noteSuffix)
	if err := os.WriteFile(passing, []byte(note{boot, pid, started}.String()), 0o600); err != nil {
		return fmt.Errorf("note process of %s: %w", name, err)
	}
	return os.Rename(passing, notePath(dir, name))
}

// noted lists the components of which there are notes.
func noted(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list notes: %w", err)
	}
	var names []string
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), noteSuffix)
		if ok && !strings.HasPrefix(name, ".") { // those are half-written
			names = append(names, name)
		}
	}
	return names, nil
}

func removeNote(dir, name string) error {
	if err := os.Remove(notePath(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove note of %s: %w", name, err)
	}
	return nil
}

// endLeftover ends the process that an earlier supervisor noted for a component,
// and returns when it is gone. ours has a leash and ends by itself; another
// program is asked to, and has grace for it.
func endLeftover(ctx context.Context, dir, name, boot string, ours bool, grace time.Duration) (ended int, err error) {
	text, err := os.ReadFile(notePath(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("end left-over %s: %w", name, err)
	}
	n, err := parseNote(string(text))
	if err != nil { // half-written: nothing can be known from it, and the cgroup and the locks stay
		return 0, removeNote(dir, name)
	}
	fd, err := n.open(boot)
	if err != nil {
		return 0, fmt.Errorf("end left-over %s: %w", name, err)
	}
	if fd < 0 {
		return 0, removeNote(dir, name)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if ours {
		grace = orphanGrace
	} else if err := signalFD(fd, unix.SIGTERM); err != nil {
		return n.pid, fmt.Errorf("end left-over %s: %w", name, err)
	}
	if err := endFD(ctx, fd, grace); err != nil {
		return n.pid, fmt.Errorf("end left-over %s with pid %d: %w", name, n.pid, err)
	}
	return n.pid, removeNote(dir, name)
}

// open returns a handle of the very process that was noted, or -1 if that is
// gone. The start time is read after the handle was taken, so that both are of
// one process.
func (n note) open(boot string) (int, error) {
	if n.boot != boot {
		return -1, nil
	}
	fd, err := unix.PidfdOpen(n.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", n.pid, err)
	}
	started, err := startTime(n.pid)
	if err == nil && started == n.started {
		return fd, nil
	}
	if err := unix.Close(fd); err != nil {
		return -1, err
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return -1, err
	}
	return -1, nil
}

func signalFD(fd int, sig unix.Signal) error {
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// endFD waits for the end of a process, kills it after grace, and waits again. A
// dead process that nobody has reaped counts as ended.
func endFD(ctx context.Context, fd int, grace time.Duration) error {
	gone, err := waitFD(ctx, fd, grace)
	if gone || err != nil {
		return err
	}
	if err := signalFD(fd, unix.SIGKILL); err != nil {
		return err
	}
	gone, err = waitFD(ctx, fd, killTimeout)
	if err == nil && !gone {
		err = fmt.Errorf("still there %s after its kill", killTimeout)
	}
	return err
}

func waitFD(ctx context.Context, fd int, limit time.Duration) (gone bool, err error) {
	deadline := time.Now().Add(limit)
	for ctx.Err() == nil {
		left := time.Until(deadline)
		if left <= 0 {
			return false, nil
		}
		slice := min(left, 100*time.Millisecond) // so that the end of ctx is seen
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(slice.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("wait for process: %w", err)
		}
		if n > 0 {
			return true, nil
		}
	}
	return false, context.Cause(ctx)
}
