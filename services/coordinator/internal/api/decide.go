package api

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

// maxRaces bounds how often a change is tried again that others overtook.
const maxRaces = 20

// Reasons of Conflict that callers branch on.
const (
	// ReasonBeingDeleted means that the record is on its way out.
	ReasonBeingDeleted = "BEING_DELETED"
	// ReasonStaleStatus means that a newer status is kept already.
	ReasonStaleStatus = "STALE_STATUS"
	// ReasonInUse means that something depends on the record.
	ReasonInUse = "IN_USE"
)

func conflict(reason, format string, args ...any) error {
	return fault.WithReason(fault.New(fault.Conflict, format, args...), reason)
}

// updated is the record that an update makes of old: old itself when nothing
// changes.
func updated(old, asked *record.Resource) (*record.Resource, error) {
	key := record.KeyOf(old)
	if uid := asked.GetMeta().GetUid(); uid != "" && uid != old.GetMeta().GetUid() {
		return nil, fault.New(fault.NotFound, "update %s: the record with uid %s is gone, another has the name", key, uid)
	}
	if record.Deleting(old) {
		return nil, conflict(ReasonBeingDeleted, "update %s: it is being deleted", key)
	}
	same := record.SameSpec(old, asked)
	if same && record.SameLabels(old, asked) {
		return old, nil
	}
	if old.GetMeta().GetRevision() != asked.GetMeta().GetRevision() {
		return nil, conflict(store.ReasonRevision, "update %s: it has revision %d, not %d: read it again",
			key, old.GetMeta().GetRevision(), asked.GetMeta().GetRevision())
	}
	if err := checkConstant(old, asked); err != nil {
		return nil, err
	}
	next := record.Clone(old)
	record.TakeSpec(next, record.Clone(asked))
	if !same {
		next.Meta.Generation++
	}
	return next, nil
}

// checkConstant refuses changes of what never changes.
func checkConstant(old, asked *record.Resource) error {
	key := record.KeyOf(old)
	switch record.Body(old) {
	case record.Sandbox:
		before, after := record.DiskNames(old.GetSandbox().GetSpec()), record.DiskNames(asked.GetSandbox().GetSpec())
		if !slices.Equal(before, after) {
			return fault.New(fault.Invalid, "update %s: spec.containers.disks: the disks of a sandbox never change: make another sandbox", key)
		}
	case record.Disk:
		if old.GetDisk().GetSpec().GetNode() != asked.GetDisk().GetSpec().GetNode() {
			return fault.New(fault.Invalid, "update %s: spec.node: the node of a disk never changes: make another disk", key)
		}
	case record.Service:
		if old.GetService().GetSpec().GetHeadless() != asked.GetService().GetSpec().GetHeadless() {
			return fault.New(fault.Invalid, "update %s: spec.headless: a service stays with or without an address: make another service", key)
		}
		has := old.GetService().GetPlacement().GetAddress()
		if address := asked.GetService().GetSpec().GetAddress(); address != "" && address != has {
			return fault.New(fault.Invalid, "update %s: spec.address: the address of a service, %s, never changes: name that one or none, or make another service", key, has)
		}
	}
	return nil
}

// reported is the record that a status makes of old: old itself when that very
// status is kept already.
func reported(old, said *record.Resource, at time.Time) (*record.Resource, error) {
	key, before, seq := record.KeyOf(old), record.Seq(old), record.Seq(said)
	switch {
	case seq < before:
		return nil, conflict(ReasonStaleStatus, "report status of %s: seq %d is kept, %d is older", key, before, seq)
	case seq == before:
		return old, nil
	}
	next := record.Clone(old)
	record.TakeStatus(next, record.Clone(said))
	if n := next.GetNode(); n != nil && record.Ready(n) && n.GetPlacement().GetSessionId() != 0 && n.GetPlacement().GetRegisteredAt() == nil {
		n.Placement.RegisteredAt = timestamppb.New(at)
	}
	return next, nil
}

// deletion is what a request to delete comes to.
type deletion int

const (
	refused    deletion = iota
	keepMarked          // it is marked already
	mark                // its node tears it down
	removeNow           // nobody has it
)

// deleted decides what a request to delete does to the record as it is.
func deleted(old *record.Resource, req *coordinatorv1.DeleteResourceRequest) (deletion, error) {
	key := record.KeyOf(old)
	if uid := req.GetUid(); uid != "" && uid != old.GetMeta().GetUid() {
		return refused, fault.New(fault.NotFound, "delete %s: the record with uid %s is gone, another has the name", key, uid)
	}
	if record.Deleting(old) {
		return keepMarked, nil
	}
	if rev := req.GetRevision(); rev != 0 && rev != old.GetMeta().GetRevision() {
		return refused, conflict(store.ReasonRevision, "delete %s: it has revision %d, not %d: read it again", key, old.GetMeta().GetRevision(), rev)
	}
	if holder := old.GetDisk().GetPlacement().GetHolder(); holder != "" {
		return refused, conflict(ReasonInUse, "delete %s: sandbox %s holds it", key, holder)
	}
	if record.Body(old) == record.Node {
		if session := old.GetNode().GetPlacement().GetSessionId(); session != 0 {
			return refused, conflict(ReasonInUse, "delete %s: it has a session: stop the node first", key)
		}
		return removeNow, nil
	}
	if record.Home(old) == "" {
		return removeNow, nil
	}
	return mark, nil
}

// statusOf is the status that a report carries, for checking.
func statusOf(said *record.Resource) (proto.Message, error) {
	status := record.Status(said)
	if status == nil || record.Seq(said) == 0 {
		return nil, fault.New(fault.Invalid, "report status of %s: status: it is missing or has no seq", record.KeyOf(said))
	}
	return status, nil
}
