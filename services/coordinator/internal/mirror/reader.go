package mirror

import (
	"context"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

// maxBatch bounds how many events one call of Next copies.
const maxBatch = 256

// Reader is one watcher's place in the history. It belongs to one goroutine.
type Reader struct {
	mirror *Mirror
	epoch  uint64
	term   string
	next   uint64 // number of the first event not yet read
	after  uint64 // events up to this revision are known already
}

// Snapshot is what a watch begins with.
type Snapshot struct {
	Records     []*record.Resource
	Revision    uint64
	Incarnation string
	Term        string
}

// Begin returns all records of the given kinds and a reader of every change after
// them. Unavailable means that the mirror is not filled.
func (m *Mirror) Begin(kinds []record.Kind) (Snapshot, *Reader, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.filled {
		return Snapshot{}, nil, notFilled()
	}
	s := Snapshot{Revision: m.revision, Incarnation: m.incarnation, Term: m.term}
	for _, k := range kinds {
		for _, r := range m.records[k] {
			s.Records = append(s.Records, r)
		}
	}
	return s, &Reader{m, m.history.epoch, m.term, m.history.end(), m.revision}, nil
}

// Resume returns a reader of every change after a revision. Conflict with reason
// COMPACTED means that some of them are not kept, or that the revision is none of
// this history.
func (m *Mirror) Resume(ctx context.Context, revision uint64) (*Reader, error) {
	m.mu.RLock()
	filled, ahead := m.filled, revision > m.revision
	m.mu.RUnlock()
	if !filled {
		return nil, notFilled()
	}
	if ahead { // of this copy, not of the store: other keys raise the revision too
		current, err := m.deps.Store.Current(ctx)
		if err != nil {
			return nil, err
		}
		if revision > current {
			return nil, compacted("revision %d is not reached yet, the history is another", revision)
		}
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if revision < m.history.floor {
		return nil, compacted("changes since revision %d are kept, not since %d", m.history.floor, revision)
	}
	return &Reader{m, m.history.epoch, m.term, m.history.after(revision), revision}, nil
}

// Backlog returns the next changes that are there already. Without any, the reader
// has caught up: then the snapshot, which has no records, says with what.
func (r *Reader) Backlog() ([]Event, Snapshot, error) {
	m := r.mirror
	m.mu.RLock()
	defer m.mu.RUnlock()
	events, err := r.readLocked()
	return events, Snapshot{Revision: max(m.revision, r.after), Incarnation: m.incarnation, Term: m.term}, err
}

// Next returns the next changes, waiting for at least one. Conflict with reason
// COMPACTED means that the reader was too slow and has lost some; Unavailable,
// that it is to resume because a term began.
func (r *Reader) Next(ctx context.Context) ([]Event, error) {
	for {
		events, changed, err := r.read()
		if err != nil || len(events) > 0 {
			return events, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (r *Reader) read() ([]Event, <-chan struct{}, error) {
	m := r.mirror
	m.mu.RLock()
	defer m.mu.RUnlock()
	events, err := r.readLocked()
	return events, m.changed, err
}

func (r *Reader) readLocked() ([]Event, error) {
	h := &r.mirror.history
	if r.epoch != h.epoch || r.next < h.first {
		return nil, compacted("the reader is behind the kept history")
	}
	if r.term != r.mirror.term {
		return nil, fault.New(fault.Unavailable, "watch records: another coordinator began a term: resume")
	}
	var events []Event
	for r.next < h.end() && len(events) < maxBatch {
		if e := h.events[r.next-h.first]; e.Revision > r.after {
			events = append(events, e)
		}
		r.next++
	}
	return events, nil
}

func compacted(format string, args ...any) error {
	return fault.WithReason(fault.New(fault.Conflict, "watch records: "+format+": begin again", args...), store.ReasonCompacted)
}

func notFilled() error {
	return fault.New(fault.Unavailable, "watch records: the coordinator has not read the store yet")
}
