package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"staddle.internal/e2e/bed"
)

// disk is a filesystem of its own that can be stopped from taking anything.
type disk struct {
	t      *testing.T
	dir    string
	frozen bool
}

// newDisk mounts a new one until the end of the test, whatever is registered after it.
func newDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{t: t, dir: t.TempDir()}
	image := filepath.Join(t.TempDir(), "image")
	d.run("truncate", "-s", "64M", image)
	d.run("mkfs.ext4", "-q", image)
	d.run("mount", "-o", "loop", image, d.dir)
	t.Cleanup(func() {
		d.freeze(false)
		d.run("umount", d.dir)
	})
	return d
}

func (d *disk) run(name string, args ...string) {
	d.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// freeze stops it, or lets it go on.
func (d *disk) freeze(stop bool) {
	d.t.Helper()
	if d.frozen == stop {
		return
	}
	const freeze, thaw = 0xc0045877, 0xc0045878 // FIFREEZE and FITHAW of linux/fs.h
	request := uint(thaw)
	if stop {
		request = freeze
	}
	f, err := os.Open(d.dir)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			d.t.Error(err)
		}
	}()
	if err := unix.IoctlSetInt(int(f.Fd()), request, 0); err != nil {
		d.t.Fatal(err)
	}
	d.frozen = stop
}

// written is how many bytes a process has written in its life.
func written(t *testing.T, pid uint32) (n int64) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if _, err := fmt.Sscanf(line, "wchar: %d", &n); err == nil {
			return n
		}
	}
	t.Fatalf("%q has no wchar", raw)
	return 0
}

// While the disk of the output takes nothing, a workload that chose not to wait goes on,
// and one that did not choose stands. Afterwards both go on, and what was lost is told.
func TestLogs_AStalledDiskHoldsUpOnlyThoseWhoWait(t *testing.T) {
	d := newDisk(t)
	b := bed.New(t, bed.Options{})
	t.Cleanup(func() { d.freeze(false) }) // before the node is stopped, which waits for the disk
	for _, name := range []string{"logs", "logs-removed"} {
		at := filepath.Join(d.dir, name)
		if err := os.MkdirAll(b.Paths.Var("sandboxhost"), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(at, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at, 0o777); err != nil { //nolint:gosec // a folder of this test
			t.Fatal(err)
		}
		if err := os.Symlink(at, filepath.Join(b.Paths.Var("sandboxhost"), name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(d.dir), 0o755); err != nil { //nolint:gosec // so that the node may pass
		t.Fatal(err)
	}
	b.Start()
	b.WaitReady()
	importProbe(t, b)
	const flood = "flood, \"2000000000\", \"4000000\""
	apply(t, b, strings.Replace(sandboxYAML("goes", flood, ""), "name: main,", "name: main, log_mode: NON_BLOCKING,", 1)+sandboxYAML("stands", flood, ""))
	awaitPhase(t, b, "goes", "RUNNING")
	awaitPhase(t, b, "stands", "RUNNING")
	goes, stands := pids(onHost(t, b, "goes").GetStatus())["main"], pids(onHost(t, b, "stands").GetStatus())["main"]

	d.freeze(true)
	const more = 12 << 20 // than all pipes hold
	from := written(t, goes)
	bed.Eventually(t, waitLong, "who does not wait goes on", func(context.Context) (bool, string) {
		n := written(t, goes) - from
		return n > more, fmt.Sprint(n)
	})
	stood := written(t, stands)
	from = written(t, goes)
	bed.Eventually(t, waitLong, "who does not wait goes on still", func(context.Context) (bool, string) {
		n := written(t, goes) - from
		return n > more, fmt.Sprint(n)
	})
	if n := written(t, stands) - stood; n != 0 {
		t.Errorf("who waits for the disk wrote %d bytes while it took nothing", n)
	}
	d.freeze(false)
	for name, pid := range map[string]uint32{"goes": goes, "stands": stands} {
		from := written(t, pid)
		bed.Eventually(t, waitLong, name+" goes on", func(context.Context) (bool, string) {
			n := written(t, pid) - from
			return n > more, fmt.Sprint(n)
		})
	}
	bed.Eventually(t, waitLong, "the loss is told", func(context.Context) (bool, string) {
		r := b.CLI("events", "goes")
		return strings.Contains(r.Stdout, "OUTPUT_DROPPED"), r.Stdout + r.Stderr
	})
	if r := b.CLI("events", "stands"); strings.Contains(r.Stdout, "OUTPUT_") {
		t.Errorf("a loss is told of who waits: %s", r.Stdout)
	}
	if r := b.CLI("logs", "goes", "--tail", "1"); r.Code != 0 || r.Stdout != strings.Repeat("x", 99)+"\n" {
		t.Errorf("logs: code %d, %q, %s", r.Code, r.Stdout, r.Stderr)
	}
	for name, pid := range map[string]uint32{"goes": goes, "stands": stands} {
		if now := pids(onHost(t, b, name).GetStatus())["main"]; now != pid {
			t.Errorf("%s runs as %d, want %d as before", name, now, pid)
		}
	}
}
