package inroot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// rootAt opens a folder as the root that it would be for a process in it.
func rootAt(t *testing.T, dir string) *Root {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := &Root{f}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRoot_NoPathAndNoLinkLeadsOut(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "root")
	check(t, os.MkdirAll(filepath.Join(dir, "etc"), 0o755))
	check(t, os.WriteFile(filepath.Join(top, "passwd"), []byte("outside"), 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "passwd"), []byte("inside"), 0o600))
	for link, target := range map[string]string{
		"etc/absolute": "/passwd", "etc/up": "../../../../../../passwd", "etc/chain": "absolute",
		"etc/real": filepath.Join(top, "passwd"), "etc/proc": "/proc/self/root/" + top + "/passwd",
	} {
		check(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	r := rootAt(t, dir)
	for path, want := range map[string]string{
		"/passwd": "inside", "../passwd": "inside", "/etc/absolute": "inside", "/etc/up": "inside", "/etc/chain": "inside",
		"/etc/real": "", "/etc/proc": "", "/etc/missing": "",
	} {
		if got, err := r.ReadFile(path, 1<<20); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
	if got, err := r.ReadFile("/passwd", 3); err != nil || string(got) != "ins" {
		t.Errorf("got %q, %v, want it cut after 3 bytes", got, err)
	}
}

func TestRoot_OpensNothingButRegularFiles(t *testing.T) {
	dir := t.TempDir()
	check(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)) // opening it would wait for a writer
	check(t, os.Symlink("/fifo", filepath.Join(dir, "link")))
	r := rootAt(t, dir)
	for _, path := range []string{"/fifo", "/link", "/"} {
		if got, err := r.ReadFile(path, 1<<20); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: got %q, %v, want it refused", path, got, err)
		}
	}
}

func TestRoot_OfThisProcess(t *testing.T) {
	r, err := OfProcess(os.Getpid())
	check(t, err)
	defer func() { check(t, r.Close()) }()
	want, err := os.ReadFile("/etc/passwd")
	check(t, err)
	if got, err := r.ReadFile("/etc/passwd", 1<<20); err != nil || string(got) != string(want) {
		t.Errorf("got %d bytes, %v, want the %d of /etc/passwd", len(got), err, len(want))
	}
	const none = 1 << 30
	if _, err := OfProcess(none); err == nil {
		t.Error("got no error for a process that is not there")
	}
}
