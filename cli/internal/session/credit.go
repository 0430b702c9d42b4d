package session

import (
	"context"
	"sync"
)

// credit is how much input may still be sent.
type credit struct {
	mu      sync.Mutex // guards what follows
	sent    uint64
	done    uint64        // taken by the other side
	changed chan struct{} // closed and made anew when more was taken
}

func newCredit() *credit { return &credit{changed: make(chan struct{})} }

// spend waits until n more bytes may be sent, and counts them. It is false when ctx
// ended first.
func (c *credit) spend(ctx context.Context, n int) bool {
	for {
		c.mu.Lock()
		if c.sent+uint64(n) <= c.done+window {
			c.sent += uint64(n)
			c.mu.Unlock()
			return true
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// taken says how much was taken since the start.
func (c *credit) taken(done uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done > c.done {
		c.done = done
		close(c.changed)
		c.changed = make(chan struct{})
	}
}
