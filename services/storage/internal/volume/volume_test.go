package volume

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

// newStore is a store on real folders and real mounts, as after a start.
func newStore(t *testing.T) (*Store, func() *Store) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("mounts need root: run make test")
	}
	dir := t.TempDir()
	again := func() *Store {
		s := New(filepath.Join(dir, "volumes"), filepath.Join(dir, "attached"), Kernel{}, slog.New(slog.DiscardHandler))
		if err := s.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}
	t.Cleanup(func() {
		left, err := Kernel{}.Below(dir)
		if err != nil {
			t.Error(err)
		}
		for _, path := range left {
			if err := unix.Unmount(path, 0); err != nil {
				t.Errorf("unmount %s: %v", path, err)
			}
		}
	})
	return again(), again
}

const (
	diskA    id.Disk    = "01K00000000000000000000000"
	sandboxA id.Sandbox = "01K0000000000000000000000A"
	sandboxB id.Sandbox = "01K0000000000000000000000B"
)

func mounted(t *testing.T, path string) bool {
	t.Helper()
	paths, err := Kernel{}.Below(path)
	if err != nil {
		t.Fatal(err)
	}
	return len(paths) == 1
}

func wantFault(t *testing.T, err error, kind fault.Kind, reason string) {
	t.Helper()
	if !errors.Is(err, kind) || fault.Reason(err) != reason {
		t.Fatalf("got error %v (kind %v, reason %q), want kind %v, reason %q", err, fault.KindOf(err), fault.Reason(err), kind, reason)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestStore_KeepsDataOverHolders(t *testing.T) {
	s, _ := newStore(t)
	for range 2 {
		_, err := s.Ensure(diskA)
		must(t, err)
	}
	for range 2 {
		v, err := s.Attach(diskA, sandboxA, 1)
		must(t, err)
		if !mounted(t, v.Path) {
			t.Fatalf("%s is not mounted once", v.Path)
		}
		must(t, os.WriteFile(filepath.Join(v.Path, "file"), []byte("kept"), 0o644))
	}
	_, err := s.Attach(diskA, sandboxB, 2)
	wantFault(t, err, fault.Conflict, ReasonInUse)
	for range 2 {
		must(t, s.Detach(diskA, sandboxA, 1))
		if mounted(t, s.mountPath(diskA)) {
			t.Fatal("still mounted after detach")
		}
	}
	_, err = s.Attach(diskA, sandboxA, 1)
	wantFault(t, err, fault.Conflict, ReasonStaleEpoch)
	v, err := s.Attach(diskA, sandboxB, 2)
	must(t, err)
	got, err := os.ReadFile(filepath.Join(v.Path, "file"))
	must(t, err)
	if string(got) != "kept" {
		t.Fatalf("got %q, want what the holder before wrote", got)
	}
	wantFault(t, s.Detach(diskA, sandboxA, 1), fault.Conflict, ReasonStaleEpoch)
	wantFault(t, s.Remove(diskA), fault.Conflict, ReasonInUse)
	must(t, s.Detach(diskA, sandboxB, 2))
	for range 2 {
		must(t, s.Remove(diskA))
	}
	volumes, err := s.List()
	must(t, err)
	if len(volumes) != 0 {
		t.Fatalf("got %v, want no volume", volumes)
	}
}

func TestStore_RecoversAfterRestartAndReboot(t *testing.T) {
	s, again := newStore(t)
	_, err := s.Ensure(diskA)
	must(t, err)
	v, err := s.Attach(diskA, sandboxA, 3)
	must(t, err)

	if again(); !mounted(t, v.Path) {
		t.Fatal("a restart doubled or lost the mount")
	}
	must(t, unix.Unmount(v.Path, 0)) // a reboot
	s = again()
	if !mounted(t, v.Path) {
		t.Fatal("not mounted again after a reboot")
	}
	wantFault(t, errOf(s.Attach(diskA, sandboxA, 2)), fault.Conflict, ReasonStaleEpoch)

	// Killed after the unmount was noted and before it was done.
	must(t, writeNote(s.folder(diskA), note{Format: noteFormat, UID: string(diskA), Epoch: 3}))
	if again(); mounted(t, v.Path) {
		t.Fatal("a mount without a holder stayed")
	}
}

func errOf(_ Volume, err error) error { return err }

func TestStore_BrokenNoteIsNeverEmpty(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "half": `{"format":1,"uid":"01K0`, "newer": `{"format":2}`,
		"other volume": `{"format":1,"uid":"01K0000000000000000000000Z","epoch":0,"created_at":"2026-01-01T00:00:00Z"}`,
		"unknown key":  `{"format":1,"uid":"01K00000000000000000000000","epoch":0,"owner":"x","created_at":"2026-01-01T00:00:00Z"}`,
	} {
		t.Run(name, func(t *testing.T) {
			s, again := newStore(t)
			_, err := s.Ensure(diskA)
			must(t, err)
			file := filepath.Join(s.folder(diskA), dataFolder, "file")
			must(t, os.WriteFile(file, nil, 0o644))
			must(t, os.WriteFile(filepath.Join(s.folder(diskA), noteFile), []byte(content), 0o600))
			s = again()
			volumes, err := s.List()
			must(t, err)
			if len(volumes) != 1 || !strings.Contains(volumes[0].Broken, "data is kept") {
				t.Fatalf("got %+v, want one broken volume", volumes)
			}
			wantFault(t, errOf(s.Attach(diskA, sandboxA, 1)), fault.Conflict, ReasonBroken)
			wantFault(t, errOf(s.Ensure(diskA)), fault.Conflict, ReasonBroken)
			if _, err := os.Stat(file); err != nil {
				t.Fatalf("data is gone: %v", err)
			}
		})
	}
}

func TestStore_NeverRemovesThroughAMount(t *testing.T) {
	s, again := newStore(t)
	_, err := s.Ensure(diskA)
	must(t, err)
	elsewhere := t.TempDir()
	precious := filepath.Join(elsewhere, "precious")
	must(t, os.WriteFile(precious, nil, 0o644))
	inside := filepath.Join(s.folder(diskA), dataFolder, "sub")
	must(t, os.Mkdir(inside, 0o755))
	must(t, unix.Mount(elsewhere, inside, "", unix.MS_BIND, ""))
	err = s.Remove(diskA)
	for range 2 { // also when it is asked again, it is not gone
		if !errors.Is(err, fault.Unavailable) {
			t.Fatalf("got %v, want Unavailable", err)
		}
		err = s.Remove(diskA)
	}
	doomed := filepath.Join(s.data, removing+diskA.Lower(), dataFolder, "sub")
	must(t, unix.Unmount(doomed, 0))
	again()
	if _, err := os.Stat(precious); err != nil {
		t.Fatalf("data behind the mount is gone: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(doomed)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the removal was not finished: %v", err)
	}
}

func TestStore_BusyMountIsUnavailableAndStaysAttached(t *testing.T) {
	s, _ := newStore(t)
	_, err := s.Ensure(diskA)
	must(t, err)
	v, err := s.Attach(diskA, sandboxA, 1)
	must(t, err)
	f, err := os.Create(filepath.Join(v.Path, "open"))
	must(t, err)
	if err := s.Detach(diskA, sandboxA, 1); !errors.Is(err, fault.Unavailable) {
		t.Fatalf("got %v, want Unavailable while a file is open", err)
	}
	must(t, f.Close())
	must(t, s.Detach(diskA, sandboxA, 1))
}

// What is mounted under one right is not given back by another.
func TestStore_IsDetachedUnderItsOwnEpochOnly(t *testing.T) {
	s, _ := newStore(t)
	_, err := s.Ensure(diskA)
	must(t, err)
	v, err := s.Attach(diskA, sandboxA, 2)
	must(t, err)
	wantFault(t, s.Detach(diskA, sandboxA, 1), fault.Conflict, ReasonStaleEpoch)
	wantFault(t, s.Detach(diskA, sandboxA, 3), fault.Conflict, ReasonInUse)
	// In a history that was put back, another sandbox may have had the same epoch.
	wantFault(t, s.Detach(diskA, sandboxB, 2), fault.Conflict, ReasonOtherHolder)
	if !mounted(t, v.Path) {
		t.Fatal("unmounted under another epoch")
	}
	must(t, s.Detach(diskA, sandboxA, 2))
	must(t, s.Detach(diskA, sandboxA, 3))
}

// A volume whose note broke while it was attached stays so until it is given back.
func TestStore_BrokenWhileAttached(t *testing.T) {
	s, again := newStore(t)
	_, err := s.Ensure(diskA)
	must(t, err)
	v, err := s.Attach(diskA, sandboxA, 1)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.folder(diskA), noteFile), nil, 0o600))
	s = again()
	if !mounted(t, v.Path) {
		t.Fatal("a start unmounted what may be in use")
	}
	wantFault(t, s.Remove(diskA), fault.Conflict, ReasonInUse)
	for range 2 {
		must(t, s.Detach(diskA, sandboxA, 1))
	}
	if mounted(t, v.Path) {
		t.Fatal("given back and still mounted")
	}
	must(t, s.Remove(diskA))
}

