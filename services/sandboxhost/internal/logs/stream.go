package logs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// closedMarker in the folder of a stream says that nothing more will come.
const closedMarker = "closed"

// pipeSize is how much a workload can write before it waits while nobody reads.
const pipeSize = 1 << 20

// stream is one of the two streams of one container's attempt.
type stream struct {
	key   key
	store *Store
	dir   string // of the writer; readers look where it is by now
	fifo  string

	mu    sync.Mutex    // guards what follows
	pipe  *os.File      // read end while it is drained
	halt  chan struct{} // closed when the drain has to stop
	guard *os.File      // an end that keeps the pipe from looking ended before it began
	done  chan struct{}
	ended bool  // nothing more will come
	tip   int64 // behind its last byte, once it is given up or its sandbox is removed; else math.MaxInt64
	wake  chan struct{}
	// shown is the offset up to which a reader may look while bytes are being moved:
	// those behind it have no time yet.
	shown int64
}

func newStream(k key, s *Store) *stream {
	st := &stream{key: k, store: s, dir: k.below(s.Dir(k.uid)), fifo: s.fifo(k), wake: make(chan struct{}), tip: math.MaxInt64, shown: math.MaxInt64}
	_, err := os.Stat(filepath.Join(st.dir, closedMarker))
	st.ended = err == nil || s.isRemoved(k.uid)
	return st
}

