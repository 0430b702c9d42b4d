package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
)

// pieceSize bounds a piece of output.
const pieceSize = 32 << 10

// lookPeriod is how often a file is looked at for more, while somebody follows it.
const lookPeriod = 100 * time.Millisecond

// Reading says which part of an output is read.
type Reading struct {
	// Tail begins with the last so many lines; negative with the oldest byte kept.
	Tail int
	// Follow goes on with what is written until the context ends.
	Follow bool
}

// ReadOutput calls emit with the output of a component, piece by piece of at most
// 32 KiB, and with how many bytes before each piece are not kept any more. The
// bytes are emit's only until it returns. It fails with NotFound if there is no
// such component, and with the error of emit.
func (r *Runner) ReadOutput(ctx context.Context, name string, how Reading, emit func(data []byte, missed int64) error) error {
	if !slices.ContainsFunc(r.cfg.Specs, func(s Spec) bool { return s.Name == name }) {
		return fault.New(fault.NotFound, "read output of component %s: there is none of that name", name)
	}
	if err := r.outputs.read(ctx, name, how, emit); err != nil {
		return fmt.Errorf("read output of component %s: %w", name, err)
	}
	return nil
}

func (o *outputs) read(ctx context.Context, name string, how Reading, emit func([]byte, int64) error) error {
	at, err := o.begin(name, how.Tail)
	if err != nil {
		return err
	}
	buf := make([]byte, pieceSize)
	for {
		n, from, err := o.readAt(name, at, buf)
		if err != nil {
			return err
		}
		if n > 0 {
			if err := emit(buf[:n], from-at); err != nil {
				return err
			}
			at = from + int64(n)
			continue
		}
		at = min(at, from) // the file was cut by somebody else: go on where it ends
		if !how.Follow {
			return nil
		}
		if err := backoff.Wait(ctx, lookPeriod); err != nil {
			return err
		}
	}
}

// readAt reads what lies at a place, or at the next place where something is kept,
// and returns how much and where; n is 0 at the end, and then from is the end.
func (o *outputs) readAt(name string, at int64, buf []byte) (n int, from int64, err error) {
	v, err := o.open(name)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, v.close()) }()
	from = min(max(at, v.oldest), v.end)
	if from >= v.gap && from < v.begin {
		from = v.begin
	}
	file, offset := v.file, from-v.begin
	if from < v.begin {
		file, offset = v.older, from-v.oldest
		buf = buf[:min(int64(len(buf)), v.gap-from)]
	}
	if file == nil || from == v.end {
		return 0, from, nil
	}
	n, err = file.ReadAt(buf, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, from, err
}

// begin is the place of the last lines, or of the oldest byte.
func (o *outputs) begin(name string, lines int) (int64, error) {
	oldest, end, err := o.span(name)
	if err != nil || lines < 0 {
		return oldest, err
	}
	if lines == 0 {
		return end, nil
	}
	return o.lastLines(name, oldest, end, lines)
}

// lastLines looks for the begin of the last lines from the end backwards.
func (o *outputs) lastLines(name string, oldest, end int64, lines int) (int64, error) {
	buf := make([]byte, pieceSize)
	for at := end; at > oldest; {
		piece := buf[:min(int64(len(buf)), at-oldest)]
		from := at - int64(len(piece))
		if whole, err := o.fill(name, from, piece); err != nil || !whole {
			return at, err // what is before was moved away meanwhile
		}
		if at == end { // the end of the last line begins no other
			piece = bytes.TrimSuffix(piece, []byte("\n"))
		}
		for i := bytes.LastIndexByte(piece, '\n'); i >= 0; i = bytes.LastIndexByte(piece[:i], '\n') {
			if lines--; lines == 0 {
				return from + int64(i) + 1, nil
			}
		}
		at = from
	}
	return oldest, nil
}

// fill reads a piece that may lie in both files, and reports whether all of it was
// still kept.
func (o *outputs) fill(name string, from int64, piece []byte) (whole bool, err error) {
	for filled := 0; filled < len(piece); {
		at := from + int64(filled)
		n, got, err := o.readAt(name, at, piece[filled:])
		if err != nil || n == 0 || got != at {
			return false, err
		}
		filled += n
	}
	return true, nil
}

func (o *outputs) span(name string) (oldest, end int64, err error) {
	v, err := o.open(name)
	if err != nil {
		return 0, 0, err
	}
	return v.oldest, v.end, v.close()
}

// view is both files of an output at one moment; until it is closed none is
// trimmed. The older one holds the places from oldest to gap, the other those
// from begin to end; what was between them is not kept.
type view struct {
	older, file             *os.File // nil if there is none
	oldest, gap, begin, end int64
	unlock                  func()
}

func (o *outputs) open(name string) (v view, err error) {
	o.mu.Lock()
	_, err = o.beginLocked(name) // known from here on
	o.mu.Unlock()
	if err != nil {
		return view{}, err
	}
	o.mu.RLock()
	begin := o.cut[name]
	gap := begin - o.gap[name]
	v = view{begin: begin, gap: gap, oldest: gap, end: begin, unlock: o.mu.RUnlock}
	var size int64
	if v.older, size, err = openIfThere(olderPath(o.dir, name)); err == nil {
		v.oldest -= size
		if v.file, size, err = openIfThere(outputPath(o.dir, name)); err == nil {
			v.end += size
			return v, nil
		}
	}
	return view{}, errors.Join(err, v.close())
}

func (v view) close() error {
	v.unlock()
	var errs []error
	for _, f := range []*os.File{v.older, v.file} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

func openIfThere(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}
