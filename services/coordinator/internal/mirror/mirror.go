// Package mirror owns the copy of all records in this process's memory, and the
// last part of their history.
//
// One watch on the store fills it; schedulers read it and every watcher of the
// API is served from it, so that a thousand nodes cost the store one watch. A
// reader that falls behind the kept history is told so and begins again; it
// never slows the others. The mirror must never be asked whether a record is
// gone for good: that is a question for the store. In the trail it stands between
// the store and everything that reacts to changes.
package mirror

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"

	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

// source is what the mirror follows.
type source interface {
	Load(ctx context.Context, emit func(store.Entry)) (uint64, error)
	Follow(ctx context.Context, revision uint64, emit func([]store.Entry)) error
	Incarnation(ctx context.Context) (string, error)
	BeginTerm(ctx context.Context) (string, error)
	Current(ctx context.Context) (uint64, error)
}

// Config bounds the history that is kept in memory.
type Config struct {
	// MaxEvents and MaxBytes bound the history; 0 means 10,000 and 64 MiB.
	MaxEvents, MaxBytes int
}

// Deps is what a mirror needs.
type Deps struct {
	Store source
	Log   *slog.Logger
	// NotReady is told why the mirror follows no more, and nothing once it does.
	NotReady func(reason string)
}

// Mirror is the copy. All methods may be called from any goroutine, and none
// waits for a reader. Records that it hands out are shared: clone before changing.
type Mirror struct {
	cfg  Config
	deps Deps

	mu          sync.RWMutex // guards all below
	filled      bool
	incarnation string
	term        string // the newest one; "" if this mirror could not begin one
	revision    uint64
	records     map[record.Kind]map[string]*record.Resource
	sessions    map[string]store.Session
	removed     map[string]bool
	history     history
	changed     chan struct{} // closed and replaced at every change
}

// New returns an empty mirror.
func New(cfg Config, deps Deps) *Mirror {
	if cfg.MaxEvents == 0 {
		cfg.MaxEvents = 10_000
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 64 << 20
	}
	return &Mirror{cfg: cfg, deps: deps, changed: make(chan struct{})}
}

var retry = backoff.Policy{Initial: 100 * time.Millisecond, Cap: 5 * time.Second, Stable: time.Minute}

// Run fills the mirror, calls ready, and follows the store until ctx ends. A
// watch that breaks is begun again with everything read afresh.
func (m *Mirror) Run(ctx context.Context, ready func()) error {
	attempt, began := 0, time.Now()
	for ctx.Err() == nil {
		err := m.follow(ctx, ready)
		if ctx.Err() != nil {
			break
		}
		m.doubt()
		attempt = retry.Next(attempt, time.Since(began))
		began = time.Now()
		m.deps.NotReady("reading the store: " + err.Error())
		m.deps.Log.Warn("watch broken", logging.Err(err), logging.Attempt(int64(attempt)))
		if backoff.Wait(ctx, retry.Delay(attempt, 0.5)) != nil {
			break
		}
	}
	return context.Cause(ctx)
}

// doubt stops new watches until everything was read again: what is here may be
// behind by any amount.
func (m *Mirror) doubt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.filled = false
}

func (m *Mirror) follow(ctx context.Context, ready func()) error {
	incarnation, err := m.deps.Store.Incarnation(ctx)
	if err != nil {
		return err
	}
	begun, err := m.beginTerm(ctx)
	if err != nil {
		return err
	}
	fresh := emptyTables()
	revision, err := m.deps.Store.Load(ctx, fresh.take)
	if err != nil {
		return err
	}
	if !begun {
		fresh.term = ""
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, termRetry, errNoTerm)
		defer cancel()
	}
	m.refill(incarnation, revision, fresh)
	m.deps.NotReady("")
	ready()
	return m.deps.Store.Follow(ctx, revision, m.apply)
}

// termRetry is how long a mirror is served without a term of its own.
const termRetry = time.Minute

var errNoTerm = fault.New(fault.Unavailable, "no term was begun: trying again")

// beginTerm reports whether a term was begun. A store that is full is read all
// the same: it answers everything but what its history contains.
func (m *Mirror) beginTerm(ctx context.Context) (bool, error) {
	_, err := m.deps.Store.BeginTerm(ctx)
	if fault.Reason(err) == store.ReasonFull {
		m.deps.Log.Warn("term not begun", logging.Err(err), logging.RetryIn(termRetry))
		return false, nil
	}
	return err == nil, err
}

