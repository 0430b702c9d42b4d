package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
)

// Session is one node's connection. Its key hangs on a lease of etcd and goes
// with it.
type Session struct {
	// ID is the id of the lease, never 0 for an open session.
	ID int64 `json:"-"`
	// Instance is the machine and boot that opened it.
	Instance string `json:"instance"`
	// NodeUID is the uid of the node's record when it was opened.
	NodeUID string `json:"node_uid"`
	// TTLSeconds is how long it lasts without renewal.
	TTLSeconds int64 `json:"ttl_seconds"`
}

// TTL is how long the session lasts without renewal.
func (s Session) TTL() time.Duration { return time.Duration(s.TTLSeconds) * time.Second }

func decodeSession(kv *mvccpb.KeyValue) (Session, error) {
	var out Session
	if err := json.Unmarshal(kv.Value, &out); err != nil {
		return Session{}, fault.New(fault.Internal, "decode %s: %w", kv.Key, err)
	}
	out.ID = kv.Lease
	return out, nil
}

// Session returns the open session of a node; its ID is 0 when there is none.
func (s *Store) Session(ctx context.Context, node string) (Session, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Get(ctx, s.keys.session(node))
	if err != nil {
		return Session{}, asked("get session of "+node, err)
	}
	if len(resp.Kvs) == 0 {
		return Session{}, nil
	}
	return decodeSession(resp.Kvs[0])
}

// Renew lets a session last for its whole time again. False means that it has
// ended.
func (s *Store) Renew(ctx context.Context, id int64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.KeepAliveOnce(ctx, clientv3.LeaseID(id))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return false, nil
	}
	if err != nil {
		return false, asked("renew session", err)
	}
	return resp.TTL > 0, nil
}

// Grant makes the lease of a session that is about to be opened.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return 0, asked("get a lease for a session", err)
	}
	return int64(resp.ID), nil
}

// Revoke ends a lease and what hangs on it; one that has ended is fine.
func (s *Store) Revoke(ctx context.Context, id int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
	defer cancel()
	if _, err := s.etcd.Revoke(ctx, clientv3.LeaseID(id)); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return asked("revoke session", err)
	}
	return nil
}

// Open writes the session of a node that has none, together with the node's
// record: created if its revision is 0, else replaced. Conflict with reason
// REVISION means that another call was faster, or the node was removed.
func (s *Store) Open(ctx context.Context, node *record.Resource, session Session) error {
	c := Change{Replace: []*record.Resource{node}}
	if node.GetMeta().GetRevision() == 0 {
		c = Change{Create: []*record.Resource{node}}
	}
	cmps, ops, err := s.compile(c)
	if err != nil {
		return err
	}
	value, err := json.Marshal(session)
	if err != nil {
		return fault.New(fault.Internal, "encode session: %w", err)
	}
	name := node.GetMeta().GetName()
	cmps = append(cmps, absent(s.keys.session(name)), absent(s.keys.removed(name)))
	ops = append(ops, clientv3.OpPut(s.keys.session(name), string(value), clientv3.WithLease(clientv3.LeaseID(session.ID))))
	return s.commit(ctx, "open session of "+name, cmps, ops)
}

// Close removes the session of a node, if it is still that one, together with
// writing the node's record.
func (s *Store) Close(ctx context.Context, node *record.Resource, id int64) error {
	cmps, ops, err := s.compile(Change{Replace: []*record.Resource{node}})
	if err != nil {
		return err
	}
	key := s.keys.session(node.GetMeta().GetName())
	cmps = append(cmps, clientv3.Compare(clientv3.LeaseValue(key), "=", id))
	ops = append(ops, clientv3.OpDelete(key))
	return s.commit(ctx, "close session of "+node.GetMeta().GetName(), cmps, ops)
}

// Removed reports whether a node was removed and not admitted again.
func (s *Store) Removed(ctx context.Context, node string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Get(ctx, s.keys.removed(node), clientv3.WithCountOnly())
	if err != nil {
		return false, asked("ask whether "+node+" was removed", err)
	}
	return resp.Count > 0, nil
}

func (s *Store) commit(ctx context.Context, what string, cmps []clientv3.Cmp, ops []clientv3.Op) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Txn(ctx).If(cmps...).Then(ops...).Commit()
	if err != nil {
		return asked(what, err)
	}
	if !resp.Succeeded {
		return stale(what + ": it was changed meanwhile")
	}
	return nil
}
