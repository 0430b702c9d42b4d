package logs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/logging"
)

// patience is how long a workload waits for a disk that is slower than it is, each time that
// a buffer is full: about what a disk that is well takes for that much.
const patience = 20 * time.Millisecond

// buffers are the two pipes between the FIFO of a workload that never waits for its disk,
// and that disk. Splice holds the pipe that it empties for as long as the disk takes, so one is
// the writer's until it is empty, and the other is filled meanwhile; when that is full as well,
// what comes is thrown away until they change places. So no byte is in our memory, whoever
// dies, and what was thrown away is one gap, behind all that the filled one holds.
//
// Both are kept over our death. Which one has the older bytes is noted whenever they change places;
// what a gap has cost until then is not, and is forgotten with us.
type buffers struct {
	st    *stream
	pipes [2]*os.File // both ends of each; nobody else has them
	note  *os.File    // of the stream

	mu      sync.Mutex
	filling int   // the one that the feeder fills; the other is the writer's
	bytes   int64 // in it
	gap     int64 // thrown away behind them
	older   int64 // in the other one, left by an earlier process

	filled  chan struct{} // there is something to be written, or will be nothing more
	swapped chan struct{} // there is room again
	fed     bool          // nothing more will come
	scratch []byte        // of the feeder
}

// bufferName is the path, beside the FIFO, and by its end the stored name of a buffer.
func bufferName(of string, i int) string { return fmt.Sprintf("%s.buffer%d", of, i) }

// openBuffers makes the buffers of a stream, or takes over what is there: kept has what the Keeper had.
func openBuffers(st *stream, filling int, kept map[string]*os.File) (b *buffers, err error) {
	b = &buffers{
		st: st, filling: filling,
		filled: make(chan struct{}, 1), swapped: make(chan struct{}, 1),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.note, err = os.OpenFile(st.fifo+noteSuffix, os.O_WRONLY, 0); err != nil {
		return b, err
	}
	for i := range b.pipes {
		name := bufferName(st.key.stored(), i)
		b.pipes[i] = kept[name]
		delete(kept, name)
		if b.pipes[i] == nil {
			if b.pipes[i], err = st.makeBuffer(i); err != nil {
				return b, err
			}
		}
	}
	if b.bytes, err = inPipe(b.pipes[filling]); err != nil {
		return b, err
	}
	b.older, err = inPipe(b.pipes[1-filling])
	return b, err
}

func (st *stream) makeBuffer(i int) (*os.File, error) {
	path := bufferName(st.fifo, i)
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make fifo %s: %w", path, err)
	}
	pipe, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(widen(pipe), st.keep(bufferName(st.key.stored(), i), pipe)); err != nil {
		return nil, errors.Join(err, pipe.Close())
	}
	return pipe, nil
}

// close closes them; what they hold stays with the Keeper.
func (b *buffers) close() error { return closeAll(b.pipes[0], b.pipes[1], b.note) }

// filledPipe is a buffer that the writer empties.
type filledPipe struct {
	pipe  *os.File
	bytes int64 // that it holds
	gap   int64 // thrown away behind them
}

// next gives the writer what is to be written, once the one that it had is empty. False says
// that there is nothing more, or that halt was closed.
func (b *buffers) next(halt <-chan struct{}) (filledPipe, bool) {
	for {
		if p, ended, ok := b.swap(); ok || ended {
			return p, ok
		}
		select {
		case <-b.filled:
		case <-halt:
			return filledPipe{}, false
		}
	}
}

// swap lets the buffers change places if there is something in the filled one.
func (b *buffers) swap() (p filledPipe, ended, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.older > 0 {
		p = filledPipe{pipe: b.pipes[1-b.filling], bytes: b.older}
		b.older = 0
		return p, false, true
	}
	if b.bytes == 0 && b.gap == 0 {
		return filledPipe{}, b.fed, false
	}
	p = filledPipe{b.pipes[b.filling], b.bytes, b.gap}
	next := 1 - b.filling
	// Before anything is put into the other one: it is empty until then, and the order of the two is nothing.
	if _, err := b.note.WriteAt([]byte{byte(NonBlocking), byte(next)}, 0); err != nil {
		b.st.store.warn("order of buffers not noted", b.st.key, logging.Err(err))
	}
	b.filling, b.bytes, b.gap = next, 0, 0
	signal(b.swapped)
	return p, false, true
}

// end says that nothing more will come.
func (b *buffers) end() {
	b.mu.Lock()
	b.fed = true
	b.mu.Unlock()
	signal(b.filled)
}

// signal wakes whoever waits at a channel with room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // he will look anyway
	}
}
