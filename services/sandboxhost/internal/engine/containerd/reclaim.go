package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/inventory"
	"staddle.internal/services/sandboxhost/internal/network"
)

// Reclaim removes one object that is left over. See engine.Audit.
func (e *Engine) Reclaim(ctx context.Context, o inventory.Object) error {
	if _, err := e.ask(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	switch o.Kind {
	case inventory.Container:
		return e.takeUp(ctx, o.Name)
	case inventory.Lease:
		return missing("remove lease "+o.Name, e.client.LeasesService().Delete(ctx, leases.Lease{ID: o.Name}))
	case inventory.Interface:
		return e.network.RemoveInterface(o.Name)
	case inventory.Shim:
		return e.endShims(o.UID)
	case inventory.ShimSocket:
		if !abandoned(o.Name) {
			return nil
		}
		return ignoreMissing(os.Remove(o.Name))
	}
	if o.Container != "" {
		return e.reclaimOfContainer(ctx, o)
	}
	if o.Kind == inventory.Snapshot { // the view of an image
		return missing("remove snapshot "+o.Name, e.client.SnapshotService(snapshotter).Remove(ctx, o.Name))
	}
	return nil // StepRelease and StepLogs remove it
}

// takeUp makes a container known that somebody else made with our label, or that we
// have lost sight of: from now on it is observed and removed as any other.
func (e *Engine) takeUp(ctx context.Context, containerID string) error {
	record, err := e.client.ContainerService().Get(ctx, containerID)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return unavailable("ask for container "+containerID, err)
	}
	c, ok := e.read(record)
	if !ok || c.note == nil {
		return fault.New(fault.Conflict, "container %s: was made by a version that this one does not know, and is left alone", containerID)
	}
	if e.known(containerID) == nil {
		e.remember(c)
	}
	return nil
}

// reclaimOfContainer removes what is left of a container that containerd does not
// have.
func (e *Engine) reclaimOfContainer(ctx context.Context, o inventory.Object) error {
	uid, name, attempt, ok := splitID(o.Container)
	if !ok {
		return fault.New(fault.Internal, "reclaim %s: %s is no id of a container of ours", o.Name, o.Container)
	}
	_, err := e.client.ContainerService().Get(ctx, o.Container)
	if err == nil {
		return nil // what removes the container removes it
	}
	if !errdefs.IsNotFound(err) {
		return unavailable("ask for container "+o.Container, err)
	}
	switch o.Kind {
	case inventory.Task:
		return e.endTask(ctx, o.Container)
	case inventory.StartRecord:
		return missing("remove start record "+o.Name, e.client.SandboxStore().Delete(ctx, o.Container))
	case inventory.Snapshot:
		return missing("remove snapshot "+o.Name, e.client.SnapshotService(snapshotter).Remove(ctx, o.Name))
	case inventory.Pipe:
		if filepath.Base(filepath.Dir(o.Name)) == pipesFolder {
			return errors.Join(e.logs.Finish(ctx, uid, name, attempt), ignoreMissing(os.Remove(o.Name)))
		}
	}
	return e.reclaimPath(ctx, o, uid)
}

// reclaimPath removes folders and mounts of a container that is gone.
func (e *Engine) reclaimPath(ctx context.Context, o inventory.Object, uid id.Sandbox) error {
	switch {
	case strings.HasPrefix(o.Name, e.runcFolder()+"/"):
		return e.clearState(ctx, o.Container)
	case strings.HasPrefix(o.Name, e.bundles()+"/"):
		return e.clearBundle(ctx, o.Container)
	}
	return e.displace(&container{id: o.Container, uid: uid})
}

// endTask ends and removes a task of which there is no container.
func (e *Engine) endTask(ctx context.Context, containerID string) error {
	if err := e.signal(ctx, containerID, syscall.SIGKILL); err != nil {
		return err
	}
	_, err := e.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: containerID})
	if err := missing("end task "+containerID, errgrpc.ToNative(err)); err != nil {
		return err
	}
	_, err = e.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: containerID})
	return missing("remove task "+containerID, errgrpc.ToNative(err))
}

// missing takes what is not there for removed.
func missing(doing string, err error) error {
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	return unavailable(doing, err)
}

// Reflect lets a sandbox of the node's network reach itself by an address that leads to it.
func (e *Engine) Reflect(uid id.Sandbox) error { return e.network.Reflect(uid) }

// Ports is where ports of the node are claimed.
func (e *Engine) Ports() *network.Network { return e.network }

// Mend makes what all sandboxes share as it should be. See engine.Audit.
func (e *Engine) Mend(ctx context.Context) error {
	if e.cfg.Network.Disable {
		return nil
	}
	off, err := e.network.Mend(ctx)
	for _, uid := range off {
		e.hints.one(uid)
	}
	return err
}
