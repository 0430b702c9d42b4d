package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"staddle.internal/e2e/bed"
)

// newer is a folder with programs of the installation that are another file each,
// and work the same.
func newer(t *testing.T, b *bed.Bed, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		raw, err := os.ReadFile(filepath.Join(b.Paths.Root, "bin", name))
		if err != nil {
			t.Fatal(err)
		}
		writeProgram(t, filepath.Join(dir, name), append(raw, "newer"...)) // what follows an ELF file is not read
	}
	return dir
}

func writeProgram(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
}

func digest(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(raw))
}

// programsOf is which program each component runs.
func programsOf(t *testing.T, b *bed.Bed) map[string]string {
	t.Helper()
	graph, err := b.Graph(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	for name, c := range graph {
		sums[name] = digest(t, fmt.Sprintf("/proc/%d/exe", c.GetPid()))
	}
	return sums
}

// A runner is upgraded under its sandboxes: nothing of them changes, who follows
// their output goes on, and binaries that do not become ready are put back.
func TestMachine_UpgradeUnderSandboxes(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	s := settle(t, b, 2)
	uid := ensure(t, b, "counter", spec(always, probe("c", "count", "1ms")))
	s.others = []string{uid}
	await(t, b, uid, "running", running)
	var followed bed.Text
	follow := b.StartCLITo(&followed, "--node-socket", b.HostSocket(), "logs", "-f", uid)
	t.Cleanup(func() {
		_ = follow.Process.Kill()
		_ = follow.Wait()
	})
	goesOn := func(when string) {
		t.Helper()
		b.WaitReady()
		s.same(t, b, when)
		was := counted(t, followed.String())
		bed.Eventually(t, waitLong, "output is followed on "+when, func(context.Context) (bool, string) {
			now := counted(t, followed.String())
			return now > was+100, fmt.Sprint(now)
		})
	}

	before := programsOf(t, b)
	dir := newer(t, b, "staddle-node", "staddle-coordinator", "containerd", "runc")
	b.OK("upgrade", "--binaries", dir)
	bed.Eventually(t, waitLong, "the supervisor, the same process, runs the new program", func(context.Context) (bool, string) {
		now := digest(t, fmt.Sprintf("/proc/%d/exe", supervisor.Pid))
		return now == digest(t, filepath.Join(dir, "staddle-node")), now
	})
	goesOn("after an upgrade")
	for name, sum := range programsOf(t, b) {
		if sum == before[name] {
			t.Errorf("%s still runs the old program", name)
		}
	}
	for _, name := range []string{"staddle-node", "staddle-coordinator", "containerd", "runc"} {
		if digest(t, filepath.Join(b.Paths.Root, "bin", name)) != digest(t, filepath.Join(dir, name)) {
			t.Errorf("%s is not installed", name)
		}
	}
	b.OK("upgrade")
	goesOn("after a restart in place")

	// One that checks its configuration and then ends.
	upgraded := programsOf(t, b)
	broken := t.TempDir()
	writeProgram(t, filepath.Join(broken, "staddle-node"), []byte("#!/bin/sh\ncase \"$1 $*\" in *check-config*) exit 0;; storage-agent*) exit 1;; -*) set -- supervisor \"$@\";; esac\n"+
		"exec "+filepath.Join(b.Paths.Root, "bin", "staddle-node")+" \"$@\"\n"))
	r := b.CLI("upgrade", "--binaries", broken)
	if r.Code != 4 || !strings.Contains(r.Stderr, "storage-agent") || !strings.Contains(r.Stderr, "old binaries are back") {
		t.Errorf("a broken program: exit code %d\n%s", r.Code, r.Stderr)
	}
	goesOn("after an upgrade that was put back")
	if now := programsOf(t, b); fmt.Sprint(now) != fmt.Sprint(upgraded) {
		t.Errorf("runs %v, want what ran before: %v", now, upgraded)
	}
	if r := b.CLI("upgrade", "--binaries", t.TempDir()); r.Code != 2 {
		t.Errorf("an empty folder: exit code %d\n%s", r.Code, r.Stderr)
	}

	// The supervisor dies in the middle: what was installed is what runs.
	half := b.StartCLITo(nil, "upgrade", "--binaries", newer(t, b, "staddle-node"))
	ended := make(chan error, 1)
	go func() { ended <- half.Wait() }() // read below
	bed.Eventually(t, waitLong, "the upgrade is half way", func(context.Context) (bool, string) {
		pid := b.PID("storage")
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return strings.Contains(exe, ".next"), fmt.Sprint(exe, err)
	})
	b.KillSupervisor(supervisor)
	if err := <-ended; err == nil {
		t.Error("the command of an upgrade that was broken off ended well")
	}
	b.Start()
	goesOn("after the supervisor was killed in an upgrade")
	if now := programsOf(t, b); fmt.Sprint(now) != fmt.Sprint(upgraded) {
		t.Errorf("runs %v, want what is installed: %v", now, upgraded)
	}
	if left, err := filepath.Glob(filepath.Join(b.Paths.Root, "bin", ".*")); err != nil || len(left) > 0 {
		t.Errorf("left of the upgrade: %v, %v", left, err)
	}
}
