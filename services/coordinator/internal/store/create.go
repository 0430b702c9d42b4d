package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
)

const (
	// repeatKept is how long a request id is known at least.
	repeatKept = time.Hour
	// repeatShared is for how long one lease takes further request ids.
	repeatShared = 10 * time.Minute
)

// Create writes a new record and returns it with its revision. The same request
// id again returns the record that it made; empty means that there is none.
// asked is the request as it came, by which a repeat is told from another use of
// the same id. Returns Exists if the name is taken; a *ClaimError with reason CLAIMED if
// something else that it has is.
func (s *Store) Create(ctx context.Context, r *record.Resource, c Change, requestID string, request proto.Message) (*record.Resource, error) {
	c.Create = append(c.Create, r)
	if requestID == "" {
		return s.createOnce(ctx, r, c)
	}
	known := s.keys.request(requestID)
	digest, err := digestOf(request)
	if err != nil {
		return nil, err
	}
	lease, err := s.repeatLease(ctx)
	if err != nil {
		return nil, err
	}
	cmps, ops, err := s.compile(c)
	if err != nil {
		return nil, err
	}
	cmps = append(cmps, absent(known))
	ops = append(ops, clientv3.OpPut(known, r.GetMeta().GetUid()+" "+digest, clientv3.WithLease(lease)))
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Txn(ctx).If(cmps...).Then(ops...).Else(clientv3.OpGet(known)).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		s.repeat.forget(lease)
		return nil, fault.New(fault.Unavailable, "create %s: the store forgot its lease, repeat: %w", record.KeyOf(r), err)
	case err != nil:
		return nil, asked("create "+record.KeyOf(r).String(), err)
	case resp.Succeeded:
		return withRevision(r, uint64(resp.Header.Revision)), nil
	}
	if kvs := resp.Responses[0].GetResponseRange().GetKvs(); len(kvs) == 1 {
		return s.repeated(ctx, r, string(kvs[0].Value), digest)
	}
	return nil, s.refused(ctx, r, c)
}

func (s *Store) createOnce(ctx context.Context, r *record.Resource, c Change) (*record.Resource, error) {
	rev, err := s.Commit(ctx, c)
	if fault.Reason(err) == ReasonRevision {
		return nil, s.refused(ctx, r, c)
	}
	if err != nil {
		return nil, err
	}
	return withRevision(r, rev), nil
}

// Repeated returns what an earlier request with the same id made, or otherwise if there
// was none: for records that can not be made now.
func (s *Store) Repeated(ctx context.Context, r *record.Resource, requestID string, request proto.Message, otherwise error) (*record.Resource, error) {
	if requestID == "" {
		return nil, otherwise
	}
	digest, err := digestOf(request)
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Get(asking, s.keys.request(requestID))
	switch {
	case err != nil:
		return nil, asked("ask for an earlier request", err)
	case len(resp.Kvs) == 0:
		return nil, otherwise
	}
	return s.repeated(ctx, r, string(resp.Kvs[0].Value), digest)
}

// repeated finds what an earlier request with the same id made.
func (s *Store) repeated(ctx context.Context, r *record.Resource, noted, digest string) (*record.Resource, error) {
	uid, before, _ := strings.Cut(noted, " ")
	if before != digest {
		return nil, fault.New(fault.Invalid, "create %s: the request_id was used for another record, take a fresh one", record.KeyOf(r))
	}
	made, err := s.GetUID(ctx, r.GetMeta().GetKind(), uid)
	if errors.Is(err, fault.NotFound) {
		return nil, fault.New(fault.NotFound, "create %s: it was made by an earlier request with this request_id and deleted since", record.KeyOf(r))
	}
	return made, err
}

func taken(r *record.Resource) error {
	return fault.New(fault.Exists, "create %s: the name is taken", record.KeyOf(r))
}

func digestOf(m proto.Message) (string, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return "", fault.New(fault.Invalid, "encode request: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

// repeatLease returns the lease on which request ids are kept now.
func (s *Store) repeatLease(ctx context.Context) (clientv3.LeaseID, error) {
	if lease, ok := s.repeat.current(time.Now()); ok {
		return lease, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Grant(ctx, int64((repeatKept + repeatShared).Seconds()))
	if err != nil {
		return 0, asked("get a lease for request ids", err)
	}
	s.repeat.keep(resp.ID, time.Now())
	return resp.ID, nil
}

func (r *repeats) current(now time.Time) (clientv3.LeaseID, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lease, r.lease != 0 && now.Sub(r.granted) < repeatShared
}

func (r *repeats) keep(lease clientv3.LeaseID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lease, r.granted = lease, now
}

func (r *repeats) forget(lease clientv3.LeaseID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lease == lease {
		r.lease = 0
	}
}
