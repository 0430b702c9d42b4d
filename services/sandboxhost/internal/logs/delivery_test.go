package logs

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
)

// slowDisk is a folder on a filesystem of its own, which freeze stops from taking anything
// and thaw lets go on. An ended test thaws it.
func slowDisk(t *testing.T) (dir string, freeze, thaw func()) {
	t.Helper()
	dir, image := t.TempDir(), filepath.Join(t.TempDir(), "image")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
	}
	run("truncate", "-s", "64M", image)
	run("mkfs.ext4", "-q", image)
	run("mount", "-o", "loop", image, dir)
	t.Cleanup(func() { run("umount", dir) })
	frozen := false
	set := func(want bool, request uint) func() {
		return func() {
			t.Helper()
			if frozen == want {
				return
			}
			f, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer shut(t, f)
			if err := unix.IoctlSetInt(int(f.Fd()), request, 0); err != nil {
				t.Fatal(err)
			}
			frozen = want
		}
	}
	const fifreeze, fithaw = 0xc0045877, 0xc0045878 // linux/fs.h
	freeze, thaw = set(true, fifreeze), set(false, fithaw)
	t.Cleanup(thaw)
	return dir, freeze, thaw
}

// While the disk takes nothing a workload that does not wait goes on, and one that does
// stands; what was written before and after the stall is kept, and the gap between them is
// as long as what was lost.
func TestStore_SlowDisk(t *testing.T) {
	dir, freeze, thaw := slowDisk(t)
	s := newStore(t, dir, newShelf(), 1<<30)
	s.cfg.Run = t.TempDir()
	t.Cleanup(thaw) // before the store is closed, which waits for the disk
	var troubles heard
	s.OnTrouble(troubles.add)
	before, during, after := numbered(0, 1_000), numbered(1_000, 400_000), numbered(400_000, 401_000)
	uid := id.NewSandbox()
	pipes, err := s.Open(uid, "web", 1, NonBlocking)
	if err != nil {
		t.Fatal(err)
	}
	waits, err := s.Open(uid, "waits", 1, Default)
	if err != nil {
		t.Fatal(err)
	}
	out, errs, held := writeEnd(t, pipes.Stdout), writeEnd(t, pipes.Stderr), writeEnd(t, waits.Stdout)
	heldErrs := writeEnd(t, waits.Stderr)
	if err := pipes.Release(); err != nil {
		t.Fatal(err)
	}
	if err := waits.Release(); err != nil {
		t.Fatal(err)
	}
	st := pipes.streams[0]
	write(t, out, before)
	eventually(t, "what was written before is kept", func() (any, bool) { end, err := st.keptEnd(); return end, err == nil && end == int64(len(before)) })

	freeze()
	write(t, out, during) // would never come back if it waited
	stands := make(chan struct{})
	go func() {
		defer close(stands)
		write(t, held, during)
	}()
	lost := s.Lost()
	select {
	case <-stands:
		t.Error("a workload that waits for its disk wrote all")
	case <-time.After(100 * time.Millisecond):
	}
	thaw()
	<-stands
	eventually(t, "the loss is counted", func() (any, bool) { return s.Lost(), s.Lost() > lost })
	write(t, out, after)
	shut(t, out, errs, held, heldErrs)
	if err := s.Finish(t.Context(), uid, "web", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.Finish(t.Context(), uid, "waits", 1); err != nil {
		t.Fatal(err)
	}
	written := bytes.Join([][]byte{before, during, after}, nil)
	kept := requireParts(t, s, uid, "web", written)
	if !bytes.HasPrefix(kept, before) || !bytes.HasSuffix(kept, after) {
		t.Error("what was written before or after the stall is not kept")
	}
	if got := int64(len(written)) - s.Lost(); int64(len(kept)) != got {
		t.Errorf("%d bytes are kept, want %d: all that was not counted as lost", len(kept), got)
	}
	if all := requireParts(t, s, uid, "waits", during); len(all) != len(during) {
		t.Errorf("%d bytes are kept of the workload that waits, want %d", len(all), len(during))
	}
	if reasons := troubles.reasons(); len(reasons) == 0 || reasons[0] != Dropped {
		t.Errorf("told was %v, want %s", reasons, Dropped)
	}
}

// requireParts requires that every kept byte is the one that was written at its offset, and
// returns them.
func requireParts(t *testing.T, s *Store, uid id.Sandbox, container string, written []byte) []byte {
	t.Helper()
	var kept []byte
	at := Position{UID: uid, Container: container, Attempt: 1, Stdout: true}
	err := s.Read(t.Context(), at, Mode{Tail: -1}, func(c Chunk) error {
		if end := c.Offset + int64(len(c.Data)); end > int64(len(written)) || !bytes.Equal(c.Data, written[c.Offset:end]) {
			t.Fatalf("the %d bytes at offset %d are not those that were written there", len(c.Data), c.Offset)
		}
		kept = append(kept, c.Data...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

type heard struct {
	mu  sync.Mutex
	all []Trouble
}

func (l *heard) add(t Trouble) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, t)
}

func (l *heard) reasons() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var reasons []string
	for _, t := range l.all {
		reasons = append(reasons, t.Reason)
	}
	return reasons
}

// On a full disk one that waits loses nothing, not even its oldest output, and goes on when there is room.
func TestStore_BlockingWaitsForRoom(t *testing.T) {
	dir := fullDisk(t, "1024")
	s := New(Config{Dir: filepath.Join(dir, "logs"), Run: t.TempDir(), MaxSize: 64 << 20, KeepAttempts: 5, Removed: filepath.Join(dir, "removed")},
		Deps{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), FDs: forgetful{}})
	s.segment = 64 << 10
	var troubles heard
	s.OnTrouble(troubles.add)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	uid := id.NewSandbox()
	pipes, err := s.Open(uid, "web", 1, Blocking)
	if err != nil {
		t.Fatal(err)
	}
	out, errs := writeEnd(t, pipes.Stdout), writeEnd(t, pipes.Stderr)
	if err := pipes.Release(); err != nil {
		t.Fatal(err)
	}
	blocker := filepath.Join(dir, "blocker")
	fillDisk(t, blocker)
	if err := os.Truncate(blocker, 200<<10); err != nil { // it has some 800 KiB
		t.Fatal(err)
	}
	written := numbered(0, 400_000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		write(t, out, written[:900<<10])
	}()
	eventually(t, "it waits", func() (any, bool) { r := troubles.reasons(); return r, len(r) == 1 && r[0] == Waits })
	if err := os.Remove(blocker); err != nil {
		t.Fatal(err)
	}
	<-done
	shut(t, out, errs)
	if err := s.Finish(t.Context(), uid, "web", 1); err != nil {
		t.Fatal(err)
	}
	if kept := requireParts(t, s, uid, "web", written); len(kept) != 900<<10 || s.Lost() != 0 {
		t.Errorf("%d bytes are kept and %d lost, want %d and none", len(kept), s.Lost(), 900<<10)
	}
}

// A process that takes over goes on with the buffer that the one before was emptying, and then
// with the one that it was filling.
func TestStore_TakesBuffersOverInTheirOrder(t *testing.T) {
	for filling := range 2 {
		dir, keeper, uid := t.TempDir(), newShelf(), id.NewSandbox()
		before := newStore(t, dir, keeper, 1<<30)
		pipes, err := before.Open(uid, "web", 1, NonBlocking)
		if err != nil {
			t.Fatal(err)
		}
		out, errs := writeEnd(t, pipes.Stdout), writeEnd(t, pipes.Stderr)
		if err := pipes.Release(); err != nil {
			t.Fatal(err)
		}
		write(t, out, []byte("first "))
		st := pipes.streams[0]
		eventually(t, "it is kept", func() (any, bool) { end, err := st.keptEnd(); return end, err == nil && end == 6 })
		if err := before.Close(); err != nil {
			t.Fatal(err)
		}
		for i, text := range map[int]string{1 - filling: "second ", filling: "third "} {
			b, err := os.OpenFile(bufferName(pipes.Stdout, i), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			write(t, b, []byte(text))
			shut(t, b)
		}
		if err := os.WriteFile(pipes.Stdout+noteSuffix, []byte{byte(NonBlocking), byte(filling)}, 0o600); err != nil {
			t.Fatal(err)
		}
		write(t, out, []byte("fourth"))
		after := newStore(t, dir, keeper, 1<<30)
		if err := after.Adopt(t.Context(), func(id.Sandbox, string, uint64) bool { return false }); err != nil {
			t.Fatal(err)
		}
		shut(t, out, errs)
		if err := after.Finish(t.Context(), uid, "web", 1); err != nil {
			t.Fatal(err)
		}
		if got := string(requireParts(t, after, uid, "web", []byte("first second third fourth"))); got != "first second third fourth" {
			t.Errorf("with %d being filled: %q", filling, got)
		}
		for _, f := range st.pipeFiles() {
			if _, err := os.Lstat(f); err == nil {
				t.Errorf("%s is left", f)
			}
		}
		if len(keeper.files) != 0 {
			t.Errorf("%d files are left with the keeper", len(keeper.files))
		}
	}
}
