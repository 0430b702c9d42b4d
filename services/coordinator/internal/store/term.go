package store

import (
	"context"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

// maxTerms is how many terms are kept. A position in an older one is in no
// history any more, so its record can only be deleted by name.
const maxTerms = 4096

// ReasonOtherHistory is that of Conflict when a position is not in this history.
const ReasonOtherHistory = "OTHER_HISTORY"

// BeginTerm writes into the history that a coordinator begins to read it here,
// and returns the name of the term. The key of a term is written once, so its
// revision is where the term begins.
func (s *Store) BeginTerm(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	term := id.New()
	if _, err := s.etcd.Put(ctx, s.keys.term(term), ""); err != nil {
		return "", asked("begin a term", err)
	}
	return term, s.pruneTerms(ctx)
}

// pruneTerms drops the oldest terms, a bounded number at once.
func (s *Store) pruneTerms(ctx context.Context) error {
	resp, err := s.etcd.Get(ctx, s.keys.term(""), clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return asked("list terms", err)
	}
	var drop []clientv3.Op
	for i := 0; i < len(resp.Kvs)-maxTerms && i < maxChanges; i++ {
		drop = append(drop, clientv3.OpDelete(string(resp.Kvs[i].Key)))
	}
	if len(drop) == 0 {
		return nil
	}
	if _, err := s.etcd.Txn(ctx).Then(drop...).Commit(); err != nil {
		return asked("drop old terms", err)
	}
	return nil
}

// Contains returns nil if a position is in this history: the newest term at its
// revision is its term. Conflict with reason OTHER_HISTORY says that it is not.
func (s *Store) Contains(ctx context.Context, term string, revision uint64) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Get(ctx, s.keys.term(""), clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithMaxCreateRev(int64(revision)),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(1))
	if err != nil {
		return asked("ask for the term", err)
	}
	if uint64(resp.Header.Revision) < revision {
		return otherHistory("it ends at revision %d, before %d", resp.Header.Revision, revision)
	}
	if len(resp.Kvs) == 0 || strings.TrimPrefix(string(resp.Kvs[0].Key), s.keys.term("")) != term {
		return otherHistory("revision %d is in another term than %s", revision, term)
	}
	return nil
}

func otherHistory(format string, args ...any) error {
	return fault.WithReason(fault.New(fault.Conflict, "this is another history than asked for: "+format, args...), ReasonOtherHistory)
}
