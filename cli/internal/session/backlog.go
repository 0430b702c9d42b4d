package session

import (
	"context"
	"errors"
	"io"
	"sync"
)

// backlog is the person's input that the other side has not taken yet. It bounds how much is
// under way, and keeps that for a connection that takes the place of a broken one.
type backlog struct {
	mu      sync.Mutex // guards what follows
	data    []byte
	taken   uint64 // how much the other side has, which is the offset of data
	ended   bool
	changed chan struct{} // closed and made anew with each change
}

// errUnsent says that the other side has not kept to the contract.
var errUnsent = errors.New("the other side says that it took input which was not sent")

func newBacklog() *backlog { return &backlog{changed: make(chan struct{})} }

// fill reads input to its end, and waits while too much is under way. An error of the
// input is returned.
func (b *backlog) fill(ctx context.Context, input io.Reader) error {
	buf := make([]byte, chunk)
	for {
		n, err := input.Read(buf)
		if n > 0 && !b.put(ctx, buf[:n]) {
			return nil
		}
		switch {
		case errors.Is(err, io.EOF):
			b.end()
			return nil
		case errors.Is(err, ErrNoEnd):
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (b *backlog) put(ctx context.Context, p []byte) bool {
	return b.when(ctx, func() bool {
		if len(b.data)+len(p) > window {
			return false
		}
		b.data = append(b.data, p...)
		b.wake()
		return true
	})
}

func (b *backlog) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.wake()
}

// next copies what stands at an offset into p. It is false when ctx ended first, and io.EOF
// comes behind the last byte.
func (b *backlog) next(ctx context.Context, offset uint64, p []byte) (n int, err error) {
	there := b.when(ctx, func() bool {
		if offset < b.taken {
			err = errUnsent
			return true
		}
		n = copy(p, b.data[min(uint64(len(b.data)), offset-b.taken):])
		if n == 0 && b.ended {
			err = io.EOF
		}
		return n > 0 || err != nil
	})
	if !there {
		return 0, context.Cause(ctx)
	}
	return n, err
}

// take says how much the other side has. It is false if that cannot be: fewer than it has said
// before, or more than there ever was.
func (b *backlog) take(total uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if total < b.taken || total-b.taken > uint64(len(b.data)) {
		return false
	}
	b.data = append(b.data[:0], b.data[total-b.taken:]...)
	b.taken = total
	b.wake()
	return true
}

// when waits until fn, called with the lock held, is true. It is false when ctx ended first.
func (b *backlog) when(ctx context.Context, fn func() bool) bool {
	for {
		b.mu.Lock()
		done, changed := fn(), b.changed
		b.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// wake wakes who waits. The caller holds mu.
func (b *backlog) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}
