package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

// What has to go is decided by age, by size, and by who is busy with it.
func TestDue(t *testing.T) {
	now := time.Date(2026, 1, 31, 10, 0, 0, 0, time.UTC)
	a, b, c := id.NewSandbox(), id.NewSandbox(), id.NewSandbox()
	all := []Removed{
		{UID: a, At: now.Add(-3 * time.Hour), size: 100}, {UID: b, At: now.Add(-2 * time.Hour), size: 10}, {UID: c, At: now.Add(-time.Hour), size: 10},
	}
	tests := map[string]struct {
		all  []Removed
		keep time.Duration
		most int64
		busy []id.Sandbox
		gone []id.Sandbox
		next time.Duration
	}{
		"none":                      {nil, time.Hour, 1, nil, nil, 0},
		"all are young":             {all, 4 * time.Hour, 120, nil, nil, time.Hour},
		"the first is old":          {all, 3 * time.Hour, 120, nil, []id.Sandbox{a}, time.Hour},
		"all are old":               {all, 0, 120, nil, []id.Sandbox{a, b, c}, 0},
		"the first makes room":      {all, 4 * time.Hour, 119, nil, []id.Sandbox{a}, 2 * time.Hour},
		"two make room":             {all, 4 * time.Hour, 19, nil, []id.Sandbox{a, b}, 3 * time.Hour},
		"too large alone":           {all[:1], 4 * time.Hour, 99, nil, []id.Sandbox{a}, 0},
		"too large, behind others":  {[]Removed{all[1], all[2], {UID: a, At: now, size: 100}}, 4 * time.Hour, 99, nil, []id.Sandbox{a}, 2 * time.Hour},
		"old but busy":              {all, 2 * time.Hour, 120, []id.Sandbox{a}, []id.Sandbox{b}, busyPause},
		"busy, and there's no room": {all, 2 * time.Hour, 119, []id.Sandbox{a}, []id.Sandbox{a, b}, time.Hour},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, next := due(tt.all, now, tt.keep, tt.most, func(uid id.Sandbox) bool { return slices.Contains(tt.busy, uid) })
			var gone []id.Sandbox
			for _, r := range got {
				gone = append(gone, r.UID)
			}
			if !slices.Equal(gone, tt.gone) || next != tt.next {
				t.Errorf("got %v and %v, want %v and %v", gone, next, tt.gone, tt.next)
			}
		})
	}
}

func TestParseAside(t *testing.T) {
	uid := id.NewSandbox()
	for _, name := range []Name{{"local", "web"}, {"cluster", "a-b"}, {}} {
		if got, called, ok := parseAside(asideName(uid, name)); got != uid || called != name || !ok {
			t.Errorf("%v: got %s, %v, %v", name, got, called, ok)
		}
	}
	for _, folder := range []string{"", "lost+found", uid.Lower(), "local_web_" + string(uid), "a_local_web_" + uid.Lower()} {
		if got, called, ok := parseAside(folder); ok {
			t.Errorf("%q: got %s, %v", folder, got, called)
		}
	}
}

// Who reads what is given up meanwhile is told so, and does not take it for the end.
func TestStore_TellsReadersOfWhatIsGivenUp(t *testing.T) {
	tests := map[string]struct {
		mode    Mode
		removed bool // before the reader began
	}{
		"of a removed sandbox":       {Mode{Tail: -1}, true},
		"of one that is here":        {Mode{Tail: -1}, false},
		"following one that is here": {Mode{Tail: -1, Follow: true}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, uid := newStore(t, t.TempDir(), newShelf(), 64<<20), id.NewSandbox()
			s.segment = 64 << 10
			wrote(t, s, uid, 1, numbered(0, 100_000))
			remove := func() {
				if err := s.Remove(uid, Name{"local", "web"}); err != nil {
					t.Fatal(err)
				}
			}
			if tt.removed {
				remove()
			}
			var once sync.Once
			err := s.Read(t.Context(), outOf(uid, 1), tt.mode, func(Chunk) error {
				once.Do(func() {
					if !tt.removed {
						remove()
					}
					if !s.GiveUp() {
						t.Error("nothing was given up")
					}
				})
				return nil
			})
			if !errors.Is(err, fault.Conflict) {
				t.Errorf("got %v, want Conflict", err)
			}
		})
	}
}

