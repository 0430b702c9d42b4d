package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/engine"
)

// healLimit bounds talking to a shim.
const healLimit = 2 * time.Second

// heal frees an id that containerd has lost half of: it says that there is no
// task, and that there is one. Its shim is told to end, which containerd notices.
// A shim that has other containers does not end; then the next attempt, which has
// another id, is not in the way.
func (e *Engine) heal(ctx context.Context, containerID string) error {
	bundle, err := e.bundle(containerID)
	if err != nil {
		return fmt.Errorf("heal container %s: %w", containerID, err)
	}
	known, err := readBootstrap(bundle)
	if err != nil {
		return fmt.Errorf("heal container %s: %w", containerID, err)
	}
	conn, err := net.DialTimeout("unix", known.socket(), healLimit)
	if err != nil {
		return fault.New(fault.Unavailable, "heal container %s: its shim does not answer: %w", containerID, err)
	}
	client := ttrpc.NewClient(conn)
	ctx, cancel := context.WithTimeout(ctx, healLimit)
	defer cancel()
	_, err = taskv3.NewTTRPCTaskClient(client).Shutdown(ctx, &taskv3.ShutdownRequest{ID: containerID})
	if errors.Is(err, ttrpc.ErrClosed) {
		err = nil // it ended before it answered
	}
	if err := errors.Join(err, client.Close()); err != nil {
		return fault.New(fault.Unavailable, "heal container %s: end its shim: %w", containerID, err)
	}
	e.log.Warn("half lost container healed", logging.Component(containerID))
	return nil
}

// leftBundle says whether a task could not be made because of a folder that was
// left of an earlier try. containerd does not know of a task then: it asks itself
// that first.
func leftBundle(err error) bool {
	text := brief(err)
	return strings.HasPrefix(text, "mkdir ") && strings.HasSuffix(text, ": file exists")
}

// clearBundle removes the folder of a task that containerd does not know of, and
// the hidden one that it left when it died while it removed an earlier one: as
// long as that is there it can never remove another of the same name. A folder
// whose shim answers is left alone.
func (e *Engine) clearBundle(_ context.Context, containerID string) error {
	dir := e.bundles()
	bundle := filepath.Join(dir, containerID)
	if bootstrap, err := readBootstrap(bundle); err == nil {
		conn, err := net.DialTimeout("unix", bootstrap.socket(), healLimit)
		if err == nil {
			return errors.Join(fault.New(fault.Unavailable, "clear folder of container %s: its shim answers", containerID), conn.Close())
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("clear folder of container %s: %w", containerID, err)
	}
	for _, path := range []string{filepath.Join(dir, "."+containerID), bundle} {
		if err := removeMounted(path); err != nil {
			return fmt.Errorf("clear folder of container %s: %w", containerID, err)
		}
	}
	e.log.Warn("folder of a half made container removed", logging.Component(containerID))
	return nil
}

// leftState says whether a task could not be made because the runtime remembers an
// earlier try.
func leftState(err error) bool {
	return strings.Contains(brief(err), "container with given ID already exists")
}

// clearState has the runtime forget a container that containerd knows no task of: it
// died while it made one, or while it removed it. What runs of it is ended first.
func (e *Engine) clearState(ctx context.Context, containerID string) error {
	_, err := e.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: containerID})
	if !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		return fault.New(fault.Unavailable, "clear state of container %s: its task is not gone", containerID)
	}
	if c := e.known(containerID); c != nil && c.group != "" {
		if err := e.cgroups.Clear(c.group); err != nil {
			return err
		}
	}
	return e.removeState(containerID)
}

// removeMounted removes a folder after all that is mounted below it.
func removeMounted(path string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		err := unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) { // somebody looks into it
			err = unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return os.RemoveAll(path)
}

// bootstrap is what a shim says of itself in the folder of its task.
type bootstrap struct {
	Address string `json:"address"`
}

func (b bootstrap) socket() string { return strings.TrimPrefix(b.Address, "unix://") }

func readBootstrap(bundle string) (bootstrap, error) {
	var b bootstrap
	raw, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json"))
	if err != nil {
		return b, err
	}
	if err := json.Unmarshal(raw, &b); err != nil {
		return b, fmt.Errorf("read %s: %w", bundle, err)
	}
	return b, nil
}

// bundle finds the folder that containerd keeps of a task: the shims of the same
// containerd and namespace work in such folders. They are looked for in their own
// control group only: what a workload calls itself and where it works is its own
// business.
func (e *Engine) bundle(containerID string) (string, error) {
	pids, err := e.shims()
	if err != nil {
		return "", err
	}
	for _, pid := range pids {
		raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if err != nil {
			continue // it ended
		}
		if !engine.IsShim(strings.Split(string(raw), "\x00"), e.cfg.Address, e.cfg.Namespace) {
			continue
		}
		if bundle := engine.Bundle(pid, containerID); bundle != "" {
			return bundle, nil
		}
	}
	return "", fault.New(fault.Unavailable, "no shim of this node has a folder of it")
}
