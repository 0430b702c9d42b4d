package store

import (
	"context"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
)

// loadPage is how many keys are read at once at the start.
const loadPage = 500

// Entry is one watched key as it is after a change. One of the four groups is
// set.
type Entry struct {
	Revision uint64
	// Gone means that the key is not there any more.
	Gone bool

	// Key and Record are set for a record; Record is nil when it is gone.
	Key    record.Key
	Record *record.Resource

	// SessionOf names the node whose session it is; Session is zero when it is
	// gone.
	SessionOf string
	Session   Session

	// RemovedNode names a node that was removed.
	RemovedNode string

	// Term names a term that begins at Revision.
	Term string
}

// Load hands every watched key to emit, all as of the revision that it returns.
func (s *Store) Load(ctx context.Context, emit func(Entry)) (uint64, error) {
	from, to := s.keys.watched()
	var revision int64
	for {
		resp, err := s.loadPage(ctx, from, to, revision)
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			e, err := s.entry(kv, false)
			if err != nil {
				return 0, err
			}
			emit(e)
			from = string(kv.Key) + "\x00"
		}
		if !resp.More {
			return uint64(revision), nil
		}
	}
}

func (s *Store) loadPage(ctx context.Context, from, to string, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Get(ctx, from, clientv3.WithRange(to), clientv3.WithLimit(loadPage), clientv3.WithRev(revision))
	if err != nil {
		return nil, asked("load records", err)
	}
	return resp, nil
}

// Follow hands every change after revision to emit, whole revisions at a time in
// the order of the history. It returns when ctx ends or the watch fails;
// Conflict with reason COMPACTED means that changes are missing.
func (s *Store) Follow(ctx context.Context, revision uint64, emit func([]Entry)) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	from, to := s.keys.watched()
	for resp := range s.etcd.Watch(ctx, from, clientv3.WithRange(to), clientv3.WithRev(int64(revision)+1)) {
		if err := resp.Err(); err != nil {
			return asked("watch records", err)
		}
		entries := make([]Entry, 0, len(resp.Events))
		for _, ev := range resp.Events {
			e, err := s.entry(ev.Kv, ev.Type == clientv3.EventTypeDelete)
			if err != nil {
				return err
			}
			entries = append(entries, e)
		}
		if len(entries) > 0 {
			emit(entries)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fault.New(fault.Unavailable, "watch records: the watch ended")
}

func (s *Store) entry(kv *mvccpb.KeyValue, gone bool) (Entry, error) {
	e := Entry{Revision: uint64(kv.ModRevision), Gone: gone}
	rest, ok := strings.CutPrefix(string(kv.Key), s.keys.prefix)
	letter, name, cut := strings.Cut(rest, "/")
	if !ok || !cut {
		return e, fault.New(fault.Internal, "read key %.80q: not one of ours", kv.Key)
	}
	var err error
	switch letter {
	case "r":
		if e.Key, err = decodeKey(name); err == nil && !gone {
			e.Record, err = decodeRecord(kv)
		}
	case "s":
		e.SessionOf = name
		if !gone {
			e.Session, err = decodeSession(kv)
		}
	case "t":
		e.RemovedNode = name
	case "term":
		e.Term = name
	default:
		err = fault.New(fault.Internal, "read key %.80q: not one of ours", kv.Key)
	}
	return e, err
}
