package containerd

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// relative is what /proc says about one process.
type relative struct{ pid, parent, session int }

// killStarted ends all that a command has started and that is still in its session
// or below it, but not the command itself: its shell may take their ends in first. A
// command is the leader of a session of its own. Nothing outside of the container's
// control group is looked at.
func (e *Engine) killStarted(group string, command int) error {
	pids, err := e.cgroups.Processes(group)
	if err != nil {
		return fmt.Errorf("list processes of a command: %w", err)
	}
	var all []relative
	for _, pid := range pids {
		if r, ok := relativeOf(pid); ok {
			all = append(all, r)
		}
	}
	for _, pid := range startedBy(all, command) {
		if err := killOne(pid, all); err != nil {
			return err
		}
	}
	return nil
}

// startedBy finds what a command has started: its session, and what descends from
// it in whatever session. Who started last is named first.
func startedBy(all []relative, command int) []int {
	var mine []int
	for grew := true; grew; {
		grew = false
		for _, r := range all {
			below := r.session == command || r.parent == command || slices.Contains(mine, r.parent)
			if below && r.pid != command && !slices.Contains(mine, r.pid) {
				mine, grew = append(mine, r.pid), true
			}
		}
	}
	slices.Reverse(mine)
	return mine
}

// killOne ends a process that is still the one that was looked at.
func killOne(pid int, seen []relative) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process of a command: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if r, ok := relativeOf(pid); !ok || !slices.ContainsFunc(seen, func(s relative) bool { return s.pid == pid && s.session == r.session }) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end process of a command: %w", err)
	}
	return nil
}

// relativeOf reads what /proc says about a process; false if it is gone.
func relativeOf(pid int) (relative, bool) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return relative{}, false
	}
	// The name stands in parentheses and may contain anything.
	_, rest, _ := strings.Cut(string(raw[strings.LastIndexByte(string(raw), ')')+1:]), " ")
	fields := strings.Fields(rest) // state, parent, group, session
	const needed = 4
	if len(fields) < needed {
		return relative{}, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	session, err2 := strconv.Atoi(fields[3])
	return relative{pid: pid, parent: parent, session: session}, err1 == nil && err2 == nil
}
