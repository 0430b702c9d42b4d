// Package watch owns the spreading of changes inside one process: a table of
// newest values, and readers who get a snapshot of it and then every change.
//
// A slow reader never blocks the writer and never makes it remember a history:
// per key a reader is owed the newest value only. A deletion is never left out,
// and the order of one key is kept. A reader so slow that even this grows
// without bound is cut off, and reads again from a new snapshot.
//
// It must never be asked what a value was before. In the trail it stands between
// the keepers and the streams of the API.
package watch

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
)

// maxOwed bounds how many keys a reader may be behind.
const maxOwed = 1 << 17

// Kind says what an event means.
type Kind int

// The kinds of events, in the order in which a reader first meets them.
const (
	// Snapshot is one value of the table as it was when reading began.
	Snapshot Kind = iota + 1
	// Synced comes once, after the whole snapshot.
	Synced
	// Set is a new or changed value.
	Set
	// Deleted carries the last value.
	Deleted
)

// String is the kind's name.
func (k Kind) String() string {
	switch k {
	case Snapshot:
		return "snapshot"
	case Synced:
		return "synced"
	case Set:
		return "set"
	case Deleted:
		return "deleted"
	}
	return fmt.Sprintf("kind %d", int(k))
}

// Event is one thing that a reader learns.
type Event[K comparable, V any] struct {
	Kind  Kind
	Key   K // zero for Synced
	Value V // zero for Synced
	// Version grows with every change of the hub. For Synced it is that of the
	// snapshot.
	Version uint64
}

type entry[V any] struct {
	value   V
	version uint64
}

// Hub is the table. All methods may be called from any goroutine; none blocks on
// a reader. Values are shared with readers and must not be changed after Set.
type Hub[K comparable, V any] struct {
	mu      sync.Mutex // guards all below, and the inside of every reader
	version uint64
	entries map[K]entry[V]
	readers map[*Reader[K, V]]struct{}
	limit   int
}

// New returns an empty hub.
func New[K comparable, V any]() *Hub[K, V] {
	return &Hub[K, V]{
		entries: make(map[K]entry[V]),
		readers: make(map[*Reader[K, V]]struct{}),
		limit:   maxOwed,
	}
}

// Set makes value the newest of key and returns the version of that change.
func (h *Hub[K, V]) Set(key K, value V) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.version++
	h.entries[key] = entry[V]{value, h.version}
	h.tellLocked(Event[K, V]{Set, key, value, h.version})
	return h.version
}

// Delete removes key. Readers learn its last value, which may be newer than the
// one in the table. It reports whether the key was there; if not, nothing happens.
func (h *Hub[K, V]) Delete(key K, last V) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.entries[key]; !ok {
		return false
	}
	h.version++
	delete(h.entries, key)
	h.tellLocked(Event[K, V]{Deleted, key, last, h.version})
	return true
}

// Get returns the newest value of key.
func (h *Hub[K, V]) Get(key K) (V, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, ok := h.entries[key]
	return e.value, ok
}

// Len is the number of keys.
func (h *Hub[K, V]) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.entries)
}

// Snapshot returns a copy of the table.
func (h *Hub[K, V]) Snapshot() map[K]V {
	h.mu.Lock()
	defer h.mu.Unlock()
	table := make(map[K]V, len(h.entries))
	for k, e := range h.entries {
		table[k] = e.value
	}
	return table
}

// Subscribe yields the snapshot, oldest change first, then Synced, then every
// change, until ctx ends or the loop is left. Each range over it begins anew. If
// it ends while ctx lives, the reader was cut off for being too far behind.
func (h *Hub[K, V]) Subscribe(ctx context.Context) iter.Seq[Event[K, V]] {
	return func(yield func(Event[K, V]) bool) {
		r := h.Read()
		defer r.Close()
		for {
			for ev, ok := r.Next(); ok; ev, ok = r.Next() {
				if ctx.Err() != nil || !yield(ev) {
					return
				}
			}
			if r.CutOff() {
				return
			}
			select {
			case <-r.Ready():
			case <-ctx.Done():
				return
			}
		}
	}
}

// Read begins reading, for a loop that waits for other things as well. The
// caller closes the reader.
func (h *Hub[K, V]) Read() *Reader[K, V] {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &Reader[K, V]{hub: h, ready: make(chan struct{}, 1), owed: make(map[K]owed[K, V])}
	for k, e := range h.entries {
		r.snapshot = append(r.snapshot, Event[K, V]{Snapshot, k, e.value, e.version})
	}
	slices.SortFunc(r.snapshot, func(a, b Event[K, V]) int { return cmp.Compare(a.Version, b.Version) })
	r.snapshot = append(r.snapshot, Event[K, V]{Kind: Synced, Version: h.version})
	r.wake()
	h.readers[r] = struct{}{}
	return r
}

// tellLocked hands ev to every reader.
func (h *Hub[K, V]) tellLocked(ev Event[K, V]) {
	for r := range maps.Keys(h.readers) {
		r.oweLocked(ev)
		if len(r.owed) > h.limit {
			r.cutOffLocked()
		}
	}
}
