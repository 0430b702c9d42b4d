package agent

import (
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	storagev1 "staddle.internal/proto/gen/staddle/storage/v1"
)

// Move is the next thing to do for a lease.
type Move int

// The moves, in the order of a lease's life.
const (
	// Rest: nothing is to be done before something changes.
	Rest Move = iota
	// Bind: make and mount the volume and grant it to the sandbox.
	Bind
	// Revoke: ask the sandbox host to give the grant back.
	Revoke
	// Release: nobody uses the disk any more; unmount it, drop the grant, report.
	Release
	// Park: nobody uses the disk while its sandbox is held; unmount it. The right stays.
	Park
)

// User says whether a process of the sandbox may still use the disk, as the
// sandbox host knows it.
type User int

// What the sandbox host says of a sandbox.
const (
	// Unknown: the host was not asked, or could not answer. Never taken for Gone.
	Unknown User = iota
	// Present: the host has the sandbox, and it is not torn down.
	Present
	// Gone: the host holds nothing of the sandbox, or has torn it down: a fact.
	Gone
)

// DecideLease says what to do for one lease of this node. It is pure. grant is
// what the sandbox host holds for the disk under the lease's epoch, nil if there
// is none.
func DecideLease(lease *resourcev1.Resource, grant *sandboxhostv1.Grant, user User) Move {
	phase := lease.GetDiskLease().GetStatus().GetPhase()
	ended := phase == resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_RELEASED
	if lease.GetMeta().GetDeletingAt() == nil {
		return decideLive(ended, grant.GetState())
	}
	if ended {
		return Rest
	}
	switch grant.GetState() {
	case sandboxhostv1.GrantState_GRANT_STATE_HELD, sandboxhostv1.GrantState_GRANT_STATE_IDLE, sandboxhostv1.GrantState_GRANT_STATE_PARKED:
		return Revoke
	case sandboxhostv1.GrantState_GRANT_STATE_REVOKED:
		return Rest
	case sandboxhostv1.GrantState_GRANT_STATE_RETURNED:
		return Release
	case sandboxhostv1.GrantState_GRANT_STATE_UNSPECIFIED:
	}
	// No grant: it was never given, it was dropped after its return, or the host
	// lost its notes. Only the sandbox itself can tell these apart.
	if user == Gone {
		return Release
	}
	return Rest
}

// decideLive is for a lease that has not been ended.
func decideLive(released bool, grant sandboxhostv1.GrantState) Move {
	if released {
		return Rest
	}
	switch grant {
	case sandboxhostv1.GrantState_GRANT_STATE_IDLE:
		return Park
	case sandboxhostv1.GrantState_GRANT_STATE_REVOKED, sandboxhostv1.GrantState_GRANT_STATE_RETURNED, sandboxhostv1.GrantState_GRANT_STATE_PARKED:
		return Rest
	}
	return Bind
}

// Outlived says whether a volume is attached under a right that the coordinator has
// ended: the disk is free, or given to a later holder. That happens without this
// node's word only when the node was removed, and let in again. It is pure.
func Outlived(p *resourcev1.DiskPlacement, v *storagev1.Volume) bool {
	if v.GetHolder() == "" {
		return false
	}
	return p.GetEpoch() > v.GetEpoch() || p.GetEpoch() == v.GetEpoch() && p.GetHolder() == ""
}

// leaseStatus is the status that a lease should show, without seq.
func leaseStatus(phase resourcev1.DiskLeasePhase, message string) *resourcev1.DiskLeaseStatus {
	return &resourcev1.DiskLeaseStatus{Phase: phase, Message: message}
}

// sameLease says whether two statuses say the same, whatever their seq.
func sameLease(a, b *resourcev1.DiskLeaseStatus) bool {
	return a.GetPhase() == b.GetPhase() && a.GetMessage() == b.GetMessage()
}

// sameDisk says whether two statuses say the same, whatever their seq.
func sameDisk(a, b *resourcev1.DiskStatus) bool {
	return a.GetPhase() == b.GetPhase() && a.GetMessage() == b.GetMessage() &&
		a.GetObservedGeneration() == b.GetObservedGeneration() && (a.GetTornDownAt() == nil) == (b.GetTornDownAt() == nil)
}
