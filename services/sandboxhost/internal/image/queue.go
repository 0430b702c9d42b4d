package image

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// atOnceDefault is how many pulls, and layers of one, go at once.
const atOnceDefault = 3

func (c Config) pulls() int { return cmp.Or(c.MaxPulls, atOnceDefault) }

func (c Config) layers() int { return cmp.Or(c.MaxLayers, atOnceDefault) }

// queue lets so many in at once, in the order in which they came.
type queue struct {
	size int

	mu      sync.Mutex
	inside  int
	waiting []chan struct{} // closed when let in
}

// enter returns when there is room, or ctx ends. turn is the caller's alone: position
// tells by it how long it still waits. Who has entered calls leave once.
func (q *queue) enter(ctx context.Context, turn chan struct{}) error {
	q.mu.Lock()
	if q.inside < q.size && len(q.waiting) == 0 {
		q.inside++
		q.mu.Unlock()
		return nil
	}
	q.waiting = append(q.waiting, turn)
	q.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	at := slices.Index(q.waiting, turn)
	if at >= 0 {
		q.waiting = slices.Delete(q.waiting, at, at+1)
	}
	q.mu.Unlock()
	if at < 0 { // let in at the same moment
		q.leave()
	}
	return context.Cause(ctx)
}

// leave makes room for the next.
func (q *queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.inside--
		return
	}
	close(q.waiting[0])
	q.waiting = slices.Delete(q.waiting, 0, 1)
}

// position is 1 for the one who is let in next, and 0 for one who does not wait.
func (q *queue) position(turn chan struct{}) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Index(q.waiting, turn) + 1
}
