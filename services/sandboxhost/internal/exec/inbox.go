package exec

import (
	"context"
	"io"
	"sync"
)

// window is how many bytes of input a session takes in advance. Whoever keeps to it is
// always heard, whether the process reads or not.
const window = 256 << 10

// inbox is a bounded buffer between one writer and one reader.
type inbox struct {
	mu      sync.Mutex // guards what follows
	data    []byte
	ended   bool
	changed chan struct{} // closed and made anew with each change
}

func newInbox() *inbox { return &inbox{changed: make(chan struct{})} }

// put adds bytes, and waits while there is no room.
func (i *inbox) put(ctx context.Context, b []byte) error {
	for {
		i.mu.Lock()
		if len(i.data) == 0 || len(i.data)+len(b) <= window {
			i.data = append(i.data, b...)
			i.wake()
			i.mu.Unlock()
			return nil
		}
		changed := i.changed
		i.mu.Unlock()
		if err := await(ctx, changed); err != nil {
			return err
		}
	}
}

// end says that no more comes.
func (i *inbox) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	i.wake()
}

// take moves bytes into b, and waits while there are none; io.EOF after the end.
func (i *inbox) take(ctx context.Context, b []byte) (int, error) {
	for {
		i.mu.Lock()
		n, ended, changed := copy(b, i.data), i.ended, i.changed
		if n > 0 {
			i.data = append(i.data[:0], i.data[n:]...)
			i.wake()
		}
		i.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case ended:
			return 0, io.EOF
		}
		if err := await(ctx, changed); err != nil {
			return 0, err
		}
	}
}

// wake wakes who waits. The caller holds mu.
func (i *inbox) wake() {
	close(i.changed)
	i.changed = make(chan struct{})
}

func await(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
