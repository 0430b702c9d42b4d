package logs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
)

// eventually asks until the answer is yes.
func eventually(t *testing.T, what string, ask func() (any, bool)) {
	t.Helper()
	limit := time.After(waitLimit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		seen, ok := ask()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not within %s: %s; last: %v", waitLimit, what, seen)
		}
	}
}

// fill writes more than a pipe holds: it ends only if somebody reads.
func fill(t *testing.T, f *os.File) {
	t.Helper()
	if err := f.SetWriteDeadline(time.Now().Add(waitLimit)); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		write(t, f, make([]byte, 64<<10))
	}
}

// Somebody makes room by hand: removes the output of workloads that run.
func TestStore_GoesOnWhenItsFolderIsTakenAway(t *testing.T) {
	for name, fds := range map[string]Keeper{"with kept files": newShelf(), "by path": forgetful{}} {
		t.Run(name, func(t *testing.T) {
			dir, uid := t.TempDir(), id.NewSandbox()
			s := newStore(t, dir, fds, 64<<20)
			pipes, err := s.Open(uid, "a-b", 12, Default)
			if err != nil {
				t.Fatal(err)
			}
			out, errs := pollable(t, pipes.Stdout), pollable(t, pipes.Stderr)
			defer shut(t, out, errs)
			if err := pipes.Release(); err != nil {
				t.Fatal(err)
			}
			write(t, out, []byte("before\n"))
			kept := func() (any, bool) {
				end, err := endOf(filepath.Join(dir, "logs", uid.Lower(), "a-b", "12", "stdout"))
				return err, err == nil && end > 0
			}
			eventually(t, "output is kept", kept)
			eventually(t, "the folder is taken away", func() (any, bool) { // the other output may be about to be kept
				err := os.RemoveAll(filepath.Join(dir, "logs", uid.Lower()))
				return err, err == nil
			})
			eventually(t, "output is kept again", func() (any, bool) { // it is noticed with what comes later
				fill(t, out)
				return kept()
			})

			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(filepath.Join(dir, "logs")); err != nil {
				t.Fatal(err)
			}
			s = newStore(t, dir, fds, 64<<20)
			if err := s.Adopt(t.Context(), func(id.Sandbox, string, uint64) bool { return false }); err != nil {
				t.Fatal(err)
			}
			fill(t, out)
			fill(t, errs)
			eventually(t, "output is kept after a restart", kept)
		})
	}
}

// pollable opens a FIFO as writeEnd does, with deadlines.
func pollable(t *testing.T, path string) *os.File {
	t.Helper()
	f := writeEnd(t, path)
	defer shut(t, f)
	again, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// Without follow a reader comes to an end, however much is written meanwhile.
func TestStore_ReadsToWhatWasThere(t *testing.T) {
	s, uid := newStore(t, t.TempDir(), newShelf(), 64<<20), id.NewSandbox()
	pipes, err := s.Open(uid, "web", 1, Default)
	if err != nil {
		t.Fatal(err)
	}
	out := writeEnd(t, pipes.Stdout)
	defer shut(t, out)
	dir := filepath.Join(s.cfg.Dir, uid.Lower(), "web", "1", "stdout")
	var total int64
	more := func() {
		write(t, out, make([]byte, 2*MaxChunk))
		total += 2 * MaxChunk
		eventually(t, "it is kept", func() (any, bool) {
			end, err := endOf(dir)
			return end, err == nil && end == total
		})
	}
	more()
	there, got := total, int64(0)
	err = s.Read(t.Context(), Position{UID: uid, Container: "web", Attempt: 1, Stdout: true, Stderr: true}, Mode{Tail: -1}, func(c Chunk) error {
		got += int64(len(c.Data))
		if got > there {
			t.Fatalf("got %d bytes, %d were there", got, there)
		}
		more()
		return nil
	})
	if err != nil || got != there {
		t.Errorf("got %d bytes and %v, want %d", got, err, there)
	}
}

func TestParseFIFO(t *testing.T) {
	uid := id.NewSandbox()
	for _, want := range []key{{uid, "web", 1, false}, {uid, "a-1-b", 1 << 63, true}} {
		if got, ok := parseFIFO(uid, want.fifo()); !ok || got != want {
			t.Errorf("%s: got %+v, %t", want.fifo(), got, ok)
		}
	}
	for _, file := range []string{"", "web", "web-1", "web-x.stdout", "web-01.stdout", "web-1.stdin", "web-1.stdout.old"} {
		if got, ok := parseFIFO(uid, file); ok {
			t.Errorf("%s: got %+v, want it to be none of ours", file, got)
		}
	}
}
