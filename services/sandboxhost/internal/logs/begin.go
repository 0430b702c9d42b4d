package logs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"time"
)

// tailBlock is how much is looked at at once in search of ends of lines.
const tailBlock = 64 << 10

// begin moves the cursors to where mode says, and tells where that is.
func begin(ctx context.Context, cursors []*cursor, mode Mode, emit func(Chunk) error) error {
	for _, c := range cursors {
		end, err := c.knownEnd()
		if err != nil {
			return err
		}
		if !mode.Since.IsZero() {
			if err := c.skipTo(mode.Since, end); err != nil {
				return err
			}
		}
	}
	if mode.Tail >= 0 {
		if err := skipToTail(ctx, cursors, mode.Tail); err != nil {
			return err
		}
	}
	if mode.MaxTail > 0 {
		if err := shorten(cursors, mode.MaxTail); err != nil {
			return err
		}
	}
	for _, c := range cursors {
		if err := c.close(); err != nil { // it is not the segment that the offset is in
			return err
		}
		if err := emit(Chunk{Stderr: c.st.key.stderr, Offset: c.offset}); err != nil {
			return err
		}
	}
	return nil
}

// shorten moves the cursors on where they are further from the ends than most bytes together. Each
// has the same share of that, and what another leaves of its own.
func shorten(cursors []*cursor, most int64) error {
	lengths := make([]int64, len(cursors))
	for i, c := range cursors {
		end, err := c.knownEnd()
		if err != nil {
			return err
		}
		lengths[i] = max(0, end-c.offset)
	}
	for i, share := range shares(lengths, most) {
		cursors[i].offset += lengths[i] - share
	}
	return nil
}

// shares divides most among some lengths: what one does not need is the others'.
func shares(lengths []int64, most int64) []int64 {
	order := make([]int, len(lengths))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(lengths[a], lengths[b]) })
	given := make([]int64, len(lengths))
	for n, i := range order {
		given[i] = min(lengths[i], most/int64(len(order)-n))
		most -= given[i]
	}
	return given
}

// knownEnd is the end of what the cursor may read now.
func (c *cursor) knownEnd() (int64, error) {
	end, err := c.st.keptEnd()
	return min(end, c.limit, c.st.visible()), err
}

// skipTo moves to the first byte that may have come at since or later. The bytes
// of an entry of the index have come within indexLate after it. What has no entry
// is not left out.
func (c *cursor) skipTo(since time.Time, end int64) error {
	starts, err := c.st.segments()
	if err != nil {
		return err
	}
	since = since.Add(-indexLate)
	for _, start := range starts {
		opened, err := c.reopen(start)
		if err != nil {
			return err
		}
		if !opened {
			continue
		}
		count := c.entries()
		i := sort.Search(count, func(i int) bool {
			_, at := c.entry(i)
			return at.After(since)
		})
		if i < count || count == 0 {
			found := start
			if i > 0 {
				found, _ = c.entry(i)
			}
			line, err := c.lineStart(start, found)
			c.offset = max(c.offset, line)
			return err
		}
	}
	c.offset = max(c.offset, end)
	return nil
}

// lineStart is where the line began that goes on at offset, as far as the open segment,
// which begins at start, has it.
func (c *cursor) lineStart(start, offset int64) (int64, error) {
	found := start
	err := c.backward(start, offset, func(at int64) bool {
		found = at
		return false
	})
	return found, err
}

// backward calls each with the offsets behind the ends of lines between start and end in
// the open segment, the last one first, until it returns false.
func (c *cursor) backward(start, end int64, each func(int64) bool) error {
	block := make([]byte, tailBlock)
	for end > start {
		from := max(start, end-tailBlock)
		n, err := c.file.ReadAt(block[:end-from], from-start)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read log of sandbox %s: %w", c.st.key.uid, err)
		}
		for piece := block[:n]; ; {
			i := bytes.LastIndexByte(piece, '\n')
			if i < 0 {
				break
			}
			if !each(from + int64(i) + 1) {
				return nil
			}
			piece = piece[:i]
		}
		end = from
	}
	return nil
}

