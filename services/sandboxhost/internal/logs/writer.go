package logs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/logging"
)

const (
	// batch is the most that is moved at once.
	batch = 1 << 20
	// An entry of the index is written when indexEvery has passed and at least
	// indexBytes came, or indexLate has passed: so the index never outgrows what it
	// is about.
	indexEvery = 10 * time.Millisecond
	indexLate  = time.Second
	indexBytes = entrySize
	// entrySize of the index: offset and time, eight bytes each.
	entrySize = 16
	// fullPause is how long bytes are thrown away before the disk is tried again.
	fullPause = time.Second
	// tellEvery is how often at most it is told how much was lost.
	tellEvery = 10 * time.Second
)

// writer appends to the segments of one stream. One goroutine has it.
type writer struct {
	st     *stream
	starts []int64 // of all segments, ascending
	file   *os.File
	index  *os.File
	opened fs.FileInfo // of the open segment
	start  int64       // of the open segment
	end    int64       // of the stream: the offset of the next byte; before resume, how many were thrown away

	resumed bool // it is known what an earlier writer left

	indexedAt  time.Time
	indexedEnd int64
	plainCopy  bool // this filesystem does not take splice
	buffer     []byte
	unwritten  []byte // the part of buffer that was read and is not in a segment yet

	delivery  Delivery
	halt      <-chan struct{} // closed when the drain has to stop
	thrown    int64           // bytes thrown away that were not told of yet
	toldAt    time.Time       // of some
	full      bool            // the disk is, and this was told
	pause     time.Duration   // fullPause
	pauseEnds time.Time       // while bytes are thrown away
}

func newWriter(st *stream, d Delivery, halt <-chan struct{}) *writer {
	return &writer{st: st, pause: fullPause, delivery: d, halt: halt}
}

// copyAll moves everything until the pipe ends (true) or the drain is stopped (false).
func (w *writer) copyAll(pipe *os.File) bool {
	for {
		n, err := w.step(pipe)
		if err != nil && w.st.stopped(pipe) {
			return false
		}
		if err != nil {
			w.st.store.warn("output unreadable", w.st.key, logging.Err(err))
			return true
		}
		if n == 0 {
			w.tellThrown(true)
			return true
		}
	}
}

// copyBuffers is copyAll out of buffers.
func (w *writer) copyBuffers(b *buffers) bool {
	for {
		from, ok := b.next(w.halt)
		if !ok {
			break
		}
		for left := from.bytes; left > 0; {
			n, err := w.step(from.pipe)
			if err != nil {
				w.st.store.warn("output unreadable", w.st.key, logging.Err(err))
				return true
			}
			if n == 0 {
				break // told to stop
			}
			left -= n
		}
		w.skip(from.gap)
	}
	w.tellThrown(true)
	select {
	case <-w.halt:
		return false
	default:
		return true
	}
}

// skip makes a gap of what was thrown away since the disk took too little. The segment behind it is opened
// at once, so that its offset outlives us.
func (w *writer) skip(gap int64) {
	if gap == 0 {
		return
	}
	if err := w.closeSegment(); err != nil {
		w.st.store.warn("segment not closed", w.st.key, logging.Err(err))
	}
	w.lose(gap)
	if err := w.ensureSegment(); err != nil {
		w.st.store.warn("segment not opened", w.st.key, logging.Err(err))
	}
	w.st.show(w.end)
	if time.Since(w.toldAt) >= tellEvery {
		w.st.tell(Dropped, w.st.key.name()+" is thrown away in part: its disk takes less than is written")
	}
	w.tellThrown(false)
}

// step moves one batch into a segment, or throws it away when there is no room.
// Zero is the end of the pipe. Only what is wrong with the pipe is an error.
func (w *writer) step(pipe *os.File) (int64, error) {
	if time.Now().Before(w.pauseEnds) {
		return w.throwAway(pipe)
	}
	for {
		err := w.ensureSegment()
		var n int64
		if err == nil {
			w.st.hide(w.end)
			n, err = w.move(pipe)
			if n > 0 {
				w.note(n)
				w.st.show(w.end)
				return n, nil
			}
		}
		if err == nil || isPipeError(err) {
			return 0, err
		}
		if w.makeRoom(err) {
			continue
		}
		w.tellFull(err)
		if w.delivery == Blocking {
			if !w.wait() {
				return 0, nil
			}
			continue
		}
		w.pauseEnds = time.Now().Add(w.pause)
		return w.throwAway(pipe)
	}
}

// wait lets the workload wait for a while. False says that the drain has to stop.
func (w *writer) wait() bool {
	limit := time.NewTimer(w.pause)
	defer limit.Stop()
	select {
	case <-limit.C:
		return true
	case <-w.halt:
		return false
	}
}

// throwAway reads on without a place to put it. The offsets go on, so that a
// reader sees the gap.
func (w *writer) throwAway(pipe *os.File) (int64, error) {
	if err := w.closeSegment(); err != nil {
		w.st.store.warn("segment not closed", w.st.key, logging.Err(err))
	}
	n, err := len(w.unwritten), error(nil)
	if n == 0 {
		n, err = w.read(pipe, batch)
	}
	w.unwritten = nil
	w.lose(int64(n))
	w.st.show(w.end)
	return int64(n), err
}

// note writes an entry of the index if one is due, and counts the bytes.
func (w *writer) note(n int64) {
	w.full = false
	w.tellThrown(false)
	before := w.end
	w.end += n
	now := time.Now()
	since := now.Sub(w.indexedAt)
	due := since >= indexLate || since >= indexEvery && before-w.indexedEnd >= indexBytes
	if !due {
		return
	}
	entry := binary.BigEndian.AppendUint64(nil, uint64(before))
	entry = binary.BigEndian.AppendUint64(entry, uint64(now.UnixNano()))
	if _, err := w.index.Write(entry); err != nil {
		return // costs a time, no byte; a torn entry is cut off at the next opening
	}
	w.indexedAt, w.indexedEnd = now, before
	w.checkPlace()
}

