package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

const waitLimit = 20 * time.Second

// shelf keeps files as a supervisor does.
type shelf struct {
	mu    sync.Mutex
	files map[string]*os.File
}

func newShelf() *shelf { return &shelf{files: map[string]*os.File{}} }

func (s *shelf) Push(name string, f *os.File) error {
	copied, err := dup(f)
	if err != nil {
		return err
	}
	s.mu.Lock()
	old := s.files[name]
	s.files[name] = copied
	s.mu.Unlock()
	if old != nil {
		return old.Close()
	}
	return nil
}

func (s *shelf) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.files[name]; ok {
		delete(s.files, name)
		return f.Close()
	}
	return nil
}

// Take gives copies, as the next process gets.
func (s *shelf) Take(prefix string) map[string]*os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := map[string]*os.File{}
	for name, f := range s.files {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if copied, err := dup(f); err == nil {
			taken[name] = copied
		}
	}
	return taken
}

func dup(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var copied int
	var inner error
	err = raw.Control(func(fd uintptr) { copied, inner = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(err, inner); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(copied), f.Name()), nil
}

func newStore(t *testing.T, dir string, fds Keeper, size int64) *Store {
	t.Helper()
	s := New(Config{Dir: filepath.Join(dir, "logs"), Run: filepath.Join(dir, "run"), MaxSize: size, KeepAttempts: 5, Removed: filepath.Join(dir, "removed"), KeepRemoved: time.Hour, MaxRemoved: 1 << 30},
		Deps{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), FDs: fds})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// writeEnd opens a FIFO as the shim does: both ends, so that it is never broken.
func writeEnd(t *testing.T, path string) *os.File {
	t.Helper()
	other, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, other) })
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func write(t *testing.T, f *os.File, data []byte) {
	t.Helper()
	if _, err := f.Write(data); err != nil {
		t.Error(err)
	}
}

func shut(t *testing.T, files ...*os.File) {
	t.Helper()
	for _, f := range files {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// collect reads one stream until it is closed, and demands that offsets have no
// gap from from on.
func collect(t *testing.T, s *Store, at Position) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	var got []byte
	next := max(at.StdoutOffset, at.StderrOffset)
	err := s.Read(ctx, at, Mode{Follow: true, Tail: -1}, func(c Chunk) error {
		if c.Offset != next {
			t.Errorf("got offset %d, want %d", c.Offset, next)
		}
		if len(c.Data) > MaxChunk {
			t.Errorf("got a chunk of %d bytes", len(c.Data))
		}
		next = c.Offset + int64(len(c.Data))
		got = append(got, c.Data...)
		return nil
	})
	if err != nil {
		t.Errorf("read: %v after %d bytes", err, len(got))
	}
	return got
}

func numbered(from, to int) []byte {
	var b bytes.Buffer
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.Bytes()
}

func TestStore_KeepsWhatWasWritten(t *testing.T) {
	s := newStore(t, t.TempDir(), newShelf(), 64<<20)
	uid := id.NewSandbox()
	pipes, err := s.Open(uid, "web", 1, Default)
	if err != nil {
		t.Fatal(err)
	}
	out, errs := writeEnd(t, pipes.Stdout), writeEnd(t, pipes.Stderr)
	if err := pipes.Release(); err != nil {
		t.Fatal(err)
	}
	want := numbered(0, 400_000)
	go func() {
		write(t, out, want)
		write(t, errs, []byte("broken\n"))
		shut(t, out, errs)
	}()
	at := Position{UID: uid, Container: "web", Attempt: 1, Stdout: true}
	if got := collect(t, s, at); !bytes.Equal(got, want) {
		t.Errorf("followed %d bytes, want %d", len(got), len(want))
	}
	at.StdoutOffset = 3_000_001
	if got := collect(t, s, at); !bytes.Equal(got, want[3_000_001:]) {
		t.Errorf("resumed %d bytes, want %d", len(got), len(want)-3_000_001)
	}
	at = Position{UID: uid, Container: "web", Attempt: 1, Stderr: true}
	if got := string(collect(t, s, at)); got != "broken\n" {
		t.Errorf("got errors %q", got)
	}
	if err := s.Finish(t.Context(), uid, "web", 1); err != nil {
		t.Error(err)
	}
	if fifos, _ := filepath.Glob(filepath.Join(s.cfg.Run, uid.Lower(), "io", "*")); len(fifos) != 0 {
		t.Errorf("fifos left: %v", fifos)
	}
	if err := s.Remove(uid, Name{"local", "web"}); err != nil {
		t.Error(err)
	}
	if err := s.Read(t.Context(), Position{UID: id.NewSandbox(), Container: "web", Attempt: 1}, Mode{Tail: -1}, nil); !errors.Is(err, fault.NotFound) {
		t.Errorf("of another sandbox got %v, want not found", err)
	}
}

func TestStore_DropsOldest(t *testing.T) {
	const size = 1 << 20
	s := newStore(t, t.TempDir(), newShelf(), size)
	uid := id.NewSandbox()
	pipes, err := s.Open(uid, "web", 1, Default)
	if err != nil {
		t.Fatal(err)
	}
	out := writeEnd(t, pipes.Stdout)
	if err := pipes.Release(); err != nil {
		t.Fatal(err)
	}
	want := numbered(0, 500_000)
	write(t, out, want)
	shut(t, out)
	if err := s.Finish(t.Context(), uid, "web", 1); err != nil {
		t.Fatal(err)
	}
	var first int64 = -1
	var got []byte
	at := Position{UID: uid, Container: "web", Attempt: 1, Stdout: true}
	err = s.Read(t.Context(), at, Mode{Tail: -1}, func(c Chunk) error {
		if first < 0 {
			first = c.Offset
		}
		got = append(got, c.Data...)
		return nil
	})
	if err != nil || first <= 0 || !bytes.Equal(got, want[first:]) {
		t.Errorf("got %d bytes from %d on, want the end of %d; %v", len(got), first, len(want), err)
	}
	if len(got) > size || len(got) < size/2 {
		t.Errorf("kept %d bytes, want at most %d and more than half of it", len(got), size)
	}
}

func TestStore_GoesOnAfterRestart(t *testing.T) {
	for name, fds := range map[string]Keeper{"with kept files": newShelf(), "by path": forgetful{}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			uid := id.NewSandbox()
			s := newStore(t, dir, fds, 64<<20)
			pipes, err := s.Open(uid, "web", 1, Default)
			if err != nil {
				t.Fatal(err)
			}
			out, errs := writeEnd(t, pipes.Stdout), writeEnd(t, pipes.Stderr)
			if err := pipes.Release(); err != nil {
				t.Fatal(err)
			}
			const total, step = 100_000, 5_000
			for from := 0; from < total; from += step {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				write(t, out, numbered(from, from+step)) // less than the pipe holds
				s = newStore(t, dir, fds, 64<<20)
				if err := s.Adopt(t.Context(), func(id.Sandbox, string, uint64) bool { return false }); err != nil {
					t.Fatal(err)
				}
			}
			shut(t, out, errs)
			at := Position{UID: uid, Container: "web", Attempt: 1, Stdout: true}
			if got, want := collect(t, s, at), numbered(0, total); !bytes.Equal(got, want) {
				t.Errorf("got %d bytes, want %d", len(got), len(want))
			}
		})
	}
}