// open makes the FIFO, and what belongs to it, and starts to drain it.
func (st *stream) open(d Delivery) error {
	if err := errors.Join(st.releaseGuard(), st.pause()); err != nil {
		return err
	}
	for _, dir := range []string{st.dir, filepath.Dir(st.fifo)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := st.removeOld(); err != nil {
		return err
	}
	if err := unix.Mkfifo(st.fifo, 0o600); err != nil {
		return fmt.Errorf("make fifo %s: %w", st.fifo, err)
	}
	if err := makeNote(st.fifo, d); err != nil {
		return err
	}
	return st.reopen(true, nil)
}

// removeOld removes what an earlier try left. Its FIFO is opened once more before
// it goes, so that a shim that waits there for a reader goes on, and fails.
func (st *stream) removeOld() error {
	old, err := os.OpenFile(st.fifo, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err == nil {
		err = old.Close()
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return removeFiles(append(st.pipeFiles(), filepath.Join(st.dir, closedMarker))...)
}

// pipeFiles are the FIFO and what may be beside it.
func (st *stream) pipeFiles() []string {
	return []string{bufferName(st.fifo, 0), bufferName(st.fifo, 1), st.fifo + noteSuffix, st.fifo}
}

// removeFiles removes those that are there.
func removeFiles(paths ...string) error {
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// reopen opens the FIFO that is there, with a guard if the shim may not have it
// open yet, and starts to drain it. kept is what the Keeper had.
func (st *stream) reopen(guarded bool, kept map[string]*os.File) error {
	var guard *os.File
	if guarded {
		var err error
		if guard, err = os.OpenFile(st.fifo, os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
	}
	pipe, err := os.OpenFile(st.fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		err = errors.Join(widen(pipe), st.keep(st.key.stored(), pipe))
		if err != nil {
			err = errors.Join(err, pipe.Close())
		}
	}
	if err != nil {
		if guard != nil {
			err = errors.Join(err, guard.Close())
		}
		return err
	}
	return st.start(pipe, guard, kept)
}

// keep hands a pipe to the Keeper. Without one, or with one that does not
// answer, output may be lost if we die: that is worth a line, and no reason to
// refuse a workload.
func (st *stream) keep(name string, pipe *os.File) error {
	err := st.store.fds.Push(name, pipe)
	if errors.Is(err, fault.Unavailable) {
		st.store.log.Debug("output unprotected", st.key.uid.Attr(), logging.Err(err))
		return nil
	}
	return err
}

// widen makes the pipe hold pipeSize. Where the user's share of pipe memory is
// used up it stays as it is.
func widen(pipe *os.File) error {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { _, inner = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
	if errors.Is(inner, unix.EPERM) || errors.Is(inner, unix.EBUSY) {
		inner = nil
	}
	return errors.Join(err, inner)
}

// start drains the pipe in goroutines that the store owns and Close waits for. It takes the
// files over, also when it fails.
func (st *stream) start(pipe, guard *os.File, kept map[string]*os.File) error {
	delivery, filling, err := noteOf(st.fifo)
	var via *buffers
	if err == nil && delivery == NonBlocking {
		via, err = openBuffers(st, filling, kept)
	}
	if err != nil {
		return errors.Join(err, closeAll(pipe, guard))
	}
	done, halt := make(chan struct{}), make(chan struct{})
	st.mu.Lock()
	st.pipe, st.guard, st.done, st.halt, st.ended = pipe, guard, done, halt, false
	st.mu.Unlock()
	st.store.wg.Go(func() {
		defer close(done)
		st.drain(pipe, via, newWriter(st, delivery, halt))
	})
	return nil
}

// closeAll closes those that are open.
func closeAll(files ...*os.File) error {
	var errs []error
	for _, f := range files {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

func (st *stream) draining() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.pipe != nil
}

// stopped says whether the drain of this pipe was told to stop.
func (st *stream) stopped(pipe *os.File) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.pipe != pipe
}

func (st *stream) releaseGuard() error {
	st.mu.Lock()
	guard := st.guard
	st.guard = nil
	st.mu.Unlock()
	if guard == nil {
		return nil
	}
	return guard.Close()
}

// wait returns true when the drain came to the end before ctx did.
func (st *stream) wait(ctx context.Context) bool {
	st.mu.Lock()
	done := st.done
	st.mu.Unlock()
	if done == nil {
		return true
	}
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	select { // both may have come
	case <-done:
		return true
	default:
		return false
	}
}

// pause stops the drain and leaves the stream open.
func (st *stream) pause() error {
	st.mu.Lock()
	pipe, done, halt := st.pipe, st.done, st.halt
	st.pipe = nil
	st.mu.Unlock()
	if pipe == nil {
		return nil
	}
	close(halt)
	err := pipe.Close() // wakes the drain
	<-done
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// end stops the drain and closes the stream for good. Safe to repeat.
func (st *stream) end() error {
	err := errors.Join(st.releaseGuard(), st.pause())
	st.mu.Lock()
	already := st.ended
	st.mu.Unlock()
	if already {
		return err
	}
	return errors.Join(err, st.markEnded())
}

// markEnded notes that nothing more will come, tells followers, and lets go of
// FIFO and read end. A disk that is too full for the note does not matter now:
// this process knows, and the next one finds no FIFO.
func (st *stream) markEnded() error {
	var errs []error
	if _, err := os.Stat(st.dir); err == nil {
		marker := filepath.Join(st.dir, closedMarker)
		if err := os.WriteFile(marker, nil, 0o600); err != nil && !errors.Is(err, unix.ENOSPC) {
			errs = append(errs, err)
		}
	}
	st.mu.Lock()
	st.ended = true
	st.notifyLocked()
	st.mu.Unlock()
	for _, name := range st.storedNames() {
		if err := st.store.fds.Remove(name); err != nil {
			st.store.warn("stored file not dropped", st.key, logging.Err(err))
		}
	}
	return errors.Join(append(errs, removeFiles(st.pipeFiles()...))...)
}

// storedNames are those of its pipes at the Keeper.
func (st *stream) storedNames() []string {
	names := []string{st.key.stored()}
	if _, err := os.Lstat(bufferName(st.fifo, 0)); err == nil {
		names = append(names, bufferName(st.key.stored(), 0), bufferName(st.key.stored(), 1))
	}
	return names
}

// remove tells followers that nothing is kept any more.
func (st *stream) remove() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ended = true
	st.notifyLocked()
}

// settle notes where a stream ends to which nobody writes any more, for those who read it
// still when it is given up. Nothing else rests on it.
func (st *stream) settle() {
	end, err := st.keptEnd()
	if err != nil {
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.tip = end
}

// last is the offset behind its last byte, math.MaxInt64 as long as that is not known.
func (st *stream) last() int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.tip
}

// notifyLocked wakes all who wait for more.
func (st *stream) notifyLocked() {
	close(st.wake)
	st.wake = make(chan struct{})
}

// show lets readers look up to an offset.
func (st *stream) show(end int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.shown = end
	st.notifyLocked()
}

// hide keeps what is moved from now on from readers, until it is shown.
func (st *stream) hide(end int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.shown = end
}

func (st *stream) visible() int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.shown
}

// more returns what closes when there is more, and whether there will be none.
func (st *stream) more() (<-chan struct{}, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.wake, st.ended
}

// drain moves bytes until the end of the stream, or until the pipe is closed
// under it.
func (st *stream) drain(pipe *os.File, via *buffers, w *writer) {
	ended := st.copy(pipe, via, w)
	if err := w.close(); err != nil {
		st.store.warn("segment not closed", st.key, logging.Err(err))
	}
	st.show(math.MaxInt64)
	if !ended {
		return
	}
	st.mu.Lock()
	mine := st.pipe == pipe
	if mine {
		st.pipe = nil
	}
	st.mu.Unlock()
	if !mine {
		return // stopped meanwhile
	}
	if err := errors.Join(pipe.Close(), st.markEnded()); err != nil {
		st.store.warn("stream not closed", st.key, logging.Err(err))
	}
}

// copy moves everything until the pipe ends (true) or the drain is stopped (false), by way of
// buffers if there are some, which it closes.
func (st *stream) copy(pipe *os.File, via *buffers, w *writer) bool {
	if via == nil {
		return w.copyAll(pipe)
	}
	var feeding sync.WaitGroup
	feeding.Go(func() { via.feed(pipe) })
	ended := w.copyBuffers(via)
	feeding.Wait()
	if err := via.close(); err != nil {
		st.store.warn("buffers not closed", st.key, logging.Err(err))
	}
	return ended
}
