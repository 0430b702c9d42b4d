package containerd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/image"
	"staddle.internal/services/sandboxhost/internal/logs"
)

// taskLimit bounds the making of a task. The shim is told of it and gives up by
// itself, so that one that was left alone by a death of containerd does not wait
// on a pipe for ever, and all of its sandbox with it.
const taskLimit = 20 * time.Second

// runtimeName is the runtime of every container.
const runtimeName = "io.containerd.runc.v2"

// create makes one container and its task. The record comes first, so that
// whatever is made is found by it.
func (e *Engine) create(ctx context.Context, uid id.Sandbox, a engine.Attempt, name string) error {
	spec, err := containerSpec(a, name)
	if err != nil {
		return err
	}
	c := &container{
		id: engine.ContainerID(uid, name, a.Number), uid: uid, group: e.group(uid.Lower(), name),
		note: &sandboxhostv1.ContainerNote{
			Format: noteFormat, Wish: a.Wish, Attempt: a.Number, Container: name, SpecHash: a.SpecHash,
		},
	}
	c.snapshot, c.limits = c.id, spec.GetLimits()
	if err := e.clearEarlier(ctx, c); err != nil {
		return err
	}
	img, err := e.images.Find(ctx, image.Pinned(spec.GetImage(), a.Images[name]))
	if err != nil {
		return err
	}
	c.note.StopSignal = uint32(engine.ChooseStopSignal(spec, img.Config.StopSignal))
	if err := e.writeFiles(uid, a); err != nil {
		return err
	}
	record, err := e.record(ctx, a, c, spec, img)
	if err != nil {
		return err
	}
	user, err := e.userOf(ctx, spec, img)
	if err != nil {
		return err
	}
	first, _ := e.ids.First(uid)
	if err := e.place(c, spec, onNode(user, first)); err != nil {
		return errors.Join(err, e.displace(c))
	}
	if err := e.make(ctx, c, record, img, spec); err != nil {
		return fmt.Errorf("create container %s: %w", c.id, err)
	}
	return nil
}

func containerSpec(a engine.Attempt, name string) (*resourcev1.ContainerSpec, error) {
	for _, spec := range a.Wish.GetSpec().GetContainers() {
		if spec.GetName() == name {
			return spec, nil
		}
	}
	return nil, fault.New(fault.Invalid, "create container %s of sandbox %s: the spec has no such container", name, a.Wish.GetUid())
}

// clearEarlier removes what an earlier try left of the same container, and what
// runs in its control group. One that runs is fault.Conflict. Before the first
// container of an attempt no shim of an earlier one may be left.
func (e *Engine) clearEarlier(ctx context.Context, c *container) error {
	if e.known(c.id) != nil {
		if err := e.remove(ctx, c.id); err != nil {
			return err
		}
	}
	if len(e.of(c.uid)) == 0 {
		if err := e.endLeftShims(c.uid); err != nil {
			return err
		}
	}
	return e.cgroups.Clear(c.group)
}

// record is what containerd keeps of a container.
func (e *Engine) record(ctx context.Context, a engine.Attempt, c *container, spec *resourcev1.ContainerSpec, img image.Image) (containers.Container, error) {
	oci, err := e.spec(ctx, a, c, spec, img)
	if err != nil {
		return containers.Container{}, err
	}
	ociAny, err := typeurl.MarshalAny(oci)
	if err != nil {
		return containers.Container{}, fmt.Errorf("encode spec of container %s: %w", c.id, err)
	}
	note, err := typeurl.MarshalAny(c.note)
	if err != nil {
		return containers.Container{}, fmt.Errorf("encode note of container %s: %w", c.id, err)
	}
	first, _ := e.ids.First(c.uid) // whose the pipes of its output are
	options, err := typeurl.MarshalAny(&runcoptions.Options{
		ShimCgroup: e.group(engine.ShimGroup), Root: filepath.Join(e.cfg.Paths.Run(), "runc"), IoUid: first, IoGid: first,
	})
	if err != nil {
		return containers.Container{}, fmt.Errorf("encode options of container %s: %w", c.id, err)
	}
	return containers.Container{
		ID: c.id, Image: img.Name,
		Labels:      map[string]string{labelSandbox: string(c.uid), labelGroup: c.group},
		Runtime:     containers.RuntimeInfo{Name: runtimeName, Options: options},
		Spec:        ociAny,
		Extensions:  map[string]typeurl.Any{extensionNote: note},
		SnapshotKey: c.snapshot, Snapshotter: snapshotter,
	}, nil
}