// checkPlace closes a segment that somebody has taken from its place: nobody would
// read what is written to it. The next byte makes folder and segment anew.
func (w *writer) checkPlace() {
	info, err := os.Stat(segmentPath(w.st.dir, w.start))
	if err == nil && os.SameFile(info, w.opened) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	w.st.store.warn("segment taken away", w.st.key, logging.Path(w.st.dir))
	if err := w.closeSegment(); err != nil {
		w.st.store.warn("segment not closed", w.st.key, logging.Err(err))
	}
	w.starts = nil
}

// lose counts bytes that are not kept.
func (w *writer) lose(n int64) {
	w.end += n
	w.thrown += n
	w.st.store.lost.Add(n)
}

// tellFull reports, once until there is room again, that nothing can be written.
func (w *writer) tellFull(err error) {
	if w.full {
		return
	}
	w.full = true
	if w.delivery == Blocking {
		w.st.store.warn("output waits for room", w.st.key, logging.Err(err))
		w.st.tell(Waits, fmt.Sprintf("%s waits until its disk takes more: %s", w.st.key.name(), err))
		return
	}
	w.st.store.warn("output thrown away", w.st.key, logging.Err(err))
	w.st.tell(Dropped, fmt.Sprintf("%s is thrown away: %s", w.st.key.name(), err))
}

// tellThrown reports what a disk that is full or slow has cost, now and then or at last.
func (w *writer) tellThrown(last bool) {
	if w.thrown == 0 || !last && time.Since(w.toldAt) < tellEvery {
		return
	}
	w.st.store.warn("output lost", w.st.key, slog.Int64("bytes", w.thrown))
	w.toldAt, w.thrown = time.Now(), 0
}

// ensureSegment opens the segment that the next byte belongs to.
func (w *writer) ensureSegment() error {
	if w.file != nil && w.end-w.start < w.st.store.segment {
		return nil
	}
	if !w.resumed {
		if err := w.resume(); err != nil {
			return err
		}
		if w.file != nil {
			return nil
		}
	}
	if err := w.closeSegment(); err != nil {
		return err
	}
	for len(w.starts) > 0 && w.end-w.starts[0] > w.st.store.cfg.MaxSize-w.st.store.segment {
		if err := w.dropOldest(); err != nil {
			return err
		}
	}
	return w.openSegment(w.end)
}

// resume goes on behind what an earlier writer left. What was thrown away while
// that could not be asked lies between.
func (w *writer) resume() error {
	starts, err := segments(w.st.dir)
	if err != nil {
		return err
	}
	if len(starts) == 0 {
		w.resumed = true
		return nil
	}
	last := starts[len(starts)-1]
	info, err := os.Stat(segmentPath(w.st.dir, last))
	if err != nil {
		return err
	}
	gap := w.end > 0
	w.starts, w.resumed = starts, true
	w.end += last + info.Size()
	if gap || info.Size() >= w.st.store.segment {
		return nil
	}
	return w.openSegment(last)
}

// openSegment opens segment and index that begin at start. The segment is not
// opened for appending: the kernel refuses to splice into such a file.
func (w *writer) openSegment(start int64) error {
	if err := os.MkdirAll(w.st.dir, 0o700); err != nil {
		return err
	}
	// The index comes first: who finds the segment finds its index, too.
	index, err := os.OpenFile(indexPath(w.st.dir, start), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(segmentPath(w.st.dir, start), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return errors.Join(err, index.Close())
	}
	if info, statErr := index.Stat(); statErr == nil && info.Size()%entrySize != 0 {
		err = index.Truncate(info.Size() - info.Size()%entrySize)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("mend index: %w", err), file.Close(), index.Close())
	}
	opened, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close(), index.Close())
	}
	w.file, w.index, w.opened, w.start = file, index, opened, start
	if n := len(w.starts); n == 0 || w.starts[n-1] != start {
		w.starts = append(w.starts, start)
	}
	w.indexedAt = time.Time{}
	return nil
}

// closeSegment closes the open one; an empty one is removed.
func (w *writer) closeSegment() error {
	if w.file == nil {
		return nil
	}
	info, statErr := w.file.Stat()
	err := errors.Join(statErr, w.file.Close(), w.index.Close())
	w.file, w.index = nil, nil
	if statErr == nil && info.Size() == 0 {
		w.starts = w.starts[:len(w.starts)-1]
		err = errors.Join(err, removeSegment(w.st.dir, w.start))
	}
	return err
}

func (w *writer) close() error { return w.closeSegment() }

// makeRoom gives up what is kept of a removed sandbox if the disk is full, or else drops
// the oldest segment if there is another one than the open one.
func (w *writer) makeRoom(err error) bool {
	if !isFull(err) {
		return false
	}
	if w.st.store.GiveUp() {
		return true
	}
	if w.delivery == Blocking {
		return false
	}
	closed := len(w.starts)
	if w.file != nil {
		closed--
	}
	if closed < 1 {
		return false
	}
	if err := w.dropOldest(); err != nil {
		w.st.store.warn("segment not dropped", w.st.key, logging.Err(err))
		return false
	}
	return true
}

func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func (w *writer) dropOldest() error {
	oldest := w.starts[0]
	w.starts = w.starts[1:]
	return removeSegment(w.st.dir, oldest)
}
