package containerd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
)

// endLimit bounds the wait for a shim that was killed.
const endLimit = 5 * time.Second

// endLeftShims ends the shims that are left of a sandbox of which containerd holds no
// container. One that does not answer when containerd starts is forgotten by it, and
// waits at the socket where the shim of the next attempt is looked for: nothing of
// the sandbox could ever start again.
func (e *Engine) endLeftShims(uid id.Sandbox) error {
	if left := e.of(uid); len(left) > 0 {
		return fault.New(fault.Conflict, "end shim of sandbox %s: container %s is left", uid, left[0].id)
	}
	return e.endShims(uid)
}

// shims are the processes in the control group of shims.
func (e *Engine) shims() ([]int, error) { return e.cgroups.Processes(e.group(engine.ShimGroup)) }

// endShims ends the shims of a sandbox, and no other process.
func (e *Engine) endShims(uid id.Sandbox) error {
	pids, err := e.shims()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := e.endShim(pid, uid); err != nil {
			return fmt.Errorf("end shim of sandbox %s: process %d: %w", uid, pid, err)
		}
	}
	return nil
}

// endShim ends a process if it is a shim of the sandbox, and waits for that.
func (e *Engine) endShim(pid int, uid id.Sandbox) (err error) {
	if !e.isShimOf(pid, uid) {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if !e.isShimOf(pid, uid) { // the number was given to another meanwhile
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	e.log.Warn("shim ended by force", uid.Attr())
	for deadline := time.Now().Add(endLimit); ; {
		rest := time.Until(deadline)
		if rest <= 0 {
			return fault.New(fault.Unavailable, "it does not end, not even by SIGKILL")
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(rest.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
	}
}

// isShimOf says whether a process is a shim of this containerd that was started for
// a container of the sandbox.
func (e *Engine) isShimOf(pid int, uid id.Sandbox) bool {
	owner, ok := e.shimOf(pid)
	return ok && owner == uid
}

// shimOf is the sandbox for whose first container a process was started, if it is a shim
// of this containerd.
func (e *Engine) shimOf(pid int) (id.Sandbox, bool) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return "", false // it ended
	}
	args := strings.Split(string(raw), "\x00")
	if !engine.IsShim(args, e.cfg.Address, e.cfg.Namespace) {
		return "", false
	}
	return engine.ShimOwner(args)
}
