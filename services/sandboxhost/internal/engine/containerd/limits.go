package containerd

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
)

// extensionLimits is kept with a container whose limits are not those of its note any
// more: the ResourceLimits that it has.
const extensionLimits = "staddle.internal/limits"

// limit gives a running container the limits of the wish. The kernel comes first: what
// is kept with the container then is never more than what is so.
func (e *Engine) limit(ctx context.Context, a engine.Attempt, action engine.Action) error {
	spec, err := containerSpec(a, action.Container)
	if err != nil {
		return err
	}
	doing := "update limits of container " + action.ContainerID
	c := e.known(action.ContainerID)
	if c == nil {
		return nil
	}
	wanted, err := typeurl.MarshalAnyToProto(newLimits(input{container: spec, able: e.able()}))
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	_, err = e.client.TaskService().Update(ctx, &tasks.UpdateTaskRequest{ContainerID: c.id, Resources: wanted})
	if err != nil {
		if e.ended(ctx, c.id) {
			return nil
		}
		return unavailable(doing, errgrpc.ToNative(err))
	}
	return e.keepLimits(ctx, c, spec.GetLimits())
}

// keepLimits notes the limits that a container has.
func (e *Engine) keepLimits(ctx context.Context, c *container, limits *resourcev1.ResourceLimits) error {
	if limits == nil {
		limits = &resourcev1.ResourceLimits{}
	}
	kept, err := typeurl.MarshalAny(limits)
	if err != nil {
		return fmt.Errorf("encode limits of container %s: %w", c.id, err)
	}
	_, err = e.client.ContainerService().Update(ctx,
		containers.Container{ID: c.id, Extensions: map[string]typeurl.Any{extensionLimits: kept}}, "extensions."+extensionLimits)
	if err != nil && !errdefs.IsNotFound(err) {
		return unavailable("note limits of container "+c.id, err)
	}
	e.mu.Lock()
	c.limits = limits
	e.mu.Unlock()
	return nil
}

// readLimits are the limits that a container has, by its record.
func readLimits(record containers.Container, made *resourcev1.ContainerSpec) *resourcev1.ResourceLimits {
	limits := &resourcev1.ResourceLimits{}
	kept, ok := record.Extensions[extensionLimits]
	if !ok || typeurl.UnmarshalTo(kept, limits) != nil { // then they are set anew
		return made.GetLimits()
	}
	return limits
}

// newLimits is what the kernel is told for the limits of a container that has some
// already: none is said in so many words.
func newLimits(in input) *specs.LinuxResources {
	r := resources(in)
	r.Devices = nil // they are not limits
	none := int64(-1)
	if r.Memory == nil {
		r.Memory = &specs.LinuxMemory{}
	}
	if r.Memory.Limit == nil {
		r.Memory.Limit = &none
		if in.able.limitSwap && r.Memory.Swap == nil {
			r.Memory.Swap = &none
		}
	}
	if r.CPU == nil {
		r.CPU = &specs.LinuxCPU{}
	}
	if r.CPU.Quota == nil {
		r.CPU.Quota = &none
	}
	if r.CPU.Shares == nil {
		r.CPU.Shares = new(uint64(defaultShares))
	}
	return r
}
