package api

import (
	"context"
	"time"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/rights"
	"staddle.internal/services/coordinator/internal/store"
)

// UpdateResourceStatus replaces the status of one record.
func (s *Resources) UpdateResourceStatus(ctx context.Context, req *coordinatorv1.UpdateResourceStatusRequest) (*coordinatorv1.UpdateResourceStatusResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.oneMachine(c, req.GetInstance()); err != nil {
		return nil, err
	}
	said := req.GetResource()
	if err := checkStatus(said); err != nil {
		return nil, err
	}
	for range maxRaces {
		var rev uint64
		if rev, err = s.report(ctx, c, said); fault.Reason(err) != store.ReasonRevision {
			return &coordinatorv1.UpdateResourceStatusResponse{Revision: rev}, err
		}
	}
	return nil, fault.New(fault.Unavailable, "report status of %s: others changed it %d times meanwhile", record.KeyOf(said), maxRaces)
}

// report tries once to write a status to the record as it is now.
func (s *Resources) report(ctx context.Context, c rights.Caller, said *record.Resource) (uint64, error) {
	old, err := s.deps.Store().GetUID(ctx, said.GetMeta().GetKind(), said.GetMeta().GetUid())
	if err != nil {
		return 0, err
	}
	if err := c.Check(rights.Status, old); err != nil {
		return 0, err
	}
	next, err := reported(old, said, time.Now())
	if err != nil || next == old {
		return old.GetMeta().GetRevision(), err
	}
	if next, err = s.deps.Store().Replace(ctx, next); err != nil {
		return 0, err
	}
	if record.Deleting(next) && record.TornDown(next) != nil {
		// The status is kept first, so that the deleted event carries it. Should
		// this process end in between, the collector removes the record.
		if _, err := s.deps.Store().Commit(ctx, store.Change{Remove: []*record.Resource{next}}); err != nil && fault.Reason(err) != store.ReasonRevision {
			return 0, err
		}
	}
	return next.GetMeta().GetRevision(), nil
}
