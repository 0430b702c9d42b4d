package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/engine"
)

// shimLimit is how long a shim may take to pass a signal on. containerd itself gives it
// 2 s for the question how a task is.
const shimLimit = 5 * time.Second

// errSilent says that containerd answers and the shim of a container does not.
var errSilent = fault.New(fault.Unavailable, "its shim does not answer")

func isSilent(err error) bool { return errors.Is(err, errSilent) }

// timedOut says whether a question was not answered in its time. containerd knows the
// time too, and where it is the first to notice it may pass on what its connection to the
// shim said, as an error of no kind.
func timedOut(err error) bool {
	return errdefs.IsDeadlineExceeded(err) || strings.Contains(err.Error(), context.DeadlineExceeded.Error())
}

// observeSilent says of a container whose shim does not answer what was known before.
func (e *Engine) observeSilent(ctx context.Context, c *containerd.Client, known *container) (*engine.Container, error) {
	seen := &engine.Container{ID: known.id, Note: known.note, State: engine.Created, Task: true}
	var err error
	if seen.StartedAt, err = e.startedAt(ctx, c, known); err != nil || seen.StartedAt.IsZero() {
		return seen, err
	}
	pid, err := e.mainProcess(known)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if known.exit != nil {
		seen.State, seen.Exit = engine.Exited, known.exit
		return seen, nil
	}
	seen.State, seen.PID, seen.Limits = engine.Running, uint32(pid), known.limits
	return seen, nil
}

// signalDirectly sends a signal to the main process of a container without its shim.
// One that has ended is success.
func (e *Engine) signalDirectly(containerID string, sig syscall.Signal) (err error) {
	c := e.known(containerID)
	if c == nil || c.group == "" {
		return nil
	}
	pid, err := e.mainProcess(c)
	if err != nil || pid == 0 {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("send %s to container %s: %w", sig, containerID, err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if again, err := e.mainProcess(c); err != nil || again != pid { // the number was given to another meanwhile
		return err
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send %s to container %s: %w", sig, containerID, err)
	}
	return nil
}

// mainProcess is the main process of a container as its shim has noted it, 0 if it is
// not in the container's control group any more.
func (e *Engine) mainProcess(c *container) (int, error) {
	bundle, err := e.bundle(c.id)
	if err != nil {
		return 0, err
	}
	raw, err := os.ReadFile(filepath.Join(bundle, "init.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find process of container %s: %w", c.id, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0, fmt.Errorf("find process of container %s: %w", c.id, err)
	}
	members, err := e.cgroups.Processes(c.group)
	if err != nil || !slices.Contains(members, pid) {
		return 0, err
	}
	return pid, nil
}