// tables is what a whole reading of the store makes.
type tables struct {
	records  map[record.Kind]map[string]*record.Resource
	sessions map[string]store.Session
	removed  map[string]bool
	term     string // the newest
	termAt   uint64 // where it begins
}

func emptyTables() *tables {
	t := &tables{
		records: map[record.Kind]map[string]*record.Resource{}, sessions: map[string]store.Session{}, removed: map[string]bool{},
	}
	for _, k := range record.Kinds() {
		t.records[k] = map[string]*record.Resource{}
	}
	return t
}

func (t *tables) take(e store.Entry) {
	switch {
	case e.Record != nil:
		t.records[e.Key.Kind][e.Key.Name] = e.Record
	case e.SessionOf != "":
		t.sessions[e.SessionOf] = e.Session
	case e.RemovedNode != "":
		t.removed[e.RemovedNode] = true
	case e.Term != "" && e.Revision > t.termAt:
		t.term, t.termAt = e.Term, e.Revision
	}
}

// refill replaces everything. What happened since the last change is not known,
// so the history begins anew and every reader of the old one is cut off.
func (m *Mirror) refill(incarnation string, revision uint64, t *tables) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.filled, m.incarnation, m.term, m.revision = true, incarnation, t.term, revision
	m.records, m.sessions, m.removed = t.records, t.sessions, t.removed
	m.history.restart(revision)
	m.wakeLocked()
}

// apply takes whole revisions.
func (m *Mirror) apply(entries []store.Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, e := range entries {
		last := i == len(entries)-1 || entries[i+1].Revision != e.Revision
		m.revision = e.Revision
		switch {
		case e.SessionOf != "" && e.Gone:
			delete(m.sessions, e.SessionOf)
		case e.SessionOf != "":
			m.sessions[e.SessionOf] = e.Session
		case e.RemovedNode != "" && e.Gone:
			delete(m.removed, e.RemovedNode)
		case e.RemovedNode != "":
			m.removed[e.RemovedNode] = true
		case e.Term != "":
			m.termLocked(e)
		default:
			m.applyRecordLocked(e)
		}
		if last {
			m.history.seal(e.Revision)
		}
	}
	m.history.trim(m.cfg.MaxEvents, m.cfg.MaxBytes)
	m.wakeLocked()
}

// termLocked takes a term that another coordinator began. Readers of the one
// before are cut off, so that every position is told with its own term.
func (m *Mirror) termLocked(e store.Entry) {
	if m.term != "" && !e.Gone {
		m.term = e.Term
	}
}

func (m *Mirror) applyRecordLocked(e store.Entry) {
	table := m.records[e.Key.Kind]
	before := table[e.Key.Name]
	if e.Gone {
		delete(table, e.Key.Name)
	} else {
		table[e.Key.Name] = e.Record
	}
	if before != nil || e.Record != nil {
		m.history.add(Event{Revision: e.Revision, Record: e.Record, Before: before})
	}
}

func (m *Mirror) wakeLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// View is the mirror at one moment.
type View struct {
	Revision    uint64
	Incarnation string
	Records     map[record.Kind]map[string]*record.Resource
	Sessions    map[string]store.Session
	// Changed is closed at the next change after this moment.
	Changed <-chan struct{}
}

// View returns a copy of the tables; the records themselves are shared.
func (m *Mirror) View() View {
	m.mu.RLock()
	defer m.mu.RUnlock()
	v := View{m.revision, m.incarnation, map[record.Kind]map[string]*record.Resource{}, maps.Clone(m.sessions), m.changed}
	for k, table := range m.records {
		v.Records[k] = maps.Clone(table)
	}
	return v
}

// Get returns one record as far as the mirror knows.
func (m *Mirror) Get(key record.Key) (*record.Resource, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	r, ok := m.records[key.Kind][key.Name]
	return r, ok
}

// Session returns the open session of a node as far as the mirror knows, zero if
// there is none.
func (m *Mirror) Session(node string) store.Session {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.sessions[node]
}

// Removed reports whether a node was removed and not admitted again.
func (m *Mirror) Removed(node string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.removed[node]
}

// Await returns once the mirror holds everything up to a revision that changed a
// record.
func (m *Mirror) Await(ctx context.Context, revision uint64) error {
	for {
		m.mu.RLock()
		reached, changed := m.revision >= revision, m.changed
		m.mu.RUnlock()
		if reached {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "await revision %d: %w", revision, context.Cause(ctx))
		}
	}
}
