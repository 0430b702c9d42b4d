package namespace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

func newPins(t *testing.T) *Pins {
	t.Helper()
	dir, err := os.MkdirTemp("", "sdp")
	if err != nil {
		t.Fatal(err)
	}
	p := New(filepath.Join(dir, "run"))
	for range 2 {
		if err := p.Open(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for range 2 {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return p
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatalf("stat %s: %v", path, err)
	}
	return st.Ino
}

// TestPins_ManyAtOnce also makes sure that no thread of this process is left in
// a namespace of a sandbox.
func TestPins_ManyAtOnce(t *testing.T) {
	p := newPins(t)
	before := inode(t, "/proc/self/ns/net")
	const many = 40
	uids := make([]id.Sandbox, many)
	var wg sync.WaitGroup
	for i := range uids {
		uids[i] = id.NewSandbox()
		wg.Go(func() {
			for range 2 {
				if err := p.Ensure(uids[i], Wanted{Network: i%4 != 0, Hostname: fmt.Sprintf("web%d", i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	seen := map[uint64]bool{before: true}
	for i, uid := range uids {
		if whole, err := p.Whole(uid); err != nil || !whole {
			t.Errorf("sandbox %d: whole %t, %v", i, whole, err)
		}
		if i%4 == 0 {
			continue
		}
		ino := inode(t, p.Path(uid, Net))
		if seen[ino] {
			t.Errorf("sandbox %d has the network of another", i)
		}
		seen[ino] = true
	}
	if got := inode(t, "/proc/self/ns/net"); got != before {
		t.Errorf("the main thread is in network %d, was in %d", got, before)
	}
	if found, err := p.Sandboxes(); err != nil || len(found) != many {
		t.Errorf("got %d sandboxes, %v, want %d", len(found), err, many)
	}
	for _, uid := range uids {
		if err := errors.Join(p.Release(uid), p.Release(uid)); err != nil {
			t.Error(err)
		}
	}
	if found, err := p.Sandboxes(); err != nil || len(found) != 0 {
		t.Errorf("left: %v, %v", found, err)
	}
}

func TestPins_InsideSeesLoopbackOnly(t *testing.T) {
	p := newPins(t)
	uid := id.NewSandbox()
	if err := p.Ensure(uid, Wanted{Network: true, Hostname: "web"}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Release(uid); err != nil {
			t.Error(err)
		}
	}()
	err := Inside(p.Path(uid, Net), func() error {
		raw, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		if s := string(raw); !strings.Contains(s, "lo:") || strings.Count(s, ":") != 1 {
			return fmt.Errorf("got interfaces %s", s)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestPins_NoticesLostPin(t *testing.T) {
	p := newPins(t)
	uid := id.NewSandbox()
	want := Wanted{Network: true, Hostname: "web"}
	for name, lose := range map[string]func() error{
		"unmounted": func() error { return unix.Unmount(p.Path(uid, IPC), unix.MNT_DETACH) },
		"removed": func() error {
			return errors.Join(unix.Unmount(p.Path(uid, UTS), unix.MNT_DETACH), os.Remove(p.Path(uid, UTS)))
		},
		"shared memory": func() error { return unix.Unmount(p.Shm(uid), unix.MNT_DETACH) },
	} {
		if err := p.Ensure(uid, want); err != nil {
			t.Fatal(err)
		}
		if err := lose(); err != nil {
			t.Fatal(err)
		}
		if whole, err := p.Whole(uid); err != nil || whole {
			t.Errorf("%s: whole %t, %v", name, whole, err)
		}
	}
	if err := p.Ensure(uid, want); err != nil {
		t.Error(err)
	}
	if whole, err := p.Whole(uid); err != nil || !whole {
		t.Errorf("made anew: whole %t, %v", whole, err)
	}
	if err := p.Release(uid); err != nil {
		t.Error(err)
	}
	if _, err := p.OpenNet(uid); !errors.Is(err, fault.NotFound) {
		t.Errorf("got %v, want not found", err)
	}
}

// Shared memory lets every user write, for the sake of those inside: on the node
// nobody else may get there.
func TestPins_AreClosedToOtherUsers(t *testing.T) {
	p, uid := newPins(t), id.NewSandbox()
	if err := p.Ensure(uid, Wanted{Hostname: "web"}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(p.Dir(uid))
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got&0o077 != 0 {
		t.Errorf("folder of the sandbox has mode %o, others can reach its shared memory", got)
	}
	if err := p.Release(uid); err != nil {
		t.Error(err)
	}
}

// The shared memory of a sandbox has the size that was asked for.
func TestPins_SharedMemory(t *testing.T) {
	p := newPins(t)
	for asked, want := range map[int64]int64{0: 64 << 20, 1 << 20: 1 << 20} {
		uid := id.NewSandbox()
		if err := p.Ensure(uid, Wanted{Hostname: "web", ShmSize: asked}); err != nil {
			t.Fatal(err)
		}
		var st unix.Statfs_t
		if err := unix.Statfs(p.Shm(uid), &st); err != nil {
			t.Fatal(err)
		}
		if got := int64(st.Blocks) * st.Bsize; got != want {
			t.Errorf("asked for %d, got %d, want %d", asked, got, want)
		}
		if err := p.Release(uid); err != nil {
			t.Error(err)
		}
	}
}
