package image

import (
	"context"
	"sync"
)

// locks are mutual exclusion by name: two images with a layer in common do not
// unpack it twice.
type locks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when let go
}

// Lock returns when the name is ours, or ctx ends.
func (l *locks) Lock(ctx context.Context, name string) error {
	for {
		l.mu.Lock()
		other, taken := l.held[name]
		if !taken {
			l.held[name] = make(chan struct{})
			l.mu.Unlock()
			return nil
		}
		l.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Unlock lets go of a name that is ours.
func (l *locks) Unlock(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.held[name])
	delete(l.held, name)
}
