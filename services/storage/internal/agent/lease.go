package agent

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	storagev1 "staddle.internal/proto/gen/staddle/storage/v1"
)

// lease does the next thing for one lease of this node.
func (a *Agent) lease(ctx context.Context, record *resourcev1.Resource) error {
	spec := record.GetDiskLease().GetSpec()
	if spec.GetNode() != a.node {
		return nil
	}
	a.mu.Lock()
	grant := a.view.grant(spec)
	a.mu.Unlock()
	user := Unknown
	if record.GetMeta().GetDeletingAt() != nil && grant == nil {
		var err error
		if user, err = a.askUser(ctx, spec.GetSandboxUid()); err != nil {
			return err
		}
	}
	switch DecideLease(record, grant, user) {
	case Bind:
		return a.bind(ctx, record)
	case Revoke:
		_, err := a.deps.Grants.RevokeDisk(ctx, &sandboxhostv1.RevokeDiskRequest{DiskUid: spec.GetDiskUid(), Epoch: spec.GetEpoch()})
		return err
	case Release:
		return a.release(ctx, record)
	case Rest:
	}
	if user == Present {
		return fault.New(fault.Unavailable, "release disk %s: sandbox %s is still here", spec.GetDisk(), spec.GetSandboxUid())
	}
	return nil
}

// askUser asks the sandbox host whether the sandbox may still use anything.
func (a *Agent) askUser(ctx context.Context, uid string) (User, error) {
	r, err := a.deps.Hosts.GetSandbox(ctx, &sandboxhostv1.GetSandboxRequest{Uid: uid})
	switch {
	case errors.Is(err, fault.NotFound):
		return Gone, nil
	case err != nil:
		return Unknown, fmt.Errorf("ask for sandbox %s: %w", uid, err)
	case r.GetSandbox().GetStatus().GetTornDownAt() != nil:
		return Gone, nil
	}
	return Present, nil
}

// bind makes the volume, mounts it and grants it: each step is a success when it
// was done before.
func (a *Agent) bind(ctx context.Context, record *resourcev1.Resource) error {
	spec := record.GetDiskLease().GetSpec()
	err := a.attachAndGrant(ctx, spec)
	switch {
	case err == nil:
		return a.reportLease(ctx, record, leaseStatus(resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_BOUND, ""))
	case errors.Is(err, fault.Conflict), errors.Is(err, fault.Exhausted):
		// It is this node's disk, so this node says why it cannot be had; it goes
		// on trying, since the cause may go away.
		phase := resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_PENDING
		return errors.Join(err, a.reportLease(ctx, record, leaseStatus(phase, err.Error())))
	}
	return err
}

func (a *Agent) attachAndGrant(ctx context.Context, spec *resourcev1.DiskLeaseSpec) error {
	if _, err := a.deps.Storage.EnsureVolume(ctx, &storagev1.EnsureVolumeRequest{Uid: spec.GetDiskUid()}); err != nil {
		return err
	}
	attached, err := a.deps.Storage.AttachVolume(ctx, &storagev1.AttachVolumeRequest{
		Uid: spec.GetDiskUid(), Holder: spec.GetSandboxUid(), Epoch: spec.GetEpoch(),
	})
	if err != nil {
		return err
	}
	_, err = a.deps.Grants.GrantDisk(ctx, &sandboxhostv1.GrantDiskRequest{
		DiskUid: spec.GetDiskUid(), Disk: spec.GetDisk(), SandboxUid: spec.GetSandboxUid(),
		Epoch: spec.GetEpoch(), Path: attached.GetVolume().GetPath(),
	})
	return err
}

// release unmounts what nobody can use any more and says so. The order matters:
// the grant is dropped last, so that a failure in between is found again.
func (a *Agent) release(ctx context.Context, record *resourcev1.Resource) error {
	spec := record.GetDiskLease().GetSpec()
	_, err := a.deps.Storage.DetachVolume(ctx, &storagev1.DetachVolumeRequest{Uid: spec.GetDiskUid(), Epoch: spec.GetEpoch()})
	if err != nil && fault.Reason(err) != "STALE_EPOCH" { // a later holder has it: this right has ended long ago
		return err
	}
	if _, err := a.deps.Grants.ForgetGrant(ctx, &sandboxhostv1.ForgetGrantRequest{DiskUid: spec.GetDiskUid(), Epoch: spec.GetEpoch()}); err != nil {
		return err
	}
	return a.reportLease(ctx, record, leaseStatus(resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_RELEASED, ""))
}

// disk does the next thing for one disk of this node.
func (a *Agent) disk(ctx context.Context, record *resourcev1.Resource) error {
	disk, uid := record.GetDisk(), record.GetMeta().GetUid()
	if disk.GetPlacement().GetNode() != a.node && (disk.GetPlacement().GetNode() != "" || disk.GetSpec().GetNode() != a.node) {
		return nil
	}
	a.mu.Lock()
	leased := a.view.leased(uid)
	a.mu.Unlock()
	if record.GetMeta().GetDeletingAt() != nil {
		if leased || disk.GetPlacement().GetHolder() != "" {
			return nil // its release comes as a change
		}
		if _, err := a.deps.Storage.RemoveVolume(ctx, &storagev1.RemoveVolumeRequest{Uid: uid}); err != nil {
			return err
		}
		return a.reportDisk(ctx, record, &resourcev1.DiskStatus{Phase: resourcev1.DiskPhase_DISK_PHASE_AVAILABLE, TornDownAt: timestamppb.Now()})
	}
	ensured, err := a.deps.Storage.EnsureVolume(ctx, &storagev1.EnsureVolumeRequest{Uid: uid})
	if fault.Reason(err) == "VOLUME_BROKEN" {
		return a.reportDisk(ctx, record, &resourcev1.DiskStatus{Phase: resourcev1.DiskPhase_DISK_PHASE_FAILED, Message: err.Error()})
	}
	if err != nil {
		return err
	}
	phase := resourcev1.DiskPhase_DISK_PHASE_AVAILABLE
	if ensured.GetVolume().GetPhase() == storagev1.VolumePhase_VOLUME_PHASE_ATTACHED {
		phase = resourcev1.DiskPhase_DISK_PHASE_ATTACHED
	}
	return a.reportDisk(ctx, record, &resourcev1.DiskStatus{Phase: phase})
}
