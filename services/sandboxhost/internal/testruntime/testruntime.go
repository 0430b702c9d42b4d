// Package testruntime starts a containerd of its own for a test, with its root
// in a folder of the test, and ends it with all that it left.
//
// It uses the binaries of this repository, and fails a test where they are
// missing: nothing that needs a real runtime is skipped. It must never touch a
// containerd, shim or mount that belongs to another test. It is for tests only
// and stands outside the trail.
package testruntime

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"staddle.internal/services/sandboxhost/internal/cgroup"
)

// BinVariable names the folder of binaries, where it is not the repository's.
const BinVariable = "BINARIES_UNDER_TEST"

// startLimit bounds how long containerd takes to answer.
const startLimit = 30 * time.Second

// Namespace of all containers.
const Namespace = "staddle"

// Runtime is a running containerd.
type Runtime struct {
	// Dir is the test's folder, short enough for sockets.
	Dir string
	// Address is containerd's socket.
	Address string

	bin string
	cmd *exec.Cmd
	out bytes.Buffer
}

// Start starts one, and ends it with the test.
func Start(t testing.TB) *Runtime {
	t.Helper()
	dir, err := os.MkdirTemp("", "sd")
	if err != nil {
		t.Fatal(err)
	}
	r := &Runtime{Dir: dir, Address: filepath.Join(dir, "c.sock"), bin: bin(t)}
	config := fmt.Sprintf(`version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.podsandbox.controller.v1.podsandbox", "io.containerd.nri.v1.nri"]
[grpc]
address = %q
[ttrpc]
address = %q
`, filepath.Join(dir, "root"), filepath.Join(dir, "state"), r.Address, r.Address+".ttrpc")
	if err := os.WriteFile(r.config(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.clean(t) })
	r.Up(t)
	return r
}

func (r *Runtime) config() string { return filepath.Join(r.Dir, "config.toml") }

// Bin is the folder of binaries.
func (r *Runtime) Bin() string { return r.bin }

// bin finds the folder of binaries.
func bin(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv(BinVariable); dir != "" {
		return dir
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "bin", "containerd")); err == nil {
			return filepath.Join(dir, "bin")
		}
	}
	t.Fatalf("no bin/containerd above this package: run make tools, or set %s", BinVariable)
	return ""
}

// Up starts containerd, unless it runs, and waits until it answers.
func (r *Runtime) Up(t testing.TB) {
	t.Helper()
	if r.cmd != nil {
		return
	}
	cmd := exec.Command(filepath.Join(r.bin, "containerd"), "--log-level", "warn", "--config", r.config())
	cmd.Env = append(os.Environ(), "PATH="+r.bin+":"+os.Getenv("PATH"))
	r.out.Reset()
	cmd.Stdout, cmd.Stderr = &r.out, &r.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.cmd = cmd
	client := r.Client(t)
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := client.Version(ctx)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("containerd does not answer: %v\n%s", err, r.out.String())
		}
	}
}

// Client connects to it, until the test ends.
func (r *Runtime) Client(t testing.TB) *containerd.Client {
	t.Helper()
	client, err := containerd.New(r.Address, containerd.WithDefaultNamespace(Namespace))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close client: %v", err)
		}
	})
	return client
}

// Group is a control group of the test's own, for all workloads.
func (r *Runtime) Group() string { return "sdtest-" + filepath.Base(r.Dir) }

// Kill ends containerd by SIGKILL and leaves everything else as it is.
func (r *Runtime) Kill(t testing.TB) {
	t.Helper()
	if r.cmd == nil {
		return
	}
	if err := r.cmd.Process.Kill(); err != nil {
		t.Errorf("kill containerd: %v", err)
	}
	var exit *exec.ExitError
	if err := r.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Errorf("wait for containerd: %v", err)
	}
	r.cmd = nil
}

// Shims lists the shims of this containerd.
func (r *Runtime) Shims(t testing.TB) []int {
	t.Helper()
	procs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", p.Name(), "cmdline"))
		if err != nil {
			continue // it ended
		}
		args := strings.Split(string(raw), "\x00")
		if filepath.Base(args[0]) == "containerd-shim-runc-v2" && slices.Contains(args, r.Address) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// clean ends containerd and the shims, and removes all mounts and files.
func (r *Runtime) clean(t testing.TB) {
	r.Kill(t)
	if t.Failed() {
		t.Logf("containerd said:\n%s", tail(r.out.String()))
	}
	for _, pid := range r.Shims(t) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Errorf("kill shim: %v", err)
		}
	}
	if groups, err := cgroup.Open(); err != nil {
		t.Errorf("find control groups: %v", err)
	} else if err := groups.Clear("/" + r.Group()); err != nil {
		t.Errorf("clear control group: %v", err)
	}
	for _, path := range Mounts(t, r.Dir) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("unmount %s: %v", path, err)
		}
	}
	if err := os.RemoveAll(r.Dir); err != nil {
		t.Errorf("remove %s: %v", r.Dir, err)
	}
}

func tail(s string) string {
	const most = 8 << 10
	if len(s) > most {
		return s[len(s)-most:]
	}
	return s
}

// Mounts lists the mounts below a folder, the innermost first.
func Mounts(t testing.TB, dir string) []string {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			found = append(found, fields[4])
		}
	}
	slices.Reverse(found)
	return found
}
