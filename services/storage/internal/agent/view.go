package agent

import (
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// view is what the agent knows of records and grants. It is not safe for
// concurrent use; the agent's mutex guards it.
type view struct {
	live    bool // the records are complete on this connection
	synced  bool // the grants are
	records map[key]*resourcev1.Resource
	grants  map[string]*sandboxhostv1.Grant // by uid of the disk
}

func newView() view {
	return view{records: map[key]*resourcev1.Resource{}, grants: map[string]*sandboxhostv1.Grant{}}
}

func keyOf(r *resourcev1.Resource) key {
	return key{kind: r.GetMeta().GetKind(), uid: r.GetMeta().GetUid()}
}

// record returns a record, or nil, and whether it may be acted on.
func (v *view) record(k key) (*resourcev1.Resource, bool) {
	return v.records[k], v.live && v.synced
}

// grant returns the grant of a lease's disk under the lease's epoch, or nil.
func (v *view) grant(lease *resourcev1.DiskLeaseSpec) *sandboxhostv1.Grant {
	g := v.grants[lease.GetDiskUid()]
	if g.GetEpoch() != lease.GetEpoch() || g.GetSandboxUid() != lease.GetSandboxUid() {
		return nil
	}
	return g
}

// keys are all records.
func (v *view) keys() []key {
	keys := make([]key, 0, len(v.records))
	for k := range v.records {
		keys = append(keys, k)
	}
	return keys
}

// ofDisk are the records that are about one disk: itself and its leases.
func (v *view) ofDisk(uid string) []key {
	var keys []key
	for k, r := range v.records {
		if k.uid == uid || r.GetDiskLease().GetSpec().GetDiskUid() == uid {
			keys = append(keys, k)
		}
	}
	return keys
}

// leased says whether any lease of the disk has not been released yet.
func (v *view) leased(diskUID string) bool {
	for _, r := range v.records {
		lease := r.GetDiskLease()
		if lease.GetSpec().GetDiskUid() == diskUID && lease.GetStatus().GetPhase() != resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_RELEASED {
			return true
		}
	}
	return false
}