// forgetful keeps nothing.
type forgetful struct{}

func (forgetful) Push(string, *os.File) error {
	return fault.New(fault.Unavailable, "nobody keeps files")
}
func (forgetful) Remove(string) error             { return nil }
func (forgetful) Take(string) map[string]*os.File { return nil }

func TestStore_EndsWithinLimitWhenHeldOpen(t *testing.T) {
	s := newStore(t, t.TempDir(), newShelf(), 1<<20)
	uid := id.NewSandbox()
	pipes, err := s.Open(uid, "web", 1, Default)
	if err != nil {
		t.Fatal(err)
	}
	out := writeEnd(t, pipes.Stdout) // never closed before the end
	defer shut(t, out)
	began := time.Now()
	if err := s.Finish(t.Context(), uid, "web", 1); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > DrainLimit+2*time.Second {
		t.Errorf("took %s, the limit is %s", took, DrainLimit)
	}
	at := Position{UID: uid, Container: "web", Attempt: 1, Stdout: true, Stderr: true}
	if got := collect(t, s, at); len(got) != 0 {
		t.Errorf("got %q", got)
	}
}

func TestStore_ReplacesHalfMade(t *testing.T) {
	s := newStore(t, t.TempDir(), newShelf(), 1<<20)
	uid := id.NewSandbox()
	for range 3 {
		if _, err := s.Open(uid, "web", 1, Default); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Finish(t.Context(), uid, "web", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.Finish(t.Context(), uid, "web", 1); err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestStore_PrunesOldAttempts(t *testing.T) {
	s := newStore(t, t.TempDir(), newShelf(), 1<<20)
	uid := id.NewSandbox()
	for attempt := range uint64(10) {
		if _, err := s.Open(uid, "web", attempt+1, Default); err != nil {
			t.Fatal(err)
		}
		if err := s.Finish(t.Context(), uid, "web", attempt+1); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Attempts(uid, "web")
	if err != nil || len(got) != 5 || got[len(got)-1] != 10 {
		t.Errorf("got attempts %v, %v, want the last %d", got, err, 5)
	}
}

func TestStore_BothStreamsInOrderOfTime(t *testing.T) {
	s := newStore(t, t.TempDir(), newShelf(), 1<<20)
	uid := id.NewSandbox()
	pipes, err := s.Open(uid, "web", 1, Default)
	if err != nil {
		t.Fatal(err)
	}
	out, errs := writeEnd(t, pipes.Stdout), writeEnd(t, pipes.Stderr)
	if err := pipes.Release(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	at := Position{UID: uid, Container: "web", Attempt: 1, Stdout: true, Stderr: true}
	var seen []string
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	go func() {
		for i, f := range []*os.File{out, errs, out, errs} {
			<-turn // until the one before was read
			write(t, f, fmt.Appendf(nil, "this is the message with number %d\n", i))
		}
		<-turn
		shut(t, out, errs)
	}()
	err = s.Read(ctx, at, Mode{Follow: true, Tail: -1}, func(c Chunk) error {
		if c.At.IsZero() {
			t.Error("a chunk has no time")
		}
		seen = append(seen, fmt.Sprint(c.Stderr, " ", string(c.Data)))
		turn <- struct{}{}
		return nil
	})
	if err != nil || len(seen) != 4 {
		t.Fatalf("followed %q, %v", seen, err)
	}
	for i, s := range seen {
		if !strings.Contains(s, fmt.Sprint("number ", i)) {
			t.Errorf("got %q at place %d", s, i)
		}
	}
}