// That a note cannot be read now says nothing about the volume.
func TestUnanswered(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EMFILE: true, unix.ENFILE: true, unix.ENOMEM: true, unix.EACCES: true,
		unix.ENOENT: false, unix.EIO: false, unix.ENOTDIR: false,
	} {
		if got := unanswered(&os.PathError{Op: "open", Path: "/v", Err: err}); got != want {
			t.Errorf("%v: got unanswered %v, want %v", err, got, want)
		}
	}
	if unanswered(errors.New("the note is about another")) || unanswered(nil) {
		t.Error("what is wrong with a note is an answer")
	}
}

// hung is a mount table whose unmounts never end.
type hung struct {
	Kernel
	hold chan struct{}
}

func (h hung) Bind(_, _ string) error { return nil }
func (h hung) Unbind(string) error    { <-h.hold; return nil }

// An operation that hangs holds up its volume with a word, and no other.
func TestStore_AHungUnmountIsNamed(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		table := hung{hold: make(chan struct{})}
		s := New(filepath.Join(dir, "volumes"), filepath.Join(dir, "attached"), table, slog.New(slog.DiscardHandler))
		must(t, s.Recover(t.Context()))
		_, err := s.Ensure(diskA)
		must(t, err)
		_, err = s.Attach(diskA, sandboxA, 1)
		must(t, err)
		ended := make(chan error, 1)
		go func() { ended <- s.Detach(diskA, sandboxA, 1) }() // ends when the hold is given up
		synctest.Wait()
		wantFault(t, s.Detach(diskA, sandboxA, 1), fault.Unavailable, "")
		_, err = s.Ensure("01K0000000000000000000000B")
		must(t, err)
		close(table.hold)
		must(t, <-ended)
		must(t, s.Detach(diskA, sandboxA, 1))
	})
}