// Who follows an attempt that later ones push out is told so as well.
func TestStore_TellsReadersOfAnAttemptThatIsPushedOut(t *testing.T) {
	s, uid := newStore(t, t.TempDir(), newShelf(), 64<<20), id.NewSandbox()
	s.segment, s.cfg.KeepAttempts = 64<<10, 2
	wrote(t, s, uid, 1, numbered(0, 100_000))
	var once sync.Once
	var got int
	err := s.Read(t.Context(), outOf(uid, 1), Mode{Tail: -1, Follow: true}, func(c Chunk) error {
		got += len(c.Data)
		once.Do(func() {
			for later := uint64(2); later < 6; later++ {
				wrote(t, s, uid, later, []byte("later\n"))
			}
		})
		return nil
	})
	if !errors.Is(err, fault.Conflict) {
		t.Errorf("got %d bytes and %v, want Conflict", got, err)
	}
}

// wrote has an attempt write something and end, unless its pipes are wanted.
func wrote(t *testing.T, s *Store, uid id.Sandbox, attempt uint64, text []byte) {
	t.Helper()
	pipes, err := s.Open(uid, "web", attempt, Default)
	if err != nil {
		t.Fatal(err)
	}
	var ends []*os.File
	for _, path := range []string{pipes.Stdout, pipes.Stderr} {
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, f)
	}
	if err := pipes.Release(); err != nil {
		t.Fatal(err)
	}
	write(t, ends[0], text)
	shut(t, ends...)
	if err := s.Finish(t.Context(), uid, "web", attempt); err != nil {
		t.Fatal(err)
	}
}

func outOf(uid id.Sandbox, attempt uint64) Position {
	return Position{UID: uid, Container: "web", Attempt: attempt, Stdout: true}
}

// What a removed sandbox wrote is read as before, by this process and by the next one,
// and by those who were reading when it was removed.
func TestStore_KeepsWhatARemovedSandboxWrote(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, dir, newShelf(), 64<<20)
	s.segment = 64 << 10
	uid, called := id.NewSandbox(), Name{"local", "web"}
	want := numbered(0, 100_000) // many segments
	wrote(t, s, uid, 1, []byte("first\n"))
	wrote(t, s, uid, 2, want)

	begun, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var got []byte
	followed := make(chan error, 1)
	go func() {
		followed <- s.Read(t.Context(), outOf(uid, 2), Mode{Follow: true, Tail: -1}, func(c Chunk) error {
			once.Do(func() { close(begun); <-goOn })
			got = append(got, c.Data...)
			return nil
		})
	}()
	<-begun
	for range 2 { // safe to repeat
		if err := s.Remove(uid, called); err != nil {
			t.Fatal(err)
		}
	}
	close(goOn)
	if err := <-followed; err != nil || !bytes.Equal(got, want) {
		t.Errorf("who read meanwhile got %d bytes and %v, want %d", len(got), err, len(want))
	}

	for _, process := range []*Store{s, newStore(t, dir, newShelf(), 64<<20)} {
		if err := process.Adopt(t.Context(), func(id.Sandbox, string, uint64) bool { return false }); err != nil {
			t.Fatal(err)
		}
		removed, err := process.Removed()
		if err != nil || len(removed) != 1 || removed[0].UID != uid || removed[0].Name != called || time.Since(removed[0].At) > waitLimit {
			t.Errorf("removed are %v, %v", removed, err)
		}
		if name, ok := process.WasCalled(uid); !ok || name != called {
			t.Errorf("it was called %v, %v", name, ok)
		}
		here, err := process.List()
		kept, keptErr := process.Kept(uid)
		if err != nil || keptErr != nil || len(here) != 0 || kept {
			t.Errorf("it still counts as here: %v, %v, %v, %v", here, err, kept, keptErr)
		}
		attempts, err := process.Attempts(uid, "web")
		if err != nil || !slices.Equal(attempts, []uint64{1, 2}) {
			t.Errorf("attempts are %v, %v", attempts, err)
		}
		if got := collect(t, process, outOf(uid, 2)); !bytes.Equal(got, want) {
			t.Errorf("got %d bytes, want %d", len(got), len(want))
		}
	}
}

// A uid that comes again has output of its own.
func TestStore_UsesAUIDAgain(t *testing.T) {
	s := newStore(t, t.TempDir(), newShelf(), 64<<20)
	uid := id.NewSandbox()
	wrote(t, s, uid, 1, []byte("before\n"))
	if err := s.Remove(uid, Name{}); err != nil {
		t.Fatal(err)
	}
	wrote(t, s, uid, 2, []byte("after\n"))
	if got := string(collect(t, s, outOf(uid, 2))); got != "after\n" {
		t.Errorf("got %q", got)
	}
	if kept, err := s.Kept(uid); err != nil || !kept {
		t.Errorf("it does not count as here: %v, %v", kept, err)
	}
}

// busyWith is busy with all of them until it is done, and notes what goes.
type busyWith struct {
	mu   sync.Mutex
	busy bool
	gone []id.Sandbox
}

