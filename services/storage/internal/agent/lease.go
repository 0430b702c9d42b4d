package agent

import (
	"context"
	"errors"
	"fmt"

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
	move, err := a.next(ctx, record)
	switch {
	case err != nil:
		return err
	case move == Bind:
		return a.bind(ctx, record)
	case move == Park:
		return a.park(ctx, record)
	}
	if err := a.takeBack(ctx, spec, move); err != nil || move != Release {
		return err
	}
	return a.reportLease(ctx, record, leaseStatus(resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_RELEASED, ""))
}

// next decides about one lease, asking the sandbox host where no grant tells.
func (a *Agent) next(ctx context.Context, record *resourcev1.Resource) (Move, error) {
	spec := record.GetDiskLease().GetSpec()
	a.mu.Lock()
	grant := a.view.grant(spec)
	a.mu.Unlock()
	user := Unknown
	if record.GetMeta().GetDeletingAt() != nil && grant == nil {
		var err error
		if user, err = a.askUser(ctx, spec.GetSandboxUid()); err != nil {
			return Rest, err
		}
	}
	move := DecideLease(record, grant, user)
	if move == Rest && user == Present {
		return Rest, fault.New(fault.Unavailable, "release disk %s: sandbox %s is still here", spec.GetDisk(), spec.GetSandboxUid())
	}
	return move, nil
}

// takeBack does what is to be done for a right that has ended.
func (a *Agent) takeBack(ctx context.Context, spec *resourcev1.DiskLeaseSpec, move Move) error {
	switch move {
	case Revoke:
		_, err := a.deps.Grants.RevokeDisk(ctx, &sandboxhostv1.RevokeDiskRequest{DiskUid: spec.GetDiskUid(), Epoch: spec.GetEpoch()})
		return err
	case Release:
		return a.release(ctx, spec)
	case Rest, Bind, Park:
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

// park unmounts the disk of a sandbox that is held, and says so once that is a fact. The
// lease stays bound: the disk is the sandbox's, and is mounted again for it alone.
func (a *Agent) park(ctx context.Context, record *resourcev1.Resource) error {
	spec := record.GetDiskLease().GetSpec()
	_, err := a.deps.Storage.DetachVolume(ctx, &storagev1.DetachVolumeRequest{
		Uid: spec.GetDiskUid(), Holder: spec.GetSandboxUid(), Epoch: spec.GetEpoch(), KeepRight: true,
	})
	if err != nil {
		return err
	}
	_, err = a.deps.Grants.ParkDisk(ctx, &sandboxhostv1.ParkDiskRequest{DiskUid: spec.GetDiskUid(), Epoch: spec.GetEpoch()})
	if err != nil {
		return err
	}
	return a.reportLease(ctx, record, leaseStatus(resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_BOUND, "unmounted: the node keeps the sandbox stopped"))
}

// release unmounts what nobody can use any more. The order matters: the grant is
// dropped last, so that a failure in between is found again.
func (a *Agent) release(ctx context.Context, spec *resourcev1.DiskLeaseSpec) error {
	_, err := a.deps.Storage.DetachVolume(ctx, &storagev1.DetachVolumeRequest{
		Uid: spec.GetDiskUid(), Holder: spec.GetSandboxUid(), Epoch: spec.GetEpoch(),
	})
	// Another holder has it: this right has ended long ago, or never was used.
	if r := fault.Reason(err); err != nil && r != "STALE_EPOCH" && r != "OTHER_HOLDER" {
		return err
	}
	_, err = a.deps.Grants.ForgetGrant(ctx, &sandboxhostv1.ForgetGrantRequest{DiskUid: spec.GetDiskUid(), Epoch: spec.GetEpoch()})
	return err
}
