package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/idrange"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// In a user namespace the ids 0 to 65535 are those of the sandbox's range on the node.
// Its root filesystem, and what it mounts that others see as well, are mounted so that
// owners are the same inside as without; what is made for it alone, in memory, belongs
// to its range.

// remapIDs is what the snapshotter says it can, if the kernel can mount a root
// filesystem with other owners than it has.
const remapIDs = "remap-ids"

// pin makes the namespaces of a sandbox, with ids of their own first if it asks for a
// user namespace.
func (e *Engine) pin(ctx context.Context, uid id.Sandbox, a engine.Attempt) error {
	wanted := namespace.Wanted{Network: !hostNetwork(a), Hostname: hostname(a), ShmSize: a.Wish.GetSpec().GetShmSizeBytes()}
	if a.Wish.GetSpec().GetUserNamespace() {
		if err := e.canMapUsers(ctx, uid); err != nil {
			return err
		}
		first, err := e.ids.Claim(uid)
		if err != nil {
			return err
		}
		wanted.Users = &namespace.Users{First: first, Count: idrange.Size}
	}
	return e.pins.Ensure(uid, wanted)
}

// canMapUsers refuses a user namespace where kernel or filesystem cannot do it.
func (e *Engine) canMapUsers(ctx context.Context, uid id.Sandbox) error {
	unsupported := func(why string) error {
		return fault.WithReason(fault.New(fault.Invalid,
			"make user namespace of sandbox %s: %s; leave user_namespace out, or choose another node", uid, why), "USER_NAMESPACES_UNSUPPORTED")
	}
	most, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	switch {
	case errors.Is(err, os.ErrNotExist):
		return unsupported("the kernel has none")
	case err != nil:
		return fmt.Errorf("make user namespace of sandbox %s: %w", uid, err)
	case strings.TrimSpace(string(most)) == "0":
		return unsupported("user.max_user_namespaces of the kernel is 0")
	}
	can, err := e.client.GetSnapshotterCapabilities(ctx, snapshotter)
	if err != nil {
		return unavailable("make user namespace of sandbox "+string(uid)+": ask what containerd can mount", err)
	}
	if !slices.Contains(can, remapIDs) {
		return unsupported("kernel or filesystem below containerd's folder cannot mount with other owners (Linux 5.19, and ext4, xfs or btrfs can)")
	}
	return nil
}

// mapping is what the runtime is told of the ids of a container; nil without a user
// namespace.
func (in input) mapping() []specs.LinuxIDMapping {
	if !in.sandbox.GetUserNamespace() {
		return nil
	}
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: in.firstID, Size: idrange.Size}}
}

// checkMapped refuses a user or group that has no id on the node.
func (in input) checkMapped() error {
	if !in.sandbox.GetUserNamespace() {
		return nil
	}
	for _, number := range append([]uint32{in.user.UID, in.user.GID}, in.user.AdditionalGids...) {
		if number >= idrange.Size {
			return fault.WithReason(fault.New(fault.Invalid,
				"create container %s: a user namespace has the ids 0 to %d, and it would run with %d; set user and groups to others, or leave user_namespace out",
				in.id, idrange.Size-1, number), "USER_NOT_MAPPED")
		}
	}
	return nil
}

// snapshotOptions have the owners of a root filesystem mapped.
func snapshotOptions(spec *resourcev1.SandboxSpec, first uint32) []snapshots.Opt {
	if !spec.GetUserNamespace() {
		return nil
	}
	ids := "0:" + strconv.FormatUint(uint64(first), 10) + ":" + strconv.Itoa(idrange.Size)
	return []snapshots.Opt{snapshots.WithLabels(map[string]string{
		snapshots.LabelSnapshotUIDMapping: ids, snapshots.LabelSnapshotGIDMapping: ids,
	})}
}

// onNode is a user of a container as the node knows it.
func onNode(user specs.User, first uint32) specs.User {
	return specs.User{UID: user.UID + first, GID: user.GID + first}
}

// mapped has the owners of what is mounted from the node mapped as well, if it has
// owners that are the node's.
func (in input) mapped(m specs.Mount) specs.Mount {
	if in.sandbox.GetUserNamespace() {
		m.Options = append(m.Options, "idmap")
	}
	return m
}
