// Package session owns the sessions of nodes: it serves SessionService, where a
// session is a lease of etcd on which the node's key hangs.
//
// A renewal writes nothing: etcd's leader keeps the time. Opening and ending
// write the node's record in the same transaction as the key, so that the two
// never disagree. It must never decide what the loss of a session means for
// workloads, and never end a session by a clock of its own. In the trail it
// stands beside api: the other door of the coordinator.
package session

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/rpc"

	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/rights"
	"staddle.internal/services/coordinator/internal/store"
)

// maxRaces bounds how often opening is tried again that others overtook.
const maxRaces = 20

// Reasons of Denied.
const (
	// ReasonDuplicate means that another machine has the node's session.
	ReasonDuplicate = "DUPLICATE_NODE"
	// ReasonRemoved means that an operator removed the node.
	ReasonRemoved = "NODE_REMOVED"
)

// Config says whom the service serves.
type Config struct {
	// TrustDomain is the domain of all identities.
	TrustDomain string
	// Refused are the identities, as URIs, that nodes let in no more.
	Refused []string
}

// Deps is what the service needs. Store is asked for at each call: it exists
// once etcd answers, and no call is admitted before.
type Deps struct {
	Store func() *store.Store
}

// Sessions serves SessionService.
type Sessions struct {
	coordinatorv1.UnimplementedSessionServiceServer
	cfg  Config
	deps Deps
}

// New returns the service.
func New(cfg Config, deps Deps) *Sessions { return &Sessions{cfg: cfg, deps: deps} }

// node is the name of the calling node.
func (s *Sessions) node(ctx context.Context) (string, error) {
	c, err := rights.CallerOf(rpc.Caller(ctx), s.cfg.TrustDomain)
	if err != nil {
		return "", err
	}
	return c.Node(), id.CheckName("node", c.Node())
}

// RenewSession keeps the session of the calling node open, or opens one.
func (s *Sessions) RenewSession(ctx context.Context, req *coordinatorv1.RenewSessionRequest) (*coordinatorv1.RenewSessionResponse, error) {
	node, err := s.node(ctx)
	if err != nil {
		return nil, err
	}
	for range maxRaces {
		var open store.Session
		open, err = s.renew(ctx, node, req)
		if fault.Reason(err) == store.ReasonRevision {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &coordinatorv1.RenewSessionResponse{
			SessionId: open.ID, Ttl: durationpb.New(open.TTL()), NodeUid: open.NodeUID, RefusedIdentities: s.cfg.Refused,
		}, nil
	}
	return nil, fault.New(fault.Unavailable, "renew session of %s: others changed it %d times meanwhile", node, maxRaces)
}

// renew tries once. What counts is the instance: a restarted process that has
// forgotten the id gets the session that its machine has.
func (s *Sessions) renew(ctx context.Context, node string, req *coordinatorv1.RenewSessionRequest) (store.Session, error) {
	open, err := s.deps.Store().Session(ctx, node)
	if err != nil {
		return store.Session{}, err
	}
	if open.ID == 0 {
		return s.open(ctx, node, req)
	}
	if open.Instance != req.GetInstance() {
		return store.Session{}, fault.WithReason(fault.New(fault.Denied,
			"renew session of %s: another machine, or an earlier boot, has it for up to %s more", node, open.TTL()), ReasonDuplicate)
	}
	kept, err := s.deps.Store().Renew(ctx, open.ID)
	if err != nil {
		return store.Session{}, err
	}
	if !kept { // it ended between the two questions
		return s.open(ctx, node, req)
	}
	return open, nil
}

// open begins a session and makes the node's record at the first one.
func (s *Sessions) open(ctx context.Context, node string, req *coordinatorv1.RenewSessionRequest) (store.Session, error) {
	r, err := s.record(ctx, node, req.GetLabels())
	if err != nil {
		return store.Session{}, err
	}
	lease, err := s.deps.Store().Grant(ctx, req.GetTtl().AsDuration())
	if err != nil {
		return store.Session{}, err
	}
	session := store.Session{
		ID: lease, Instance: req.GetInstance(), NodeUID: r.GetMeta().GetUid(),
		TTLSeconds: int64((req.GetTtl().AsDuration() + time.Second - 1) / time.Second),
	}
	r.GetNode().Placement = opened(r.GetNode(), lease)
	if err := s.deps.Store().Open(ctx, r, session); err != nil {
		return store.Session{}, errors.Join(err, s.deps.Store().Revoke(ctx, lease))
	}
	return session, nil
}

// record is the node's record to change, a new one for a node never seen.
func (s *Sessions) record(ctx context.Context, node string, labels map[string]string) (*record.Resource, error) {
	r, err := s.deps.Store().Get(ctx, record.Key{Kind: record.Node, Name: node})
	if err == nil || !errors.Is(err, fault.NotFound) {
		return r, err
	}
	removed, err := s.deps.Store().Removed(ctx, node)
	if err != nil {
		return nil, err
	}
	if removed {
		return nil, fault.WithReason(fault.New(fault.Denied,
			"open session of %s: the node was removed; to admit it again create a record of kind node with that name", node), ReasonRemoved)
	}
	return &record.Resource{
		Meta: &resourcev1.Metadata{Kind: record.Node, Name: node, Uid: id.New(), Generation: 1, CreatedAt: timestamppb.Now(), Labels: labels},
		Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{Spec: &resourcev1.NodeSpec{}}},
	}, nil
}

// EndSession ends the session of the calling node at once.
func (s *Sessions) EndSession(ctx context.Context, req *coordinatorv1.EndSessionRequest) (*coordinatorv1.EndSessionResponse, error) {
	node, err := s.node(ctx)
	if err != nil {
		return nil, err
	}
	for range maxRaces {
		if err = s.end(ctx, node, req); fault.Reason(err) == store.ReasonRevision {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &coordinatorv1.EndSessionResponse{}, nil
	}
	return nil, fault.New(fault.Unavailable, "end session of %s: others changed it %d times meanwhile", node, maxRaces)
}

// end tries once. A session that is not that of the node has ended.
func (s *Sessions) end(ctx context.Context, node string, req *coordinatorv1.EndSessionRequest) error {
	open, err := s.deps.Store().Session(ctx, node)
	if err != nil || open.ID == 0 || open.ID != req.GetSessionId() {
		return err
	}
	r, err := s.deps.Store().Get(ctx, record.Key{Kind: record.Node, Name: node})
	if err != nil {
		return err
	}
	r.GetNode().Placement = left(r.GetNode().GetPlacement(), req.GetWorkloadsKept(), timestamppb.Now())
	if err := s.deps.Store().Close(ctx, r, open.ID); err != nil {
		return err
	}
	return s.deps.Store().Revoke(ctx, open.ID)
}
