// Package mirror owns this node's copy of its records: what the coordinator said
// last, what that copy is worth, and the streams of those who read it.
//
// The copy is in memory and kept in a journal, so that a node that is cut off, or
// starts while it is, works from what it knew. A snapshot replaces the copy as a
// whole once it is complete; until then the old one stands. Readers get the
// newest state of each record, never a history, and every deletion.
//
// It must never decide what a missing record means, nor ask the coordinator
// anything; the link does that and tells the mirror. In the trail of a sandbox
// this is where its record reaches the node.
package mirror

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/journal"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Config says where the copy is kept.
type Config struct {
	// Path of the journal. Its folder must exist.
	Path string
	// BootID of the running kernel.
	BootID string
}

// Deps is what a mirror needs.
type Deps struct {
	// Log gets what goes wrong with the journal.
	Log *slog.Logger
	// LinkChanged is called, one call at a time, when the mirror begins or ceases
	// to be live, with the reason why it is not. It must not call the mirror.
	LinkChanged func(live bool, reason string)
}

// Place is where in which history a mirror is. The zero value is none.
type Place struct {
	// Revision that the mirror is as of.
	Revision uint64
	// Incarnation names the history, and Term the part of it that the revision is in.
	Incarnation, Term string
}

// Change is one record that changed or is gone.
type Change struct {
	// Record in its newest, or last, state. It must not be changed any more.
	Record *resourcev1.Resource
	// Deleted says that it is gone.
	Deleted bool
}

// Mirror is the copy. Its methods may be called from any goroutine once Run is
// ready; before, it is empty.
type Mirror struct {
	cfg  Config
	deps Deps
	wake chan struct{} // something is to be kept

	mu      sync.Mutex // guards all below, and the inside of every reader
	records map[string]*resourcev1.Resource
	state   *clusteraccessv1.MirrorState // replaced, never changed
	readers map[*Reader]struct{}
	dirty   map[string]struct{} // uids that the journal does not know yet
	unkept  bool                // the journal does not know the state yet
}

// New returns an empty mirror that opens nothing yet.
func New(cfg Config, deps Deps) *Mirror {
	return &Mirror{
		cfg: cfg, deps: deps,
		wake:    make(chan struct{}, 1),
		records: make(map[string]*resourcev1.Resource),
		state:   &clusteraccessv1.MirrorState{Since: timestamppb.Now(), Reason: notYet},
		readers: make(map[*Reader]struct{}),
		dirty:   make(map[string]struct{}),
	}
}

// notYet is the reason before the first try.
const notYet = "the coordinator was not reached yet"

// Run opens the journal and fills the mirror from it, which makes it ready, and
// keeps it up to date until ctx ends.
func (m *Mirror) Run(ctx context.Context, ready func()) (err error) {
	j, _, err := journal.Open(journal.Options{Path: m.cfg.Path, Kind: "clusteraccess", Version: 1, Log: m.deps.Log})
	if err != nil {
		return err
	}
	k := &keeper{mirror: m, journal: j}
	defer func() { err = k.close(err) }()
	ctx, stop := j.While(ctx)
	defer stop()
	if err := k.load(); err != nil {
		return err
	}
	ready()
	return k.run(ctx)
}

// State says what the mirror is worth now.
func (m *Mirror) State() *clusteraccessv1.MirrorState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Replace fills the mirror anew with a complete snapshot and makes it live.
func (m *Mirror) Replace(records []*resourcev1.Resource, at Place) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fresh := make(map[string]*resourcev1.Resource, len(records))
	for _, r := range records {
		fresh[r.GetMeta().GetUid()] = r
	}
	m.differLocked(fresh, at)
	m.records = fresh
	for r := range m.readers {
		r.restartLocked()
	}
	m.liveLocked(at)
}

// CaughtUp applies what changed since the revision of the mirror, and makes it
// live as of a later one of the same history.
func (m *Mirror) CaughtUp(changes []Change, at Place) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.applyLocked(changes)
	m.liveLocked(at)
}

