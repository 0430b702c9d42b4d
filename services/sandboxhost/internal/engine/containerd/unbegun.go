package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

// slowLook is how often it is looked why the runtime takes so long. A task is made in
// 30 ms, and started in 13.
const slowLook = time.Second

// whileSlow does something, and looks now and then what it may be waiting for.
func whileSlow(do func() error, look func()) error {
	done := make(chan error, 1)
	go func() { done <- do() }() // waited for below
	tick := time.NewTicker(slowLook)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			look()
		}
	}
}

// requestTask has containerd make a task. again is true if a shim was in the way that
// could never have answered, and is gone now.
func (e *Engine) requestTask(ctx context.Context, request *tasks.CreateTaskRequest) (again bool, err error) {
	uid, ours := sandboxOf(request.GetContainerID())
	err = whileSlow(func() error {
		_, err := e.client.TaskService().Create(ctx, request)
		return err
	}, func() {
		if !ours {
			return
		}
		ended, err := e.endUnbegunShims(uid)
		if err != nil {
			e.log.Warn("shim that never began not ended", uid.Attr(), logging.Err(err))
		}
		again = again || ended
	})
	return again, err
}

// endUnbegunShims ends the shims of a sandbox that never began, and says whether there
// were any.
//
// The first thing that a shim does is to wait for a reader of its log. When containerd,
// which would read, has died, its next life takes the folder away in which that log is,
// and the shim waits for ever, behind a socket that takes every connection: each
// later shim of the sandbox finds that socket, and hands over to nobody.
func (e *Engine) endUnbegunShims(uid id.Sandbox) (ended bool, err error) {
	pids, err := e.shims()
	if err != nil {
		return false, err
	}
	for _, pid := range pids {
		if !e.isShimOf(pid, uid) {
			continue
		}
		unbegun, err := neverBegan(pid)
		if err == nil && unbegun {
			err, ended = e.endShim(pid, uid), true
		}
		if err != nil {
			return false, fmt.Errorf("end shim of sandbox %s: process %d: %w", uid, pid, err)
		}
	}
	return ended, nil
}

// neverBegan says of a shim that it does not have its log, which takes the place of
// standard error, and that the folder is gone in which it waits for it.
func neverBegan(pid int) (bool, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	var st unix.Stat_t
	err := unix.Stat(filepath.Join(dir, "fd", "2"), &st)
	var folder string
	if err == nil {
		folder, err = os.Readlink(filepath.Join(dir, "cwd"))
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false, nil // it ended
	}
	return st.Mode&unix.S_IFMT != unix.S_IFIFO && strings.HasSuffix(folder, " (deleted)"), err
}
