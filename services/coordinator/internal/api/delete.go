package api

import (
	"context"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/rights"
	"staddle.internal/services/coordinator/internal/store"
)

// DeleteResource marks one record, or removes it where nobody has it yet.
func (s *Resources) DeleteResource(ctx context.Context, req *coordinatorv1.DeleteResourceRequest) (*coordinatorv1.DeleteResourceResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.May(rights.Delete, req.GetKind()); err != nil {
		return nil, err
	}
	for range maxRaces {
		var r *record.Resource
		r, err = s.remove(ctx, req)
		if req.GetRevision() == 0 && fault.Reason(err) == store.ReasonRevision {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &coordinatorv1.DeleteResourceResponse{Resource: r}, nil
	}
	return nil, fault.New(fault.Unavailable, "delete %s %s: others changed it %d times meanwhile", record.Word(req.GetKind()), req.GetName(), maxRaces)
}

// remove tries once to delete the record as it is now.
func (s *Resources) remove(ctx context.Context, req *coordinatorv1.DeleteResourceRequest) (*record.Resource, error) {
	old, err := s.deps.Store().Get(ctx, record.Key{Kind: req.GetKind(), Name: req.GetName()})
	if err != nil {
		return nil, err
	}
	switch decided, err := deleted(old, req); {
	case err != nil:
		return nil, err
	case decided == keepMarked:
		return old, nil
	case decided == mark:
		marked := record.Clone(old)
		marked.Meta.DeletingAt = now()
		return s.deps.Store().Replace(ctx, marked)
	}
	change := store.Change{Remove: []*record.Resource{old}}
	if req.GetKind() == record.Node {
		change.Forget = req.GetName()
	}
	if _, err := s.deps.Store().Commit(ctx, change); err != nil {
		return nil, err
	}
	gone := record.Clone(old)
	gone.Meta.DeletingAt = now()
	return gone, nil
}
