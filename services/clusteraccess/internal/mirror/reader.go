package mirror

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// maxOwed bounds how many records a reader may be behind.
const maxOwed = 1 << 15

// snapshotStart stands in the order of a reader for the message of that name.
const snapshotStart = ""

// Reader is one stream of the mirror. It belongs to one goroutine.
type Reader struct {
	mirror *Mirror
	kinds  []resourcev1.Kind
	ready  chan struct{}

	// Guarded by the lock of the mirror.
	order []string                        // of what is owed: uids, and snapshotStart
	owed  map[string]*resourcev1.Resource // by uid: the last state of a deleted record; nil: the newest in the mirror
	state *clusteraccessv1.MirrorState    // sent last
	moved bool                            // a record was sent since
	cut   bool
}

// Next waits for the next message. It returns the cause of ctx when that ends,
// and fault.Unavailable when the reader is too far behind.
func (r *Reader) Next(ctx context.Context) (*clusteraccessv1.WatchResourcesResponse, error) {
	for {
		msg, err := r.next()
		if msg != nil || err != nil {
			return msg, err
		}
		select {
		case <-r.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Close ends the stream. It may be called more than once.
func (r *Reader) Close() {
	r.mirror.mu.Lock()
	defer r.mirror.mu.Unlock()
	delete(r.mirror.readers, r)
	r.order, r.owed = nil, nil
}

// next returns what is owed first. The state comes when no record is owed: then,
// and only then, what was sent is what it speaks of.
func (r *Reader) next() (*clusteraccessv1.WatchResourcesResponse, error) {
	r.mirror.mu.Lock()
	defer r.mirror.mu.Unlock()
	if r.cut {
		return nil, errCutOff
	}
	for len(r.order) > 0 {
		uid := r.order[0]
		r.order = r.order[1:]
		if uid == snapshotStart {
			return &clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Snapshot{
				Snapshot: &clusteraccessv1.SnapshotStart{},
			}}, nil
		}
		last := r.owed[uid]
		delete(r.owed, uid)
		if msg := r.recordLocked(uid, last); msg != nil {
			r.moved = true
			return msg, nil
		}
	}
	return r.stateLocked(), nil
}

func (r *Reader) recordLocked(uid string, last *resourcev1.Resource) *clusteraccessv1.WatchResourcesResponse {
	if last != nil {
		return &clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Deleted{Deleted: last}}
	}
	record, ok := r.mirror.records[uid]
	if !ok {
		return nil // absent from a newer snapshot, which is owed as well
	}
	return &clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Changed{Changed: record}}
}

// stateLocked returns the state if the reader has to learn it. A revision that
// only other kinds moved is not worth a message.
func (r *Reader) stateLocked() *clusteraccessv1.WatchResourcesResponse {
	now := r.mirror.state
	if now == r.state || r.state != nil && !r.moved && sameButRevision(now, r.state) {
		return nil
	}
	r.state, r.moved = now, false
	return &clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Mirror{Mirror: now}}
}

func sameButRevision(a, b *clusteraccessv1.MirrorState) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.Revision, b.Revision = 0, 0
	return proto.Equal(a, b)
}

// restartLocked makes the reader begin anew with all records. Deletions that it
// has not learnt of come first: they are never left out, but of a record that is
// there again, in a history that was put back.
func (r *Reader) restartLocked() {
	kept := r.order[:0]
	for _, uid := range r.order {
		if uid != snapshotStart && r.owed[uid] != nil && r.mirror.records[uid] == nil {
			kept = append(kept, uid)
			continue
		}
		delete(r.owed, uid)
	}
	r.order = append(kept, snapshotStart)
	for _, record := range sorted(r.mirror.records) {
		r.oweLocked(Change{Record: record})
	}
	r.state = nil // always told after a snapshot
	r.wakeLocked()
}

func sorted(records map[string]*resourcev1.Resource) []*resourcev1.Resource {
	all := make([]*resourcev1.Resource, 0, len(records))
	for _, r := range records {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *resourcev1.Resource) int {
		return strings.Compare(a.GetMeta().GetName(), b.GetMeta().GetName())
	})
	return all
}

func (r *Reader) oweLocked(c Change) {
	meta := c.Record.GetMeta()
	if len(r.kinds) > 0 && !slices.Contains(r.kinds, meta.GetKind()) {
		return
	}
	if _, behind := r.owed[meta.GetUid()]; !behind {
		r.order = append(r.order, meta.GetUid())
	}
	r.owed[meta.GetUid()] = nil
	if c.Deleted {
		r.owed[meta.GetUid()] = c.Record
	}
	if len(r.owed) > maxOwed {
		r.cut, r.order, r.owed = true, nil, make(map[string]*resourcev1.Resource)
		delete(r.mirror.readers, r)
	}
	r.wakeLocked()
}

func (r *Reader) wakeLocked() {
	select {
	case r.ready <- struct{}{}:
	default: // it will look anyway
	}
}
