// Package api is the door of the coordinator for records: it serves
// ResourceService, turning requests into changes of the store and the mirror's
// history into streams.
//
// It owns what a request may say and in which order it is checked: rights, then
// form, then the record's state. Every write is a compare-and-set on what was
// read. It must never place a record, and never answer from the mirror where the
// contract promises the store. In the trail it is the first file: here a wish
// becomes one record with a generation.
package api

import (
	"context"
	"errors"
	"net/netip"

	"google.golang.org/protobuf/types/known/timestamppb"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	"staddle.internal/services/coordinator/internal/admit"
	"staddle.internal/services/coordinator/internal/mirror"
	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/rights"
	"staddle.internal/services/coordinator/internal/store"
)

// Config says whom the API serves.
type Config struct {
	// TrustDomain is the domain of all identities.
	TrustDomain string
	// ServicePrefix is the network of the addresses of services. The zero Prefix means
	// that there are no services.
	ServicePrefix netip.Prefix
}

// Deps is what the API needs. Store is asked for at each call: it exists once
// etcd answers, and no call is admitted before.
type Deps struct {
	Store  func() *store.Store
	Mirror *mirror.Mirror
}

// Resources serves ResourceService.
type Resources struct {
	coordinatorv1.UnimplementedResourceServiceServer
	cfg  Config
	deps Deps
}

// New returns the service.
func New(cfg Config, deps Deps) *Resources { return &Resources{cfg: cfg, deps: deps} }

func (s *Resources) door() admit.Door {
	return admit.Door{TrustDomain: s.cfg.TrustDomain, Mirror: s.deps.Mirror}
}

func (s *Resources) caller(ctx context.Context) (rights.Caller, error) { return s.door().Caller(ctx) }

func (s *Resources) oneMachine(c rights.Caller, instance string) error {
	return s.door().OneMachine(c, instance)
}

// GetResource reads one record from the store.
func (s *Resources) GetResource(ctx context.Context, req *coordinatorv1.GetResourceRequest) (*coordinatorv1.GetResourceResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.May(rights.Read, req.GetKind()); err != nil {
		return nil, err
	}
	var r *record.Resource
	if req.GetUid() != "" {
		r, err = s.deps.Store().GetUID(ctx, req.GetKind(), req.GetUid())
	} else {
		r, err = s.deps.Store().Get(ctx, record.Key{Kind: req.GetKind(), Name: req.GetName()})
	}
	if errors.Is(err, fault.NotFound) {
		return nil, s.gone(ctx, err, req.GetPosition())
	}
	if err != nil {
		return nil, err
	}
	if err := c.Check(rights.Read, r); err != nil {
		return nil, err
	}
	return &coordinatorv1.GetResourceResponse{Resource: r}, nil
}

// gone returns notFound if this history contains the position at which the caller
// knew the record, and else why it proves nothing.
func (s *Resources) gone(ctx context.Context, notFound error, at *resourcev1.Position) error {
	if at == nil {
		return notFound
	}
	if err := s.deps.Store().Contains(ctx, at.GetTerm(), at.GetRevision()); err != nil {
		return err
	}
	return notFound
}

// CreateResource writes one new record.
func (s *Resources) CreateResource(ctx context.Context, req *coordinatorv1.CreateResourceRequest) (*coordinatorv1.CreateResourceResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.May(rights.Create, req.GetResource().GetMeta().GetKind()); err != nil {
		return nil, err
	}
	if err := checkNew(req.GetResource(), s.cfg.ServicePrefix); err != nil {
		return nil, err
	}
	r := record.Clone(req.GetResource())
	r.Meta.Uid, r.Meta.Generation, r.Meta.CreatedAt = id.New(), 1, now()
	made, err := s.create(ctx, r, req)
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.CreateResourceResponse{Resource: made}, nil
}

func (s *Resources) create(ctx context.Context, r *record.Resource, req *coordinatorv1.CreateResourceRequest) (*record.Resource, error) {
	var change store.Change
	switch r.GetMeta().GetKind() {
	case record.Service:
		return s.createService(ctx, r, req)
	case record.Node:
		change.Admit = r.GetMeta().GetName()
	}
	return s.deps.Store().Create(ctx, r, change, req.GetRequestId(), req.GetResource())
}

// UpdateResource replaces spec and labels of one record.
func (s *Resources) UpdateResource(ctx context.Context, req *coordinatorv1.UpdateResourceRequest) (*coordinatorv1.UpdateResourceResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	asked := req.GetResource()
	if err := c.May(rights.Update, asked.GetMeta().GetKind()); err != nil {
		return nil, err
	}
	if err := checkUpdate(asked); err != nil {
		return nil, err
	}
	old, err := s.deps.Store().Get(ctx, record.KeyOf(asked))
	if err != nil {
		return nil, err
	}
	next, err := updated(old, asked)
	if err != nil {
		return nil, err
	}
	if next != old {
		if next, err = s.deps.Store().Update(ctx, old, next); err != nil {
			return nil, claimed("update", err)
		}
	}
	return &coordinatorv1.UpdateResourceResponse{Resource: next}, nil
}

func now() *timestamppb.Timestamp { return timestamppb.Now() }

// ended reports whether an error only says that the stream was over.
func ended(err error) bool { return errors.Is(err, context.Canceled) }
