package agent

import (
	"sync"

	"staddle.internal/kit/id"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// table is what one stream has told: the whole, and, while a snapshot is under
// way, the part of the new whole that has come.
type table[K comparable, V any] struct {
	whole map[K]V
	fresh map[K]V // nil outside a snapshot
}

func newTable[K comparable, V any]() table[K, V] { return table[K, V]{whole: make(map[K]V)} }

func (t *table[K, V]) begin() { t.fresh = make(map[K]V) }

func (t *table[K, V]) set(uid K, v V) {
	t.whole[uid] = v
	if t.fresh != nil {
		t.fresh[uid] = v
	}
}

func (t *table[K, V]) remove(uid K) {
	delete(t.whole, uid)
	if t.fresh != nil {
		delete(t.fresh, uid)
	}
}

// complete ends a snapshot: what it did not name is not there. It returns the
// uids that went, and whether a snapshot was under way.
func (t *table[K, V]) complete() (gone []K, snapshot bool) {
	if t.fresh == nil {
		return nil, false
	}
	for uid := range t.whole {
		if _, ok := t.fresh[uid]; !ok {
			gone = append(gone, uid)
		}
	}
	t.whole, t.fresh = t.fresh, nil
	return gone, true
}

// followed are the records of one stream, and whether they may be acted on.
type followed[K comparable] struct {
	records table[K, *resourcev1.Resource]
	mirror  *clusteraccessv1.MirrorState // as it was told last
	live    bool
	epoch   uint64 // grows whenever live or the mirror's history may have changed
}

func newFollowed[K comparable]() followed[K] {
	return followed[K]{records: newTable[K, *resourcev1.Resource]()}
}

// anew says that all is told from the beginning: what is known stays known, and nothing
// is live.
func (f *followed[K]) anew() {
	f.records.begin()
	f.live = false
	f.epoch++
}

// state takes the mirror's state: only a live one ends a snapshot. It returns what that
// did not name any more, and whether the records are live anew: what was said of another
// term, or before the mirror was away, is to be asked again then.
func (f *followed[K]) state(told *clusteraccessv1.MirrorState) (gone []K, anew bool) {
	term := f.mirror.GetTerm()
	f.mirror = told
	if !told.GetLive() {
		f.live = false
		f.epoch++
		return nil, false
	}
	gone, snapshot := f.records.complete()
	if !snapshot && f.live && term == told.GetTerm() {
		return nil, false
	}
	f.live = true
	f.epoch++
	return gone, true
}

// view is what the agent knows: the mirror's records and the host's sandboxes.
// Its functions are called with the lock held and must not call it back.
type view struct {
	node   string
	change func(uids ...id.Sandbox) // look at these, which have changed
	sweep  func(uids ...id.Sandbox) // look at these, which may have
	tell   func(foreign int)        // told when it changes

	mu                   sync.Mutex // guards all below
	followed[id.Sandbox]            // its epoch also grows whenever hostKnown may have changed

	states    table[id.Sandbox, *sandboxhostv1.SandboxState]
	ahead     []id.Sandbox // changed since the mirror's state was told
	foreign   map[id.Sandbox]struct{}
	hostKnown bool
}

// input is all that is known about one sandbox, and the epoch of that knowledge.
func (v *view) input(uid id.Sandbox) (Input, uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	record := v.records.whole[uid]
	// The state follows the records that it covers. It may be one revision behind
	// them: while more changes of the same revision are to come.
	revision := record.GetMeta().GetRevision()
	_, foreign := v.foreign[uid]
	in := Input{
		Node: v.node, Record: record, Live: v.live && v.mirror.GetRevision()+1 >= revision, Foreign: foreign,
		Host: v.states.whole[uid], HostKnown: v.hostKnown,
	}
	if in.Live {
		in.Position = positionOf(v.mirror, record)
	}
	return in, v.epoch
}

// positionOf is where in the history a live mirror is with a record; nil if that is not
// known.
func positionOf(mirror *clusteraccessv1.MirrorState, record *resourcev1.Resource) *resourcev1.Position {
	if mirror.GetTerm() == "" {
		return nil
	}
	return &resourcev1.Position{Term: mirror.GetTerm(), Revision: max(mirror.GetRevision(), record.GetMeta().GetRevision())}
}

// disown notes that the mirror's history does not know of a sandbox, unless what
// that rests on has changed since an epoch.
func (v *view) disown(uid id.Sandbox, epoch uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.epoch != epoch || v.records.whole[uid] != nil || v.states.whole[uid] == nil {
		v.change(uid)
		return false
	}
	v.foreign[uid] = struct{}{}
	v.tell(len(v.foreign))
	return true
}

func (v *view) ownLocked(uid id.Sandbox) {
	if _, ok := v.foreign[uid]; ok {
		delete(v.foreign, uid)
		v.tell(len(v.foreign))
	}
}

// all are the sandboxes that either side knows.
func (v *view) all() []id.Sandbox {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.allLocked()
}

func (v *view) allLocked() []id.Sandbox {
	uids := make([]id.Sandbox, 0, len(v.records.whole)+len(v.states.whole))
	for uid := range v.records.whole {
		uids = append(uids, uid)
	}
	for uid := range v.states.whole {
		if _, ok := v.records.whole[uid]; !ok {
			uids = append(uids, uid)
		}
	}
	return uids
}

// clusterAway says that no stream of records is read: what the last one told stays
// known, nothing is live, and the next one tells all anew.
func (v *view) clusterAway() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.anew()
}

