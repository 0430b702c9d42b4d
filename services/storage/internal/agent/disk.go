package agent

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	storagev1 "staddle.internal/proto/gen/staddle/storage/v1"
)

// disk does the next thing for one disk of this node.
func (a *Agent) disk(ctx context.Context, record *resourcev1.Resource) error {
	disk, uid := record.GetDisk(), record.GetMeta().GetUid()
	if disk.GetPlacement().GetNode() != a.node && (disk.GetPlacement().GetNode() != "" || disk.GetSpec().GetNode() != a.node) {
		return nil
	}
	if record.GetMeta().GetDeletingAt() != nil {
		return a.removeDisk(ctx, record)
	}
	ensured, err := a.deps.Storage.EnsureVolume(ctx, &storagev1.EnsureVolumeRequest{Uid: uid})
	if fault.Reason(err) == "VOLUME_BROKEN" {
		return a.reportDisk(ctx, record, &resourcev1.DiskStatus{Phase: resourcev1.DiskPhase_DISK_PHASE_FAILED, Message: err.Error()})
	}
	if err != nil {
		return err
	}
	if Outlived(disk.GetPlacement(), ensured.GetVolume()) {
		return a.reclaim(ctx, record, ensured.GetVolume())
	}
	phase := resourcev1.DiskPhase_DISK_PHASE_AVAILABLE
	if ensured.GetVolume().GetPhase() == storagev1.VolumePhase_VOLUME_PHASE_ATTACHED {
		phase = resourcev1.DiskPhase_DISK_PHASE_ATTACHED
	}
	return a.reportDisk(ctx, record, &resourcev1.DiskStatus{Phase: phase})
}

// removeDisk removes the volume of a disk that is being deleted, once nobody has a
// right to it.
func (a *Agent) removeDisk(ctx context.Context, record *resourcev1.Resource) error {
	disk, uid := record.GetDisk(), record.GetMeta().GetUid()
	a.mu.Lock()
	leased := a.view.leased(uid)
	a.mu.Unlock()
	if leased || disk.GetPlacement().GetHolder() != "" {
		return nil // its release comes as a change
	}
	_, err := a.deps.Storage.RemoveVolume(ctx, &storagev1.RemoveVolumeRequest{Uid: uid})
	if fault.Reason(err) == "IN_USE" {
		v, lookErr := a.volume(ctx, uid)
		if lookErr != nil {
			return lookErr
		}
		if Outlived(disk.GetPlacement(), v) {
			return a.reclaim(ctx, record, v)
		}
	}
	if err != nil {
		return err
	}
	return a.reportDisk(ctx, record, &resourcev1.DiskStatus{Phase: resourcev1.DiskPhase_DISK_PHASE_AVAILABLE, TornDownAt: timestamppb.Now()})
}

// volume finds one volume among all, nil if it is not there.
func (a *Agent) volume(ctx context.Context, uid string) (*storagev1.Volume, error) {
	req := &storagev1.ListVolumesRequest{PageSize: 1000}
	for {
		page, err := a.deps.Storage.ListVolumes(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("look for volume %s: %w", uid, err)
		}
		for _, v := range page.GetVolumes() {
			if v.GetUid() == uid {
				return v, nil
			}
		}
		if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
			return nil, nil
		}
	}
}

// reclaim takes a volume back that has outlived its holder's right, once nobody
// uses it. No lease stands for it any more, so there is nothing to report. A user
// that is here all the same is not asked to go: its own record ends it, and if
// that is missing, this history may not be the one that gave it the right.
func (a *Agent) reclaim(ctx context.Context, disk *resourcev1.Resource, v *storagev1.Volume) error {
	spec := &resourcev1.DiskLeaseSpec{
		DiskUid: v.GetUid(), Disk: disk.GetMeta().GetName(), SandboxUid: v.GetHolder(), Node: a.node, Epoch: v.GetEpoch(),
	}
	move, err := a.next(ctx, &resourcev1.Resource{
		Meta: &resourcev1.Metadata{DeletingAt: timestamppb.Now()},
		Kind: &resourcev1.Resource_DiskLease{DiskLease: &resourcev1.DiskLease{Spec: spec}},
	})
	if err != nil {
		return err
	}
	if move != Release {
		return nil // the end of its use comes as a change
	}
	if err := a.release(ctx, spec); err != nil {
		return err
	}
	a.enqueueDisk(v.GetUid()) // whoever waits for it need wait no longer
	return nil
}
