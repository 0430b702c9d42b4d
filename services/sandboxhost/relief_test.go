package sandboxhost

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/logs"
	"staddle.internal/services/sandboxhost/internal/pressure"
)

// nobody keeps no open files.
type nobody struct{}

func (nobody) Push(string, *os.File) error     { return fault.New(fault.Unavailable, "nobody keeps files") }
func (nobody) Remove(string) error             { return nil }
func (nobody) Take(string) map[string]*os.File { return nil }

// A disk that runs short loses what is kept of removed sandboxes, the oldest first, and no
// more than has to go; one that is not loses nothing.
func TestRelieved_GivesUpWhatHasToGo(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	store := logs.New(logs.Config{
		Dir: filepath.Join(dir, "logs"), Run: t.TempDir(), MaxSize: 64 << 20, KeepAttempts: 5,
		Removed: filepath.Join(dir, "removed"), KeepRemoved: time.Hour, MaxRemoved: 1 << 30,
	}, logs.Deps{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), FDs: nobody{}})
	var uids []id.Sandbox
	for range 4 {
		uid := id.NewSandbox()
		uids = append(uids, uid)
		attempt := store.AttemptDir(logs.Attempt{UID: uid, Container: "main", Attempt: 1})
		if err := os.MkdirAll(filepath.Join(attempt, "stdout"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(attempt, "stdout", "00000000000000000000.log"), make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := store.Remove(uid, logs.Name{Manager: "local", Name: "web"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		minFree int64
		left    []id.Sandbox
	}{{3 << 20, uids}, {5632 << 10, uids[2:]}, {9 << 20, nil}} {
		relieved{output: store, path: dir, limits: pressure.Limits{DiskMinFree: tt.minFree}}.makeRoom(t.Context())
		removed, err := store.Removed()
		var left []id.Sandbox
		for _, r := range removed {
			left = append(left, r.UID)
		}
		if err != nil || !slices.Equal(left, tt.left) {
			t.Errorf("with %d bytes that have to be free, left are %v, %v, want %v", tt.minFree, left, err, tt.left)
		}
	}
}
