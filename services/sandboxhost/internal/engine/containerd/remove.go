package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/bind"
)

// startedStates are those of a process that was started, whatever became of it.
var startedStates = map[task.Status]bool{
	task.Status_RUNNING: true, task.Status_PAUSED: true, task.Status_PAUSING: true, task.Status_STOPPED: true,
}

// signal sends a signal to the main process. With it goes its pid namespace, so
// SIGKILL ends all processes of the container. Where the shim does not answer the
// process gets it from us.
func (e *Engine) signal(ctx context.Context, containerID string, sig syscall.Signal) error {
	answer, cancel := context.WithTimeout(ctx, shimLimit)
	defer cancel()
	_, err := e.client.TaskService().Kill(answer, &tasks.KillRequest{ContainerID: containerID, Signal: uint32(sig)})
	if err == nil {
		return nil
	}
	err = errgrpc.ToNative(err)
	if errdefs.IsNotFound(err) || strings.Contains(err.Error(), "process already finished") {
		return nil
	}
	if timedOut(err) && ctx.Err() == nil {
		return e.signalDirectly(containerID, sig)
	}
	return unavailable(fmt.Sprintf("send %s to container %s", sig, containerID), err)
}

// remove removes one container that does not run, in the order in which nothing
// is forgotten before it is gone: output, task, record of the start, root
// filesystem, record.
func (e *Engine) remove(ctx context.Context, containerID string) error {
	c := e.known(containerID)
	if c == nil {
		return nil
	}
	if err := e.endUnstarted(ctx, c); err != nil {
		return err
	}
	if c.note != nil {
		if err := e.logs.Finish(ctx, c.uid, c.note.GetContainer(), c.note.GetAttempt()); err != nil {
			return fmt.Errorf("close output of container %s: %w", containerID, err)
		}
	}
	if err := e.deleteTask(ctx, containerID); err != nil {
		return err
	}
	if err := e.removeHidden(containerID); err != nil {
		return err
	}
	if c.group != "" { // a workload whose shim was killed may outlive its task for a moment
		if err := e.cgroups.Clear(c.group); err != nil {
			return err
		}
	}
	if err := e.removeState(containerID); err != nil {
		return err
	}
	if err := e.client.SandboxStore().Delete(ctx, containerID); err != nil && !errdefs.IsNotFound(err) {
		return unavailable("delete start record of container "+containerID, err)
	}
	if c.snapshot != "" {
		err := e.client.SnapshotService(snapshotter).Remove(ctx, c.snapshot)
		if err != nil && !errdefs.IsNotFound(err) {
			return unavailable("remove root filesystem of container "+containerID, err)
		}
	}
	if err := e.displace(c); err != nil {
		return err
	}
	if err := e.client.ContainerService().Delete(ctx, containerID); err != nil && !errdefs.IsNotFound(err) {
		return unavailable("delete record of container "+containerID, err)
	}
	e.forget(containerID)
	return nil
}

// deleteTask removes a task whose process has ended. A root filesystem that somebody on
// the node looks into is taken from its place all the same: who has it open keeps it until
// they are done, and holds nothing of ours.
func (e *Engine) deleteTask(ctx context.Context, containerID string) error {
	request := &tasks.DeleteTaskRequest{ContainerID: containerID}
	_, err := e.client.TaskService().Delete(ctx, request)
	if err != nil && strings.Contains(err.Error(), "failed rootfs umount") && strings.Contains(err.Error(), "busy") {
		path := filepath.Join(e.bundles(), containerID, "rootfs")
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("detach root filesystem of container %s: %w", containerID, err)
		}
		e.log.Warn("busy root filesystem detached", logging.Component(containerID))
		_, err = e.client.TaskService().Delete(ctx, request)
	}
	if err := errgrpc.ToNative(err); err != nil && !errdefs.IsNotFound(err) {
		return unavailable("delete task of container "+containerID, err)
	}
	return nil
}

// removeHidden removes what containerd left of the folder of a task that is gone. It
// hides the folder before it removes it, and never looks at hidden ones again: one that
// was killed in between leaves it until the next boot.
func (e *Engine) removeHidden(containerID string) error {
	path := filepath.Join(e.bundles(), "."+containerID)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := removeMounted(path); err != nil {
		return fmt.Errorf("remove folder of container %s: %w", containerID, err)
	}
	e.log.Warn("folder of an ended task removed", logging.Component(containerID))
	return nil
}

// removeState removes what the runtime remembers of a container whose task is gone: one
// whose shim was killed nobody else has it forget.
func (e *Engine) removeState(containerID string) error {
	path := filepath.Join(e.runcFolder(), containerID)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove state of container %s: %w", containerID, err)
	}
	e.log.Warn("state of an ended task removed", logging.Component(containerID))
	return nil
}

// endUnstarted ends a task that waits for its start, which would hold its output
// open, and protects one whose process lives.
func (e *Engine) endUnstarted(ctx context.Context, c *container) error {
	res, err := e.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: c.id})
	if err != nil {
		err = errgrpc.ToNative(err)
		if errdefs.IsNotFound(err) {
			return nil
		}
		return unavailable("ask for task of container "+c.id, err)
	}
	switch s := res.GetProcess().GetStatus(); s {
	case task.Status_STOPPED:
		return nil
	case task.Status_CREATED:
		if err := e.signal(ctx, c.id, syscall.SIGKILL); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, questionLimit)
		defer cancel()
		if _, err := e.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: c.id}); err != nil {
			return unavailable("end task of container "+c.id, errgrpc.ToNative(err))
		}
		return nil
	case task.Status_RUNNING, task.Status_PAUSED, task.Status_PAUSING:
		return fault.New(fault.Conflict, "remove container %s: it runs; end it first", c.id)
	default:
		return fault.New(fault.Unavailable, "remove container %s: its state is %s", c.id, s)
	}
}

// release gives back all that a sandbox has beside containers and output. Its
// address and its ids are freed only now, when no process can use them any more.
func (e *Engine) release(uid id.Sandbox) error {
	if left := e.of(uid); len(left) > 0 {
		return fault.New(fault.Conflict, "release sandbox %s: container %s is left", uid, left[0].id)
	}
	if err := e.cgroups.Clear(e.group(uid.Lower())); err != nil {
		return err
	}
	if err := e.endLeftShims(uid); err != nil {
		return err
	}
	if err := e.removeShimSocket(uid); err != nil {
		return err
	}
	if err := e.network.Detach(uid); err != nil {
		return err
	}
	// Of a container that was never made: nothing of the node may be mounted where
	// the folder is removed.
	if err := bind.Clear(filepath.Join(e.pins.Dir(uid), bindsFolder)); err != nil {
		return err
	}
	if err := e.secrets.Age(uid); err != nil {
		return err
	}
	if err := e.pins.Release(uid); err != nil {
		return err
	}
	return e.ids.Free(uid)
}
