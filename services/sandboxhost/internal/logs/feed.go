package logs

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/logging"
)

// errBufferFull says that there is no room in the buffer for what is in the FIFO.
var errBufferFull = errors.New("the buffer is full")

// feed moves what a workload writes into the buffers, until it ends or until its pipe is
// closed. One goroutine does.
func (b *buffers) feed(fifo *os.File) {
	defer b.end()
	for {
		n, err := b.step(fifo)
		if err != nil && !b.st.stopped(fifo) {
			b.st.store.warn("output unreadable", b.st.key, logging.Err(err))
		}
		if n == 0 || err != nil {
			return
		}
	}
}

// step moves one batch, or throws it away. Zero is the end.
func (b *buffers) step(fifo *os.File) (int64, error) {
	n, err := b.whenReady(fifo, b.move)
	if !errors.Is(err, errBufferFull) {
		return n, err
	}
	if b.roomComes() {
		return b.whenReady(fifo, b.move)
	}
	return b.whenReady(fifo, b.throwAway)
}

// whenReady does something with the FIFO as soon as it does not say EAGAIN.
func (b *buffers) whenReady(fifo *os.File, do func(from int) (int64, error)) (n int64, err error) {
	raw, err := fifo.SyscallConn()
	if err != nil {
		return 0, err
	}
	var inner error
	err = raw.Read(func(from uintptr) bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		n, inner = do(int(from))
		return !errors.Is(inner, unix.EAGAIN)
	})
	if n > 0 {
		signal(b.filled)
	}
	return n, errors.Join(err, inner)
}

// roomComes waits for room, for as long as a workload has to.
func (b *buffers) roomComes() bool {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-b.swapped:
		return true
	case <-limit.C:
		return false
	}
}

// move moves what there is into the buffer that is filled, or throws it away where more was
// thrown away before it. Neither pipe is one that a disk holds. mu is held.
func (b *buffers) move(from int) (int64, error) {
	if b.gap > 0 {
		return b.throwAway(from)
	}
	select {
	case <-b.swapped: // that was before
	default:
	}
	waiting, err := unix.IoctlGetInt(from, unix.TIOCINQ) // asked first: it only gets more
	if err != nil {
		return 0, err
	}
	to, err := b.pipes[b.filling].SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int64
	controlErr := to.Control(func(fd uintptr) {
		n, err = unix.Splice(from, nil, int(fd), nil, batch, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	})
	switch {
	case controlErr != nil:
		return 0, controlErr
	case errors.Is(err, unix.EAGAIN) && waiting > 0:
		return 0, errBufferFull
	case err != nil:
		return 0, err
	}
	b.bytes += n
	return n, nil
}

// throwAway reads what there is without a place to put it, unless there is room by now. mu is held.
func (b *buffers) throwAway(from int) (int64, error) {
	if b.gap == 0 && b.bytes == 0 {
		return b.move(from)
	}
	if b.scratch == nil {
		b.scratch = make([]byte, MaxChunk)
	}
	n, err := unix.Read(from, b.scratch)
	if err != nil {
		return 0, err
	}
	b.gap += int64(n)
	return int64(n), nil
}

// inPipe is how many bytes a pipe holds.
func inPipe(pipe *os.File) (n int64, err error) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return 0, err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		var count int
		count, inner = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		n = int64(count)
	})
	return n, errors.Join(err, inner)
}
