package logs

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
)

// fullDisk is a folder on a filesystem of its own, of that many KiB.
func fullDisk(t *testing.T, kib string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+kib+"k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// opened is a writer on a stream, and the ends of a pipe to it.
func opened(t *testing.T, log *slog.Logger, dir string, size int64) (w *writer, from, to *os.File) {
	t.Helper()
	s := New(Config{Dir: dir, Run: t.TempDir(), MaxSize: size, KeepAttempts: 5}, Deps{Log: log, FDs: forgetful{}})
	st := s.stream(key{uid: id.NewSandbox(), container: "web", attempt: 1})
	if err := os.MkdirAll(st.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	from, to = os.NewFile(uintptr(p[0]), "from"), os.NewFile(uintptr(p[1]), "to")
	t.Cleanup(func() {
		_ = errors.Join(from.Close(), to.Close()) // some are closed already
	})
	return newWriter(st, Default, nil), from, to
}

// pass writes to the pipe what the writer then moves, step by step.
func pass(t *testing.T, w *writer, from, to *os.File, data []byte) {
	t.Helper()
	for len(data) > 0 {
		n := min(len(data), 16<<10)
		if _, err := to.Write(data[:n]); err != nil {
			t.Fatal(err)
		}
		data = data[n:]
		for n > 0 {
			moved, err := w.step(from)
			if err != nil || moved == 0 {
				t.Fatalf("moved %d, %v, with %d left in the pipe", moved, err, n)
			}
			n -= int(moved)
		}
	}
}

// A full disk costs the oldest output first, then the newest, which is a gap in the
// offsets; the pipe is read all the time; and it goes on where there is room again.
func TestWriter_FullDisk(t *testing.T) {
	for name, plain := range map[string]bool{"splice": false, "copy": true} {
		t.Run(name, func(t *testing.T) {
			dir := fullDisk(t, "512")
			var log lines
			w, from, to := opened(t, slog.New(slog.NewTextHandler(&log, nil)), dir, 64<<20)
			w.st.store.segment = 64 << 10
			w.plainCopy = plain
			w.pause = time.Hour             // the test says when it is over
			written := numbered(0, 100_000) // more than a MiB
			pass(t, w, from, to, written)
			starts, err := segments(w.st.dir)
			if err != nil || len(starts) < 2 || starts[0] == 0 {
				t.Fatalf("kept are segments %v, %v, want the newest", starts, err)
			}
			if w.end != int64(len(written)) || w.thrown != 0 {
				t.Errorf("the end is at %d with %d thrown away, want %d with none", w.end, w.thrown, len(written))
			}
			requireKept(t, w, written)

			blocker := filepath.Join(dir, "blocker") // somebody else takes all that is given up
			fillDisk(t, blocker)
			for i := 0; w.thrown == 0; i++ {
				more := numbered(0, 5_000)
				written = append(written, more...)
				pass(t, w, from, to, more)
				fillDisk(t, blocker)
				if i > 100 {
					t.Fatal("nothing is thrown away on a disk without room")
				}
			}
			gap := numbered(0, 1_000)
			written = append(written, gap...)
			pass(t, w, from, to, gap)
			if got := log.count("output thrown away"); got != 1 {
				t.Errorf("it was told %d times that output is thrown away, want once", got)
			}

			if err := os.Remove(blocker); err != nil {
				t.Fatal(err)
			}
			w.pauseEnds = time.Time{}
			last := []byte("there is room again\n")
			written = append(written, last...)
			pass(t, w, from, to, last)
			if err := w.close(); err != nil {
				t.Error(err)
			}
			if w.end != int64(len(written)) || w.thrown != 0 || log.count("output lost") != 1 {
				t.Errorf("the end is at %d of %d, with %d thrown away and %d marks", w.end, len(written), w.thrown, log.count("output lost"))
			}
			if kept := requireKept(t, w, written); !strings.HasSuffix(kept, string(last)) {
				t.Error("what came when there was room again is not kept")
			}
		})
	}
}

// requireKept is requireParts of the output of a writer.
func requireKept(t *testing.T, w *writer, written []byte) string {
	t.Helper()
	return string(requireParts(t, w.st.store, w.st.key.uid, w.st.key.container, written))
}

// fillDisk writes to a file until the disk is full.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err != nil {
		return
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if closeErr := f.Close(); !errors.Is(err, unix.ENOSPC) || closeErr != nil {
		t.Fatal(err, closeErr)
	}
}

// What an earlier writer left is never taken for nothing because it cannot be
// looked at just now: its bytes would be written over.
func TestWriter_DoesNotTakeAFailedLookForNothing(t *testing.T) {
	w, from, to := opened(t, slog.New(slog.NewTextHandler(t.Output(), nil)), t.TempDir(), 64<<20)
	before := numbered(0, 100)
	pass(t, w, from, to, before)
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	aside := w.st.dir + ".aside"
	err := errors.Join(os.Rename(w.st.dir, aside), os.WriteFile(w.st.dir, nil, 0o600)) // no folder: it cannot be listed
	if err != nil {
		t.Fatal(err)
	}
	w = newWriter(w.st, Default, nil)
	w.pause = time.Hour
	gap := []byte("nobody can keep this\n")
	pass(t, w, from, to, gap)
	if err := errors.Join(os.Remove(w.st.dir), os.Rename(aside, w.st.dir)); err != nil {
		t.Fatal(err)
	}
	w.pauseEnds = time.Time{}
	after := []byte("this is kept again\n")
	pass(t, w, from, to, after)
	if err := w.close(); err != nil {
		t.Error(err)
	}
	written := string(before) + string(gap) + string(after)
	if got, want := requireKept(t, w, []byte(written)), string(before)+string(after); got != want {
		t.Errorf("kept are %d bytes, want %d", len(got), len(want))
	}
}

// A segment that was opened but not its index is the newest one, once.
func TestWriter_HasEachSegmentOnce(t *testing.T) {
	w, from, to := opened(t, slog.New(slog.NewTextHandler(t.Output(), nil)), t.TempDir(), 64<<20)
	for _, dir := range []string{segmentPath(w.st.dir, 0), indexPath(w.st.dir, 0)} {
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pass(t, w, from, to, []byte("x"))
	if len(w.starts) != 1 {
		t.Errorf("knows segments %v, want one", w.starts)
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(segmentPath(w.st.dir, 0)); errors.Is(err, fs.ErrNotExist) {
		t.Error("the segment is gone")
	}
}

// A segment that was dropped between the look at the folder and its opening is not
// the end of what is kept.
func TestRead_GoesOnPastDroppedSegments(t *testing.T) {
	w, from, to := opened(t, slog.New(slog.NewTextHandler(t.Output(), nil)), t.TempDir(), 64<<20)
	w.st.store.segment = 64
	pass(t, w, from, to, numbered(0, 100))
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	starts, err := segments(w.st.dir)
	if err != nil || len(starts) < 4 {
		t.Fatalf("got segments %v, %v", starts, err)
	}
	kept := numbered(0, 100)
	for _, i := range []int{0, 2} { // listed, but there is nothing to open
		path := segmentPath(w.st.dir, starts[i])
		if err := errors.Join(os.Remove(path), os.Symlink("gone", path)); err != nil {
			t.Fatal(err)
		}
		clear(kept[starts[i]:starts[i+1]])
	}
	want := strings.ReplaceAll(string(kept), "\x00", "")
	if got := requireKept(t, w, numbered(0, 100)); got != want {
		t.Errorf("read %d bytes, want %d", len(got), len(want))
	}
}

// lines counts what is logged.
type lines struct{ strings.Builder }

func (l *lines) count(message string) int { return strings.Count(l.String(), message) }
