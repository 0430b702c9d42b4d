package logs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

// MaxChunk is how much a Chunk carries at most: with what a message adds to it, not
// more than the 32 KiB that grpc has buffers for. A byte more, and each message
// that a slow reader has not taken holds one of 1 MiB.
const MaxChunk = 32<<10 - 512

// Attempts lists the attempts of a container of which output is kept, ascending.
// None is an answer, no error.
func (s *Store) Attempts(uid id.Sandbox, container string) ([]uint64, error) {
	var entries []os.DirEntry
	err := s.within(uid, func(dir string) (err error) {
		entries, err = os.ReadDir(filepath.Join(dir, container))
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list attempts of container %s of sandbox %s: %w", container, uid, err)
	}
	var attempts []uint64
	for _, e := range entries {
		if n, err := strconv.ParseUint(e.Name(), 10, 64); err == nil {
			attempts = append(attempts, n)
		}
	}
	slices.Sort(attempts)
	return attempts, nil
}

// Mode says how much is read.
type Mode struct {
	// Follow goes on until the streams are closed or removed.
	Follow bool
	// Since leaves out what came more than a second before. Zero leaves out nothing.
	Since time.Time
	// Tail leaves out all but that many lines. Negative leaves out nothing.
	Tail int
	// MaxTail bounds the bytes of that, together with Tail. 0 means no bound.
	MaxTail int64
	// Timed gives no chunk that spans two entries of the index.
	Timed bool
	// Idle, if not nil, is called when all that is there was sent and before more is
	// waited for. An error of it ends the reading and is returned.
	Idle func() error
}

// partial says whether a reading begins elsewhere than its Position says.
func (m Mode) partial() bool { return !m.Since.IsZero() || m.Tail >= 0 }

// Read sends what is kept of the chosen streams from the given offsets on, in
// about the order in which it was written. Without Follow it ends when what is
// there now is sent. With Since or Tail the first chunk of each stream is empty and
// says where it begins. An error of emit ends it and is returned. It returns
// fault.NotFound if nothing is kept of that attempt, and fault.Conflict if that was given
// up before all of it was sent.
func (s *Store) Read(ctx context.Context, at Position, mode Mode, emit func(Chunk) error) error {
	err := s.within(at.UID, func(dir string) error {
		_, err := os.Stat(filepath.Join(dir, at.Container, strconv.FormatUint(at.Attempt, 10)))
		return err
	})
	if err != nil {
		return fault.New(fault.NotFound, "read logs of sandbox %s: no output of container %s in attempt %d is kept", at.UID, at.Container, at.Attempt)
	}
	pair := s.pair(at.UID, at.Container, at.Attempt)
	var cursors []*cursor
	if at.Stdout {
		cursors = append(cursors, &cursor{st: pair[0], offset: at.StdoutOffset, limit: math.MaxInt64})
	}
	if at.Stderr {
		cursors = append(cursors, &cursor{st: pair[1], offset: at.StderrOffset, limit: math.MaxInt64})
	}
	err = readCursors(ctx, cursors, mode, emit)
	for _, c := range cursors {
		err = errors.Join(err, c.close())
	}
	return err
}

func readCursors(ctx context.Context, cursors []*cursor, mode Mode, emit func(Chunk) error) error {
	for _, c := range cursors {
		c.timed = mode.Timed || len(cursors) > 1
		if mode.Follow {
			continue
		}
		var err error // a workload that never rests would be followed for ever
		if c.limit, err = c.st.keptEnd(); err != nil {
			return err
		}
	}
	if mode.partial() {
		if err := begin(ctx, cursors, mode, emit); err != nil {
			return err
		}
	}
	return readAll(ctx, cursors, mode, emit)
}

func readAll(ctx context.Context, cursors []*cursor, mode Mode, emit func(Chunk) error) error {
	for {
		waits := make([]<-chan struct{}, 0, len(cursors))
		for _, c := range cursors {
			if more, ended := c.st.more(); !ended {
				waits = append(waits, more)
			}
		}
		if err := readKept(ctx, cursors, emit); err != nil {
			return err
		}
		if !mode.Follow || len(waits) == 0 {
			return cutOff(cursors)
		}
		for _, c := range cursors {
			c.buffer = nil // most have nothing to say for a long time
		}
		if mode.Idle != nil {
			if err := mode.Idle(); err != nil {
				return err
			}
		}
		if err := waitAny(ctx, waits); err != nil {
			return err
		}
	}
}

// cutOff says whether what some cursors had still to read was given up under them: the end
// of what is kept then is not that of the output.
func cutOff(cursors []*cursor) error {
	for _, c := range cursors {
		end := min(c.limit, c.st.last())
		if end == math.MaxInt64 || c.offset >= end {
			continue
		}
		kept, err := c.st.keptEnd()
		if err != nil {
			return err
		}
		if kept < end {
			return fault.New(fault.Conflict, "read logs of sandbox %s: what container %s wrote to %s in attempt %d was given up while it was read, from offset %d on",
				c.st.key.uid, c.st.key.container, c.st.key.name(), c.st.key.attempt, c.offset)
		}
	}
	return nil
}

// waitAny waits for one of at most two.
func waitAny(ctx context.Context, waits []<-chan struct{}) error {
	var second <-chan struct{}
	if len(waits) > 1 {
		second = waits[1]
	}
	select {
	case <-waits[0]:
	case <-second:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// readKept sends all that is there now, the older chunk of the streams first.
func readKept(ctx context.Context, cursors []*cursor, emit func(Chunk) error) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		var oldest *cursor
		for _, c := range cursors {
			ok, err := c.fill()
			if err != nil {
				return err
			}
			if ok && (oldest == nil || c.chunk.At.Before(oldest.chunk.At)) {
				oldest = c
			}
		}
		if oldest == nil {
			return nil
		}
		if err := emit(oldest.chunk); err != nil {
			return err
		}
		oldest.offset = oldest.chunk.Offset + int64(len(oldest.chunk.Data))
		oldest.chunk = Chunk{}
	}
}

// cursor reads one stream.
type cursor struct {
	st     *stream
	offset int64
	limit  int64 // it reads nothing from here on
	timed  bool  // it does not reach beyond one entry of the index

	file   *os.File
	index  *os.File
	start  int64 // of the open segment
	buffer []byte
	chunk  Chunk // read and not yet sent
}

// fill reads the next chunk unless one waits, and says whether there is one.
func (c *cursor) fill() (bool, error) {
	if len(c.chunk.Data) > 0 {
		return true, nil
	}
	for {
		if c.file == nil {
			if found, err := c.openAt(); err != nil || !found {
				return false, err
			}
		}
		end := min(c.limit, c.st.visible())
		if c.offset >= end {
			return false, nil
		}
		at, until := c.timeOf(c.offset)
		most := min(MaxChunk, end-c.offset)
		if c.timed && until > c.offset {
			most = min(most, until-c.offset)
		}
		if c.buffer == nil {
			c.buffer = make([]byte, MaxChunk)
		}
		n, err := c.file.ReadAt(c.buffer[:most], c.offset-c.start)
		if n > 0 {
			c.chunk = Chunk{Stderr: c.st.key.stderr, Offset: c.offset, Data: c.buffer[:n], At: at}
			return true, nil
		}
		if !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("read log of sandbox %s: %w", c.st.key.uid, err)
		}
		if moved, err := c.toNext(); err != nil || !moved {
			return false, err
		}
	}
}

