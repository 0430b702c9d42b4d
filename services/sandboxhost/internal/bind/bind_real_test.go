package bind

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ground is a node with an allowed folder, one beside it, and a place for mounts,
// which is removed safely.
func ground(t *testing.T) (allowed, outside, places string) {
	t.Helper()
	dir := t.TempDir()
	allowed, outside, places = filepath.Join(dir, "allowed"), filepath.Join(dir, "outside"), filepath.Join(dir, "places")
	for _, d := range []string{allowed + "/sub", outside} {
		must(t, os.MkdirAll(d, 0o755))
	}
	must(t, os.WriteFile(allowed+"/sub/file", []byte("inside"), 0o644))
	must(t, os.WriteFile(outside+"/secret", []byte("secret"), 0o644))
	t.Cleanup(func() { must(t, Clear(places)) })
	return allowed, outside, places
}

func TestMount_ShowsWhatIsThere(t *testing.T) {
	allowed, _, places := ground(t)
	must(t, os.Symlink("sub", allowed+"/link"))
	for source, read := range map[string]string{"": "/sub/file", "/sub": "/file", "/sub/file": "", "/link": "/file", "/link/file": ""} {
		target := filepath.Join(places, "x")
		for range 2 { // again takes the place of the first
			must(t, Mount(allowed, allowed+source, target))
		}
		got, err := os.ReadFile(target + read)
		if err != nil || string(got) != "inside" {
			t.Errorf("%q: got %q, %v", source, got, err)
		}
		must(t, Unmount(target))
		must(t, Unmount(target))
		if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q: the place is left: %v", source, err)
		}
	}
}

// A link that leads out of what the node allows is refused, wherever on the way it
// is, and so is what is not there.
func TestMount_StaysInside(t *testing.T) {
	allowed, outside, places := ground(t)
	must(t, os.Symlink(outside, allowed+"/absolute"))
	must(t, os.Symlink("../outside", allowed+"/relative"))
	must(t, os.Symlink("/proc/self/root", allowed+"/magic"))
	tests := map[string]struct {
		kind   fault.Kind
		reason string
	}{
		"/absolute":        {fault.Denied, "HOST_PATH_ESCAPES"},
		"/absolute/secret": {fault.Denied, "HOST_PATH_ESCAPES"},
		"/relative":        {fault.Denied, "HOST_PATH_ESCAPES"},
		"/magic/etc":       {fault.Denied, "HOST_PATH_ESCAPES"},
		"/none":            {fault.NotFound, "HOST_PATH_MISSING"},
		"/sub/file/x":      {fault.NotFound, "HOST_PATH_MISSING"},
	}
	for path, want := range tests {
		err := Mount(allowed, allowed+path, filepath.Join(places, "x"))
		if !errors.Is(err, want.kind) || fault.Reason(err) != want.reason {
			t.Errorf("%s: got %v (%s), want %s", path, err, fault.Reason(err), want.reason)
		}
	}
	if mounts, err := below(places); err != nil || len(mounts) > 0 {
		t.Errorf("mounted: %v, %v", mounts, err)
	}
}

// What was mounted is never removed with the place where it was mounted, not even
// what lies below a mount within it.
func TestClear_LeavesTheNodeAlone(t *testing.T) {
	allowed, outside, places := ground(t)
	must(t, os.Mkdir(allowed+"/inner", 0o755))
	must(t, unix.Mount(outside, allowed+"/inner", "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(allowed+"/inner", unix.MNT_DETACH)) })
	must(t, Mount(allowed, allowed, filepath.Join(places, "a")))
	must(t, Mount(allowed, allowed+"/sub", filepath.Join(places, "b")))
	if got, err := os.ReadFile(filepath.Join(places, "a/inner/secret")); err != nil || string(got) != "secret" {
		t.Errorf("what is mounted in it: got %q, %v", got, err)
	}
	for range 2 {
		must(t, Clear(places))
	}
	for _, file := range []string{allowed + "/sub/file", outside + "/secret"} {
		if _, err := os.Stat(file); err != nil {
			t.Errorf("removed: %v", err)
		}
	}
	if _, err := os.Stat(allowed + "/inner/secret"); err != nil {
		t.Errorf("a mount of the node is gone: %v", err)
	}
	if _, err := os.Lstat(places); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the places are left: %v", err)
	}
}
