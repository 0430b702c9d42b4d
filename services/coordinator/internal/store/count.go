package store

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
)

// A bound on how many there are holds in the write itself: it demands that nothing was created in
// the counted folder since the count, whoever created it. So no number is kept anywhere that could
// disagree with what there is, and what is deleted makes room by being gone.

// Counted is how many there were as of a revision.
type Counted struct {
	// N is how many.
	N int64

	folder   string
	revision int64
}

// noneSince demands that each that is there now was there when it was counted.
func (c Counted) noneSince() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(c.folder), "<", c.revision+1).WithPrefix()
}

// Count counts the records of a kind.
func (s *Store) Count(ctx context.Context, kind record.Kind) (Counted, error) {
	return s.count(ctx, s.keys.kind(kind), "records of kind "+record.Word(kind))
}

// CountSecrets counts the secrets.
func (s *Store) CountSecrets(ctx context.Context) (Counted, error) {
	return s.count(ctx, s.keys.aboutSecret(""), "secrets")
}

func (s *Store) count(ctx context.Context, folder, what string) (Counted, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Get(ctx, folder, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return Counted{}, asked("count "+what, err)
	}
	return Counted{N: resp.Count, folder: folder, revision: resp.Header.Revision}, nil
}

// Turn waits until nobody else of this process has it, for those that count and then write: all
// at once they would only overtake each other. The caller calls done.
func (s *Store) Turn(ctx context.Context) (done func(), err error) {
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn }, nil
	case <-ctx.Done():
		return nil, fault.New(fault.Unavailable, "wait for a turn to write: %w", context.Cause(ctx))
	}
}