func (b *busyWith) Opened(Attempt)   {}
func (b *busyWith) Removing(Attempt) {}
func (b *busyWith) RemovingAll(uid id.Sandbox) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = append(b.gone, uid)
}

func (b *busyWith) Busy(id.Sandbox) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.busy
}

// What is not kept goes, but not before others are done with it.
func TestStore_TidiesBehindThoseWhoAreBusy(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, dir, newShelf(), 64<<20)
	s.cfg.KeepRemoved = 0
	w := &busyWith{busy: true}
	s.Watch(w)
	uid := id.NewSandbox()
	wrote(t, s, uid, 1, []byte("text\n"))
	if err := s.Remove(uid, Name{"local", "web"}); err != nil {
		t.Fatal(err)
	}
	if next, err := s.tidy(); err != nil || next != busyPause || len(w.gone) != 0 {
		t.Errorf("got %v, %v, with %v gone, want to wait", next, err, w.gone)
	}
	if removed, err := s.Removed(); err != nil || len(removed) != 0 {
		t.Errorf("%v, %v: what is not kept is shown", removed, err)
	}
	if got := string(collect(t, s, outOf(uid, 1))); got != "text\n" {
		t.Errorf("who is busy gets %q", got)
	}
	w.busy = false
	if next, err := s.tidy(); err != nil || next != 0 || !slices.Equal(w.gone, []id.Sandbox{uid}) {
		t.Errorf("got %v, %v, with %v gone", next, err, w.gone)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "removed")); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := s.Read(t.Context(), outOf(uid, 1), Mode{Tail: -1}, nil); !errors.Is(err, fault.NotFound) {
		t.Errorf("read got %v, want not found", err)
	}
}

// Tend sees what comes while it waits.
func TestStore_Tends(t *testing.T) {
	s := newStore(t, t.TempDir(), newShelf(), 64<<20)
	s.cfg.MaxRemoved = 15
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Tend(ctx)
	}()
	var uids []id.Sandbox
	for i := range 3 {
		uids = append(uids, id.NewSandbox())
		wrote(t, s, uids[i], 1, []byte("text\n")) // and 16 bytes of index
		if err := s.Remove(uids[i], Name{"local", "web"}); err != nil {
			t.Fatal(err)
		}
	}
	limit := time.After(waitLimit)
	for left := 3; left > 0; {
		removed, err := s.Removed()
		if err != nil {
			t.Fatal(err)
		}
		left = len(removed)
		select {
		case <-limit:
			t.Fatalf("%d are left", left)
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	<-done
}

// On a full disk what was removed goes first, the oldest of it before the others: of a
// container that writes nothing is lost.
func TestWriter_FullDiskCostsWhatWasRemoved(t *testing.T) {
	dir := fullDisk(t, "1024")
	var log lines
	s := New(Config{Dir: filepath.Join(dir, "logs"), Run: t.TempDir(), MaxSize: 64 << 20, KeepAttempts: 5, Removed: filepath.Join(dir, "removed"), KeepRemoved: time.Hour, MaxRemoved: 1 << 30},
		Deps{Log: slog.New(slog.NewTextHandler(&log, nil)), FDs: forgetful{}})
	t.Cleanup(func() { _ = s.Close() })
	var uids []id.Sandbox
	for i := range 4 {
		uids = append(uids, id.NewSandbox())
		wrote(t, s, uids[i], 1, bytes.Repeat([]byte("x"), 200<<10))
		if err := s.Remove(uids[i], Name{"local", fmt.Sprint("web-", i)}); err != nil {
			t.Fatal(err)
		}
	}
	writes := id.NewSandbox()
	want := numbered(0, 40_000) // 430 KiB
	wrote(t, s, writes, 1, want)
	if got := collect(t, s, outOf(writes, 1)); !bytes.Equal(got, want) {
		t.Errorf("kept are %d bytes, want %d", len(got), len(want))
	}
	left, err := s.Removed()
	if err != nil || len(left) == 0 || len(left) == len(uids) || left[len(left)-1].UID != uids[3] {
		t.Errorf("left are %v, %v, want the last ones of %v", left, err, uids)
	}
	if got := log.count("output of a removed sandbox given up"); got != len(uids)-len(left) {
		t.Errorf("told were %d, of %d that went", got, len(uids)-len(left))
	}
	// A disk without room for a single name gives up what is removed as well.
	fillDisk(t, filepath.Join(dir, "blocker"))
	if err := s.Remove(writes, Name{"local", strings.Repeat("long", 15)}); err != nil {
		t.Error(err)
	}
}