// clusterEvent takes one message of the stream of records. It reports whether the
// mirror's state came, which is the first answer of a stream.
func (v *view) clusterEvent(msg *clusteraccessv1.WatchResourcesResponse) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch e := msg.GetEvent().(type) {
	case *clusteraccessv1.WatchResourcesResponse_Snapshot:
		v.anew()
	case *clusteraccessv1.WatchResourcesResponse_Changed:
		if uid, ok := sandboxOf(e.Changed); ok {
			v.records.set(uid, e.Changed)
			v.ahead = append(v.ahead, uid)
			v.ownLocked(uid)
			v.change(uid)
		}
	case *clusteraccessv1.WatchResourcesResponse_Deleted:
		if uid, ok := sandboxOf(e.Deleted); ok {
			v.records.remove(uid)
			v.change(uid)
		}
	case *clusteraccessv1.WatchResourcesResponse_Mirror:
		v.mirrorLocked(e.Mirror)
		return true
	}
	return false
}

func sandboxOf(r *resourcev1.Resource) (id.Sandbox, bool) {
	uid, err := id.ParseSandbox(r.GetMeta().GetUid())
	return uid, err == nil && r.GetSandbox() != nil // other kinds are none of ours
}

// mirrorLocked takes the mirror's state.
func (v *view) mirrorLocked(told *clusteraccessv1.MirrorState) {
	ahead := v.ahead
	v.ahead = nil
	gone, anew := v.state(told)
	switch {
	case !v.live:
		return
	case !anew:
		v.change(ahead...)
		return
	}
	clear(v.foreign)
	v.tell(0)
	v.change(gone...)
	v.sweep(v.allLocked()...)
}

// hostAway says that no stream of the host is read: what it holds is not known
// now, and the next one tells all anew.
func (v *view) hostAway() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.states.begin()
	v.hostKnown = false
	v.epoch++
}

// hostEvent takes one message of the host's stream. It reports whether the host
// has told all that it holds.
func (v *view) hostEvent(msg *sandboxhostv1.WatchSandboxesResponse) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch e := msg.GetEvent().(type) {
	case *sandboxhostv1.WatchSandboxesResponse_Changed:
		uid := id.Sandbox(e.Changed.GetUid())
		v.states.set(uid, e.Changed)
		v.change(uid)
	case *sandboxhostv1.WatchSandboxesResponse_Forgotten:
		uid := id.Sandbox(e.Forgotten.GetUid())
		v.states.remove(uid)
		v.ownLocked(uid)
		v.change(uid)
	case *sandboxhostv1.WatchSandboxesResponse_Synced:
		v.states.complete()
		v.hostKnown = true
		v.epoch++
		v.sweep(v.allLocked()...)
		return true
	}
	return false
}