// make makes record, root filesystem, pipes and task.
func (e *Engine) make(ctx context.Context, c *container, record containers.Container, img image.Image, spec *resourcev1.ContainerSpec) error {
	e.remember(c)
	if _, err := e.client.ContainerService().Create(ctx, record); err != nil {
		return unavailable("make its record", err)
	}
	first, _ := e.ids.First(c.uid)
	mounts, err := e.client.SnapshotService(snapshotter).Prepare(ctx, c.snapshot, img.ChainID, snapshotOptions(c.note.GetWish().GetSpec(), first)...)
	if errdefs.IsNotFound(err) {
		e.images.Forget(img.Digest)
		return fault.New(fault.Unavailable, "make its root filesystem: image %s has to be unpacked again: %s", img.Name, brief(err))
	}
	if err != nil {
		return refused("make its root filesystem", err)
	}
	pipes, err := e.logs.Open(c.uid, c.note.GetContainer(), c.note.GetAttempt(), deliveryOf[spec.GetLogMode()])
	if err != nil {
		return err
	}
	request := &tasks.CreateTaskRequest{
		ContainerID: c.id, Stdout: pipes.Stdout, Stderr: pipes.Stderr, Rootfs: wireMounts(mounts), Terminal: spec.GetTty(),
	}
	if spec.GetTty() {
		request.Stderr = "" // a terminal has one stream
	}
	if spec.GetStdin() {
		request.Stdin = e.stdin(c)
	}
	// After a failure the pipes stay as they are until the container is removed:
	// the shim may be about to open them even so, and would wait for a reader.
	if err := e.makeTask(ctx, request); err != nil {
		return err
	}
	return pipes.Release()
}

// deliveryOf is what package logs calls it.
var deliveryOf = map[resourcev1.LogMode]logs.Delivery{
	resourcev1.LogMode_LOG_MODE_BLOCKING:     logs.Blocking,
	resourcev1.LogMode_LOG_MODE_NON_BLOCKING: logs.NonBlocking,
}

// makeTask makes the task. What containerd lost half of is healed first; one cure
// may bring the next trouble to light, hence a few tries.
func (e *Engine) makeTask(ctx context.Context, request *tasks.CreateTaskRequest) error {
	ctx, cancel := context.WithTimeout(ctx, taskLimit)
	defer cancel()
	const cures = 3
	for try := 0; ; try++ {
		again, err := e.requestTask(ctx, request)
		if err == nil {
			return nil
		}
		if again && try < cures {
			continue
		}
		cure := e.cureFor(err)
		if cure == nil || try == cures {
			return refused("make its task", err)
		}
		if cureErr := cure(ctx, request.ContainerID); cureErr != nil {
			return errors.Join(unavailable("make its task", err), cureErr)
		}
	}
}

// cureFor is what helps against an error of making a task, nil if nothing does.
func (e *Engine) cureFor(err error) func(ctx context.Context, containerID string) error {
	switch {
	case leftBundle(err):
		return e.clearBundle
	case leftState(err):
		return e.clearState
	case errdefs.IsAlreadyExists(errgrpc.ToNative(err)):
		return e.heal
	}
	return nil
}

func wireMounts(mounts []mount.Mount) []*types.Mount {
	list := make([]*types.Mount, 0, len(mounts))
	for _, m := range mounts {
		list = append(list, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return list
}

// start starts a created container. The sandbox record is written after the task
// was made and before its process starts: earlier, and a death of containerd in
// between would leave a shim that it cannot get rid of; later, and it would forget
// the exit of a process that ends while it is down.
func (e *Engine) start(ctx context.Context, containerID string) error {
	c := e.known(containerID)
	if c == nil {
		return fault.New(fault.Conflict, "start container %s: it was not created", containerID)
	}
	record, err := e.client.SandboxStore().Create(ctx, sandbox.Sandbox{
		ID: containerID, Sandboxer: "shim", Runtime: sandbox.RuntimeOpts{Name: runtimeName},
		Labels: map[string]string{labelSandbox: string(c.uid)},
	})
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return unavailable("start container "+containerID+": note its start", err)
	}
	if err := e.startTask(ctx, c); err != nil {
		return e.notStarted(ctx, c, err)
	}
	e.mu.Lock()
	c.startedAt = record.CreatedAt // zero if an earlier try wrote it: it is asked for then
	e.mu.Unlock()
	return e.logs.Started(c.uid, c.note.GetContainer(), c.note.GetAttempt())
}

// notStarted looks whether a start that failed had been done before.
func (e *Engine) notStarted(ctx context.Context, c *container, cause error) error {
	res, err := e.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: c.id})
	if err != nil {
		err = errgrpc.ToNative(err)
		if errdefs.IsNotFound(err) {
			return refused("start container "+c.id, cause)
		}
		return unavailable("start container "+c.id, errors.Join(cause, err))
	}
	process := res.GetProcess()
	if process.GetStatus() == task.Status_CREATED {
		let, err := e.letGo(c.id, int(process.GetPid()))
		if err != nil {
			return unavailable("start container "+c.id, errors.Join(cause, err))
		}
		if let {
			e.log.Warn("start that was cut was done", logging.Component(c.id))
			return e.logs.Started(c.uid, c.note.GetContainer(), c.note.GetAttempt())
		}
	}
	// "cannot start a running process", or "a stopped" one: it was done before.
	if startedStates[process.GetStatus()] && strings.Contains(cause.Error(), "cannot start a ") {
		return e.logs.Started(c.uid, c.note.GetContainer(), c.note.GetAttempt())
	}
	return refused("start container "+c.id, cause)
}
