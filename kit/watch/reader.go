package watch

// owed is what a reader has still to learn about one key: a deletion, then a
// value, either of which may be missing.
type owed[K comparable, V any] struct {
	deleted, set *Event[K, V]
}

// Reader is one place in the stream of a hub. It belongs to one goroutine.
type Reader[K comparable, V any] struct {
	hub   *Hub[K, V]
	ready chan struct{}

	// Guarded by the lock of the hub.
	snapshot []Event[K, V]
	order    []K // of the keys in owed, by their oldest change
	owed     map[K]owed[K, V]
	cut      bool
}

// Ready receives when Next may have something. Call Next until it has nothing
// before receiving again.
func (r *Reader[K, V]) Ready() <-chan struct{} { return r.ready }

// Next returns the next event, or false if there is none now.
func (r *Reader[K, V]) Next() (Event[K, V], bool) {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	if len(r.snapshot) > 0 {
		ev := r.snapshot[0]
		r.snapshot = r.snapshot[1:]
		return ev, true
	}
	if len(r.order) == 0 {
		return Event[K, V]{}, false
	}
	key := r.order[0]
	due := r.owed[key]
	if due.deleted != nil && due.set != nil {
		r.owed[key] = owed[K, V]{set: due.set}
		return *due.deleted, true
	}
	r.order = r.order[1:]
	delete(r.owed, key)
	if due.deleted != nil {
		return *due.deleted, true
	}
	return *due.set, true
}

// CutOff reports that the reader was too far behind and will learn nothing more.
func (r *Reader[K, V]) CutOff() bool {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	return r.cut
}

// Close ends the reader. It may be called more than once.
func (r *Reader[K, V]) Close() {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	delete(r.hub.readers, r)
	r.snapshot, r.order, r.owed = nil, nil, nil
}

// oweLocked adds ev to what the reader has to learn. A newer value replaces an
// older one; a deletion replaces both.
func (r *Reader[K, V]) oweLocked(ev Event[K, V]) {
	due, behind := r.owed[ev.Key]
	if !behind {
		r.order = append(r.order, ev.Key)
	}
	if ev.Kind == Deleted {
		due = owed[K, V]{deleted: &ev}
	} else {
		due.set = &ev
	}
	r.owed[ev.Key] = due
	r.wake()
}

func (r *Reader[K, V]) cutOffLocked() {
	r.cut = true
	r.snapshot, r.order, r.owed = nil, nil, nil
	delete(r.hub.readers, r)
	r.wake()
}

func (r *Reader[K, V]) wake() {
	select {
	case r.ready <- struct{}{}:
	default: // it will look anyway
	}
}
