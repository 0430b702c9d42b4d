package agent

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"staddle.internal/kit/journal"
	"staddle.internal/kit/logging"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
)

// Trust says what a live mirror is worth against what this node has seen before.
type Trust int

// What a mirror may be.
const (
	// Unknown is a mirror that was not judged yet.
	Unknown Trust = iota
	// Trusted is the known history, not older than seen.
	Trusted
	// Older is the known history as it was before: a coordinator that was put
	// back to a copy.
	Older
	// Other is another history: another cluster, or one that was made anew.
	Other
)

// String says in a sentence why a mirror is not trusted.
func (t Trust) String() string {
	switch t {
	case Trusted:
		return "the mirror is trusted"
	case Older:
		return "the coordinator's history ends before what this node has seen; nothing is removed until it has caught up"
	case Other:
		return "the coordinator's history is not the one this node knows; nothing is removed"
	case Unknown:
	}
	return "the mirror was not judged yet"
}

// Seen is how far this node has seen which history. The zero value has seen none.
type Seen struct {
	// Incarnation names the history.
	Incarnation string
	// Revision is the highest one seen.
	Revision uint64
}

// Judge says what a live mirror of a history, as of a revision, is worth, and
// what has been seen with it. The first history seen is the known one.
func (s Seen) Judge(incarnation string, revision uint64) (Trust, Seen) {
	switch {
	case s.Incarnation != "" && s.Incarnation != incarnation:
		return Other, s
	case revision < s.Revision:
		return Older, s
	}
	return Trusted, Seen{Incarnation: incarnation, Revision: revision}
}

// Buckets and keys of the journal.
const (
	bucketSeen = "seen"
	keySeen    = "seen"
)

// keepEvery spaces writes while the history moves on. What a crash loses of it is
// made up by the question to the coordinator that precedes every removal.
const keepEvery = 5 * time.Second

// memory keeps what has been seen over restarts.
type memory struct {
	log     *slog.Logger
	journal *journal.Journal

	mu     sync.Mutex // guards all below
	seen   Seen
	kept   Seen
	keptAt time.Time
}

// openMemory reads what was seen. To make the node accept another cluster for
// good, this file is removed while the agent is stopped.
func openMemory(path string, log *slog.Logger) (*memory, error) {
	j, _, err := journal.Open(journal.Options{Path: path, Kind: "sandbox-agent", Version: 1, Log: log})
	if err != nil {
		return nil, err
	}
	m := &memory{log: log, journal: j}
	err = j.View(func(tx journal.Tx) error {
		state, _, err := journal.GetProto[*clusteraccessv1.MirrorState](tx, bucketSeen, keySeen)
		m.seen = Seen{Incarnation: state.GetIncarnation(), Revision: state.GetRevision()}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	m.kept = m.seen
	return m, nil
}

// judge judges a live mirror and remembers it. A new snapshot is kept at once.
func (m *memory) judge(state *clusteraccessv1.MirrorState, snapshot bool) Trust {
	m.mu.Lock()
	defer m.mu.Unlock()
	trust, seen := m.seen.Judge(state.GetIncarnation(), state.GetRevision())
	m.seen = seen
	if snapshot || time.Since(m.keptAt) >= keepEvery {
		m.keepLocked()
	}
	return trust
}

func (m *memory) keepLocked() {
	if m.seen == m.kept {
		return
	}
	seen := m.seen
	err := m.journal.Update(func(tx journal.Tx) error {
		return journal.PutProto(tx, bucketSeen, keySeen, &clusteraccessv1.MirrorState{Incarnation: seen.Incarnation, Revision: seen.Revision})
	})
	m.keptAt = time.Now()
	if err != nil {
		m.log.Warn("revision not kept", logging.Err(err))
		return
	}
	m.kept = seen
}

// close keeps what is left, joined to a cause.
func (m *memory) close(cause error) error {
	m.mu.Lock()
	m.keepLocked()
	m.mu.Unlock()
	if err := m.journal.Close(); err != nil {
		return errors.Join(cause, err)
	}
	return cause
}