// Apply applies changes to a live mirror, in the order of the history.
func (m *Mirror) Apply(changes []Change, revision uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.applyLocked(changes)
	state := proto.CloneOf(m.state)
	state.Revision = max(state.Revision, revision)
	m.stateLocked(state)
}

// Lost says that nothing keeps the mirror up to date any more, and why.
func (m *Mirror) Lost(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.state.GetLive() && m.state.GetReason() == reason {
		return
	}
	state := proto.CloneOf(m.state)
	if state.GetLive() {
		state.Since = timestamppb.Now()
	}
	state.Live, state.Reason = false, reason
	m.stateLocked(state)
	m.deps.LinkChanged(false, reason)
}

// List returns at most limit records of a kind whose names come after a given
// one, ordered by name; whether there are more; and what the mirror was worth.
func (m *Mirror) List(kind resourcev1.Kind, after string, limit int) ([]*resourcev1.Resource, bool, *clusteraccessv1.MirrorState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []*resourcev1.Resource
	for _, r := range m.records {
		if r.GetMeta().GetKind() == kind && r.GetMeta().GetName() > after {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *resourcev1.Resource) int {
		return strings.Compare(a.GetMeta().GetName(), b.GetMeta().GetName())
	})
	if len(found) > limit {
		return found[:limit], true, m.state
	}
	return found, false, m.state
}

// differLocked marks for the journal what a snapshot changes. One revision of a
// record is one state only within a term.
func (m *Mirror) differLocked(fresh map[string]*resourcev1.Resource, at Place) {
	same := at.Incarnation == m.state.GetIncarnation() && at.Term == m.state.GetTerm()
	for uid, r := range fresh {
		if old, ok := m.records[uid]; !ok || !same || old.GetMeta().GetRevision() != r.GetMeta().GetRevision() {
			m.dirty[uid] = struct{}{}
		}
	}
	for uid := range m.records {
		if _, ok := fresh[uid]; !ok {
			m.dirty[uid] = struct{}{}
		}
	}
}

func (m *Mirror) applyLocked(changes []Change) {
	for _, c := range changes {
		uid := c.Record.GetMeta().GetUid()
		if c.Deleted {
			delete(m.records, uid)
		} else {
			m.records[uid] = c.Record
		}
		m.dirty[uid] = struct{}{}
		for r := range m.readers {
			r.oweLocked(c)
		}
	}
}

func (m *Mirror) liveLocked(at Place) {
	since := m.state.GetSince()
	if !m.state.GetLive() {
		since = timestamppb.New(time.Now())
	}
	m.stateLocked(&clusteraccessv1.MirrorState{
		Live: true, Revision: at.Revision, Incarnation: at.Incarnation, Term: at.Term, BootId: m.cfg.BootID, Since: since,
	})
	m.deps.LinkChanged(true, "")
}

func (m *Mirror) stateLocked(state *clusteraccessv1.MirrorState) {
	m.state, m.unkept = state, true
	for r := range m.readers {
		r.wakeLocked()
	}
	select {
	case m.wake <- struct{}{}:
	default: // the keeper looks anyway
	}
}

// Read begins a stream of the records of the given kinds, or of all if there is
// none. The caller closes it.
func (m *Mirror) Read(kinds []resourcev1.Kind) *Reader {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := &Reader{mirror: m, kinds: slices.Clone(kinds), ready: make(chan struct{}, 1), owed: make(map[string]*resourcev1.Resource)}
	m.readers[r] = struct{}{}
	r.restartLocked()
	return r
}

// errCutOff ends a reader that is too far behind.
var errCutOff = fault.New(fault.Unavailable, "watch records: the reader is too far behind; begin again")

// Place says where in which history the mirror is: nowhere when it was never filled.
func (m *Mirror) Place() Place {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Place{Revision: m.state.GetRevision(), Incarnation: m.state.GetIncarnation(), Term: m.state.GetTerm()}
}
