package schedule

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/coordinator/internal/record"
)

// pinned returns the disks that a sandbox mounts and the node that they tie it
// to, or the reason why it has to wait for them.
func pinned(spec *resourcev1.SandboxSpec, all map[string]*record.Resource) (disks []*record.Resource, pin, reason string) {
	for _, name := range record.DiskNames(spec) {
		d := all[name]
		if why := unusable(d); why != "" {
			return nil, "", fmt.Sprintf("disk %s %s", name, why)
		}
		home := record.Home(d)
		if pin != "" && home != "" && home != pin {
			return nil, "", fmt.Sprintf("its disks are on different nodes: %s and %s", pin, home)
		}
		if home != "" {
			pin = home
		}
		disks = append(disks, d)
	}
	return disks, pin, ""
}

func unusable(d *record.Resource) string {
	switch {
	case d == nil:
		return "does not exist"
	case record.Deleting(d):
		return "is being deleted"
	case d.GetDisk().GetPlacement().GetHolder() != "":
		return "is held by sandbox " + d.GetDisk().GetPlacement().GetHolder()
	case d.GetDisk().GetStatus().GetPhase() == resourcev1.DiskPhase_DISK_PHASE_FAILED:
		return "has failed"
	}
	return ""
}

// grant makes the two records with which a sandbox becomes the holder of a disk.
// Exclusive it is by the compare-and-set with which both are written.
func grant(d, sandbox *record.Resource, node, leaseUID string, at *timestamppb.Timestamp) (disk, lease *record.Resource) {
	disk = record.Clone(d)
	before := disk.GetDisk().GetPlacement()
	disk.GetDisk().Placement = &resourcev1.DiskPlacement{
		Node: node, Holder: sandbox.GetMeta().GetUid(), Epoch: before.GetEpoch() + 1, LeaseUid: leaseUID,
	}
	lease = &record.Resource{
		Meta: &resourcev1.Metadata{
			Kind: record.DiskLease, Name: strings.ToLower(leaseUID), Uid: leaseUID,
			Owner: sandbox.GetMeta().GetUid(), CreatedAt: at, Generation: 1,
		},
		Kind: &resourcev1.Resource_DiskLease{DiskLease: &resourcev1.DiskLease{Spec: &resourcev1.DiskLeaseSpec{
			DiskUid: d.GetMeta().GetUid(), Disk: d.GetMeta().GetName(), SandboxUid: sandbox.GetMeta().GetUid(),
			Node: node, Epoch: disk.GetDisk().GetPlacement().GetEpoch(),
		}}},
	}
	return disk, lease
}