// lineStarts lists where the last lines of a stream begin, the last one first; at
// most most, none before the cursor's offset. What is left of a line whose beginning
// is not kept is a line.
func (c *cursor) lineStarts(ctx context.Context, starts []int64, end int64, most int) ([]int64, error) {
	var lines []int64
	oldest := end
	for i := len(starts) - 1; i >= 0 && len(lines) < most && oldest > c.offset; i-- {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		opened, err := c.reopen(starts[i])
		if err != nil {
			return nil, err
		}
		if !opened {
			break // dropped meanwhile, as are those before it
		}
		err = c.backward(starts[i], oldest, func(at int64) bool {
			if at > c.offset && at < end {
				lines = append(lines, at)
			}
			return len(lines) < most && at > c.offset
		})
		if err != nil {
			return nil, err
		}
		oldest = starts[i]
	}
	if first := max(oldest, c.offset); len(lines) < most && first < end {
		if n := len(lines); n == 0 || lines[n-1] != first {
			lines = append(lines, first)
		}
	}
	return lines, nil
}

// tailOf is the last lines of one stream: those before taken are left out.
type tailOf struct {
	c      *cursor
	starts []int64 // of the segments
	lines  []int64 // the last one first, without those that were taken
	begin  int64   // of the oldest that was taken
}

// newest is when the newest line that was not taken began. Zero if that was lost.
func (t *tailOf) newest() (time.Time, error) {
	offset := t.lines[0]
	i := sort.Search(len(t.starts), func(i int) bool { return t.starts[i] > offset })
	if i == 0 {
		return time.Time{}, nil
	}
	if start := t.starts[i-1]; t.c.file == nil || t.c.start != start {
		if opened, err := t.c.reopen(start); err != nil || !opened {
			return time.Time{}, err
		}
	}
	at, _ := t.c.timeOf(offset)
	return at, nil
}

// skipToTail moves the cursors to the last lines of all of them together.
func skipToTail(ctx context.Context, cursors []*cursor, most int) error {
	tails := make([]*tailOf, len(cursors))
	for i, c := range cursors {
		end, err := c.knownEnd()
		if err != nil {
			return err
		}
		starts, err := c.st.segments()
		if err != nil {
			return err
		}
		lines, err := c.lineStarts(ctx, starts, end, most)
		if err != nil {
			return err
		}
		tails[i] = &tailOf{c: c, starts: starts, lines: lines, begin: max(end, c.offset)}
	}
	for range most {
		t, err := newestOf(tails)
		if err != nil {
			return err
		}
		if t == nil {
			break
		}
		t.begin, t.lines = t.lines[0], t.lines[1:]
	}
	for _, t := range tails {
		t.c.offset = t.begin
	}
	return nil
}

// newestOf is the one whose line is the newest; nil if no line is left.
func newestOf(tails []*tailOf) (*tailOf, error) {
	var left []*tailOf
	for _, t := range tails {
		if len(t.lines) > 0 {
			left = append(left, t)
		}
	}
	switch len(left) {
	case 0:
		return nil, nil //nolint:nilnil // no line is left
	case 1:
		return left[0], nil
	}
	first, err := left[0].newest()
	if err != nil {
		return nil, err
	}
	second, err := left[1].newest()
	if err != nil || second.After(first) {
		return left[1], err
	}
	return left[0], nil
}

// reopen opens the segment that begins at start and leaves the offset alone.
func (c *cursor) reopen(start int64) (bool, error) {
	if err := c.close(); err != nil {
		return false, err
	}
	offset := c.offset
	opened, err := c.open(start)
	c.offset = offset
	return opened, err
}

// entries is how many entries the index of the open segment has.
func (c *cursor) entries() int {
	if c.index == nil {
		return 0
	}
	info, err := c.index.Stat()
	if err != nil {
		return 0
	}
	return int(info.Size() / entrySize)
}
