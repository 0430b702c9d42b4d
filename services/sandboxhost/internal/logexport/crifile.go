package logexport

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/logs"
)

// criRecord is a record as a line of a file. Its time is not before last, so that the
// times of a file never go back: that of a line is when it began, and another may have
// begun later and ended before.
func criRecord(r record, last time.Time) ([]byte, time.Time) {
	at := r.at
	if at.Before(last) {
		at = last
	}
	stream, tag := " stdout ", "P "
	if r.stderr {
		stream = " stderr "
	}
	if r.whole {
		tag = "F "
	}
	line := at.UTC().AppendFormat(make([]byte, 0, len(r.text)+64), time.RFC3339Nano)
	line = append(append(line, stream...), tag...)
	return append(append(line, r.text...), '\n'), at
}

// parseCRI undoes criRecord, of a line without its end: which stream, how many bytes of it, and when.
func parseCRI(line []byte) (stderr bool, n int64, at time.Time, ok bool) {
	parts := bytes.SplitN(line, []byte(" "), 4)
	if len(parts) != 4 {
		return false, 0, time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(parts[0]))
	stream, tag := string(parts[1]), string(parts[2])
	ok = err == nil && (stream == "stdout" || stream == "stderr") && (tag == "P" || tag == "F")
	n = int64(len(parts[3]))
	if tag == "F" {
		n++
	}
	return stream == "stderr", n, at, ok
}

// begin finds the files as whoever wrote them left them, and goes on behind.
func (s *criSink) begin(ctx context.Context) (offsets, bool, error) {
	noted, found, err := s.note.load()
	if err != nil || noted.Done && s.kind.deps.Source.Ended(s.of) {
		return noted.at(), noted.Done, err
	}
	folder, err := s.kind.folder(s.of.UID)
	if err != nil {
		return offsets{}, false, err
	}
	dir := filepath.Join(folder, s.of.Container)
	s.path = filepath.Join(dir, strconv.FormatUint(s.of.Attempt, 10)+".log")
	if err := s.kind.ourDir(dir); err != nil {
		return offsets{}, false, fmt.Errorf("make a folder for exports: %w", err)
	}
	s.at, s.last = noted.at(), noted.Last
	var torn []byte
	if found {
		if torn, err = s.readOn(noted); err != nil {
			return offsets{}, false, err
		}
	}
	if err := s.openFile(); err != nil {
		return offsets{}, false, err
	}
	if len(torn) > 0 {
		if err := s.mend(ctx, torn); err != nil {
			return offsets{}, false, err
		}
	}
	s.inFile = s.at
	return s.at, false, s.keep(false)
}

// readOn reads what the files hold beyond a note: that moves the offsets. It returns what the
// newest has of a record that was not written whole.
func (s *criSink) readOn(noted state) (torn []byte, err error) {
	files, err := criFiles(filepath.Dir(s.path), s.of.Attempt)
	if err != nil {
		return nil, err
	}
	begin := slices.IndexFunc(files, func(f string) bool {
		info, err := os.Stat(f)
		return err == nil && inodeOf(info) == noted.Inode && info.Size() >= noted.Length
	})
	if begin < 0 {
		return nil, nil // taken away, with what was in it
	}
	from := noted.Length
	for _, f := range files[begin:] {
		if torn, err = s.readFile(f, from); err != nil {
			return nil, err
		}
		from = 0
	}
	if files[len(files)-1] != s.path {
		return nil, nil
	}
	return torn, nil
}

// readFile reads the records of one file from a place on. It cuts off what is no record: after
// a loss of power a file may have such an end.
func (s *criSink) readFile(path string, from int64) (torn []byte, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("read export: %w", err)
	}
	defer f.Close()
	r := bufio.NewReaderSize(io.NewSectionReader(f, from, 1<<62), criLine+128)
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) && !bytes.ContainsRune(line, 0) {
			return slices.Clone(line), nil
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, fmt.Errorf("read export %s: %w", path, err)
		}
		stderr, n, at, ok := parseCRI(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil || !ok {
			s.kind.deps.Log.Warn("damaged end of an export cut off", append(attrs(s.of, "cri"), logging.Path(path))...)
			return nil, f.Truncate(from)
		}
		from += int64(len(line))
		s.at[of(stderr)] += n
		s.last = at
	}
}

// mend finishes a record of which the file has the beginning: a reader may have it
// already. If it is not known any more how that went on, the beginning is cut off.
func (s *criSink) mend(ctx context.Context, torn []byte) error {
	for _, stderr := range []bool{false, true} {
		r, found, err := s.following(ctx, stderr)
		if err != nil {
			return err
		}
		line, at := criRecord(r, s.last)
		if !found || !bytes.HasPrefix(line, torn) {
			continue
		}
		n, err := s.file.Write(line[len(torn):])
		s.size += int64(n)
		if err != nil {
			return errors.Join(fmt.Errorf("write %s: %w", s.path, err), s.forget())
		}
		s.at[of(stderr)], s.last, s.synced = r.next(), at, false
		return nil
	}
	s.size -= int64(len(torn))
	if err := s.file.Truncate(s.size); err != nil {
		return fmt.Errorf("mend %s: %w", s.path, err)
	}
	return nil
}

var errEnough = errors.New("enough")

// following is the record of a stream that comes next.
func (s *criSink) following(ctx context.Context, stderr bool) (first record, found bool, err error) {
	take := func(r record) error {
		first, found = r, true
		first.text = bytes.Clone(r.text)
		return errEnough
	}
	l := lines{most: criLine, stderr: stderr, offset: s.at[of(stderr)], take: take}
	at := position(s.of, s.at)
	at.Stdout, at.Stderr = !stderr, stderr
	err = s.kind.deps.Source.Read(ctx, at, logs.Mode{Timed: true, Tail: -1}, l.add)
	if err == nil && s.kind.deps.Source.Ended(s.of) {
		err = l.flush()
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	if err != nil || !found || first.offset != s.at[of(stderr)] {
		return record{}, false, err
	}
	return first, true, nil
}

// openFile opens the file that is written to.
func (s *criSink) openFile() error {
	f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, fileMode)
	if err != nil {
		return fmt.Errorf("open export: %w", err)
	}
	info, err := f.Stat()
	if err == nil {
		err = s.kind.share(s.path, fileMode)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open export: %w", err), f.Close())
	}
	s.file, s.inode, s.size = f, inodeOf(info), info.Size()
	return nil
}

// another opens a file in the place of one that was closed, and notes it.
func (s *criSink) another() error {
	if err := s.openFile(); err != nil {
		return err
	}
	return s.keep(false)
}

// asideTime is how the names of full files end; as at the kubelet, and finer.
const asideTime = "20060102-150405.000000000"

// aside is how the name of a file ends that is put aside now: with the time of its newest
// record, and behind those that were put aside before.
func aside(files []string, newest time.Time) string {
	for _, f := range files {
		_, end, _ := strings.Cut(filepath.Base(f), ".log.")
		if before, err := time.Parse(asideTime, end); err == nil && !newest.After(before) {
			newest = before.Add(1)
		}
	}
	return newest.UTC().Format(asideTime)
}

func inodeOf(info os.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}

func groupOf(path string) (int, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("look at %s: no owner is told", path)
	}
	return int(s.Gid), nil
}