// The data of a volume lets every user write, for the sake of those inside a
// sandbox: on the node nobody else may get there, on neither way.
func TestStore_IsClosedToOtherUsers(t *testing.T) {
	s, _ := newStore(t)
	for _, dir := range []string{s.data, s.attach} {
		info, err := os.Stat(dir)
		must(t, err)
		if got := info.Mode().Perm(); got&0o077 != 0 {
			t.Errorf("%s has mode %o, others can reach the data below", dir, got)
		}
	}
}

// A parked volume is unmounted, also after a restart, and nobody else's.
func TestStore_ParkedStaysItsHolders(t *testing.T) {
	s, again := newStore(t)
	_, err := s.Ensure(diskA)
	must(t, err)
	v, err := s.Attach(diskA, sandboxA, 3)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(v.Path, "file"), []byte("kept"), 0o644))
	wantFault(t, s.Park(diskA, sandboxB, 3), fault.Conflict, ReasonOtherHolder)
	for range 2 {
		must(t, s.Park(diskA, sandboxA, 3))
		if mounted(t, v.Path) {
			t.Fatal("still mounted after it was parked")
		}
		s = again()
		if mounted(t, v.Path) {
			t.Fatal("a start mounted what is parked")
		}
	}
	if got, err := s.read(diskA); err != nil || got.Holder != sandboxA || !got.Parked || got.Path != "" {
		t.Fatalf("a parked volume is %+v, %v", got, err)
	}
	wantFault(t, errOf(s.Attach(diskA, sandboxB, 4)), fault.Conflict, ReasonInUse)
	wantFault(t, s.Remove(diskA), fault.Conflict, ReasonInUse)
	back, err := s.Attach(diskA, sandboxA, 3)
	must(t, err)
	raw, err := os.ReadFile(filepath.Join(back.Path, "file"))
	must(t, err)
	if string(raw) != "kept" || !mounted(t, back.Path) || back.Parked {
		t.Fatalf("mounted again it is %+v with %q", back, raw)
	}
	must(t, s.Park(diskA, sandboxA, 3))
	must(t, s.Detach(diskA, sandboxA, 3)) // its right ends while it is parked
	v, err = s.Attach(diskA, sandboxB, 4)
	must(t, err)
	if s = again(); !mounted(t, v.Path) {
		t.Fatal("the next holder's mount is lost")
	}
	must(t, s.Detach(diskA, sandboxB, 4))
}

// A release that does not know of parking mounts what is parked; what is mounted may be
// in use, whatever the mark says.
func TestStore_AMarkOnAMountedVolumeIsStale(t *testing.T) {
	s, again := newStore(t)
	_, err := s.Ensure(diskA)
	must(t, err)
	v, err := s.Attach(diskA, sandboxA, 3)
	must(t, err)
	must(t, s.Park(diskA, sandboxA, 3))
	must(t, s.mount(diskA))
	s = again()
	if got, err := s.read(diskA); err != nil || got.Parked || !mounted(t, v.Path) {
		t.Fatalf("the mounted volume is %+v, %v", got, err)
	}
	must(t, s.Detach(diskA, sandboxA, 3))
}
