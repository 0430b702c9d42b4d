package teardown

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/process"
	"staddle.internal/services/sandboxhost/internal/cgroup"
	"staddle.internal/services/sandboxhost/internal/engine"
)

// newDown is the take-down of a node of this test alone.
func newDown(t *testing.T) down {
	t.Helper()
	root := t.TempDir()
	groups, err := cgroup.Open()
	if err != nil {
		t.Fatal(err)
	}
	d := down{
		cfg:    Config{Paths: config.Paths{Root: root}, Node: &config.Node{}, Limit: time.Millisecond},
		log:    slog.New(slog.NewTextHandler(t.Output(), nil)),
		groups: groups,
	}
	d.cfg.Node.Sandboxes.CgroupParent = "/staddle-test-" + filepath.Base(filepath.Dir(root)) + ".slice"
	t.Cleanup(func() {
		if err := groups.Clear(d.cfg.Node.Sandboxes.CgroupParent); err != nil {
			t.Error(err)
		}
	})
	return d
}

// sleeper is a process that calls itself name, in a group below the parent.
func sleeper(t *testing.T, d down, name, group string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.Args[0] = name
	return enter(t, d, cmd, group)
}

// enter starts a process in a group below the parent.
func enter(t *testing.T, d down, cmd *exec.Cmd, group string) *exec.Cmd {
	t.Helper()
	group = filepath.Join(d.cfg.Node.Sandboxes.CgroupParent, group)
	if err := d.groups.Ensure(group); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var entered int
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} { // all hierarchies, of either version
		files, err := filepath.Glob(pattern + group + "/cgroup.procs")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.WriteFile(file, strconv.AppendInt(nil, int64(cmd.Process.Pid), 10), 0); err != nil {
				t.Fatal(err)
			}
			entered++
		}
	}
	if entered == 0 {
		t.Fatalf("no hierarchy has group %s", group)
	}
	return cmd
}

// A workload says itself what it is called: under the name of a shim it ends like
// any other, and a shim stays for its turn.
func TestDown_EndsWorkloadsWhateverTheirName(t *testing.T) {
	d := newDown(t)
	workload := sleeper(t, d, shimProgram, "01k00000000000000000000000/web")
	shim := sleeper(t, d, shimProgram, engine.ShimGroup)
	if err := d.endWorkloads(t.Context()); err != nil {
		t.Fatal(err)
	}
	pids, err := d.groups.Processes(d.cfg.Node.Sandboxes.CgroupParent)
	if err != nil {
		t.Fatal(err)
	}
	_ = workload.Wait() // it was ended, or this does not return
	if len(pids) == 0 || pids[0] != shim.Process.Pid {
		t.Errorf("left are %v, want the shim %d alone", pids, shim.Process.Pid)
	}
}

func TestDown_NeverRemovesThroughAMount(t *testing.T) {
	d := newDown(t)
	link := filepath.Join(t.TempDir(), "link") // the table of mounts does not know it
	if err := os.Symlink(d.cfg.Paths.Root, link); err != nil {
		t.Fatal(err)
	}
	var err error
	if d.cfg.Paths, err = config.At(link); err != nil {
		t.Fatal(err)
	}
	data, mountPoint := filepath.Join(t.TempDir(), "data"), filepath.Join(d.cfg.Paths.Run(), "storage", "disk")
	kept := filepath.Join(data, "kept")
	err = errors.Join(os.MkdirAll(data, 0o700), os.MkdirAll(mountPoint, 0o700), os.WriteFile(kept, nil, 0o600),
		unix.Mount(data, mountPoint, "", unix.MS_BIND, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mountPoint, unix.MNT_DETACH) })
	if err := d.emptyRun(); err == nil {
		t.Error("emptied below a mount")
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what was mounted is gone: %v", err)
	}
	if err := errors.Join(d.unmount(), d.emptyRun()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what was mounted is gone: %v", err)
	}
}

// A node whose sockets somebody removed looks as if it did not run. Its locks say
// that it does.
func TestRun_RefusesWhileAProcessHoldsItsData(t *testing.T) {
	d := newDown(t)
	lock := d.cfg.Paths.Lock("sandboxhost")
	if err := errors.Join(os.MkdirAll(filepath.Dir(lock), 0o700), os.WriteFile(lock, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	release, err := process.Hold(t.Context(), d.cfg.Paths, "sandboxhost")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := Run(t.Context(), d.cfg, d.log); !errors.Is(err, fault.Conflict) {
		t.Errorf("got %v, want Conflict", err)
	}
}

// shimProgram is the program of a shim, which a workload may call itself too.
const shimProgram = "containerd-shim-runc-v2"