// openAt opens the segment with the wanted offset, or the next one behind it.
func (c *cursor) openAt() (bool, error) {
	starts, err := c.st.segments()
	if err != nil || len(starts) == 0 {
		return false, err
	}
	i, exact := slices.BinarySearch(starts, c.offset)
	if !exact && i > 0 {
		i--
	}
	return c.openFirst(starts[i:])
}

// openFirst opens the first of some segments that is still there: the oldest go
// while they are read, which must not look like the end of the stream.
func (c *cursor) openFirst(starts []int64) (bool, error) {
	for _, start := range starts {
		if opened, err := c.open(start); opened || err != nil {
			return opened, err
		}
	}
	return false, nil
}

// toNext goes to the segment behind the open one, if there is one.
func (c *cursor) toNext() (bool, error) {
	starts, err := c.st.segments()
	if err != nil {
		return false, err
	}
	i := sort.Search(len(starts), func(i int) bool { return starts[i] > c.start })
	if i == len(starts) {
		return false, nil
	}
	// The next one is there, so the open one is complete: look once more whether
	// it grew since we met its end.
	if info, err := c.file.Stat(); err == nil && c.offset-c.start < info.Size() {
		return true, nil
	}
	if err := c.close(); err != nil {
		return false, err
	}
	return c.openFirst(starts[i:])
}

func (c *cursor) open(start int64) (bool, error) {
	var file, index *os.File
	err := c.st.look(func(dir string) (err error) {
		if file, err = os.Open(segmentPath(dir, start)); err != nil {
			return err
		}
		index, err = os.Open(indexPath(dir, start))
		return err
	})
	if errors.Is(err, os.ErrNotExist) && file == nil {
		return false, nil // dropped meanwhile
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("read log of sandbox %s: %w", c.st.key.uid, err)
		if file != nil {
			err = errors.Join(err, file.Close())
		}
		return false, err
	}
	c.file, c.index, c.start = file, index, start
	c.offset = max(c.offset, start)
	return true, nil
}

func (c *cursor) close() error {
	var errs []error
	if c.file != nil {
		errs = append(errs, c.file.Close())
	}
	if c.index != nil {
		errs = append(errs, c.index.Close())
	}
	c.file, c.index = nil, nil
	return errors.Join(errs...)
}

// timeOf finds when the byte at offset came, and up to which offset that holds.
// Without an entry both are zero.
func (c *cursor) timeOf(offset int64) (time.Time, int64) {
	count := c.entries()
	i := sort.Search(count, func(i int) bool {
		o, _ := c.entry(i)
		return o > offset
	})
	if i == 0 {
		return time.Time{}, 0
	}
	_, at := c.entry(i - 1)
	var until int64
	if i < count {
		until, _ = c.entry(i)
	}
	return at, until
}

// entry reads one entry of the index. One that cannot be read lies beyond
// everything, which costs a time and no byte.
func (c *cursor) entry(i int) (int64, time.Time) {
	var raw [entrySize]byte
	if _, err := c.index.ReadAt(raw[:], int64(i)*entrySize); err != nil {
		return 1<<63 - 1, time.Time{}
	}
	return int64(binary.BigEndian.Uint64(raw[:8])), time.Unix(0, int64(binary.BigEndian.Uint64(raw[8:])))
}
