package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// removedFolders lists what the node keeps of removed sandboxes.
func removedFolders(t *testing.T, b *bed.Bed) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(b.Paths.Var("sandboxhost"), "logs-removed", "*"))
	must(t, err)
	return found
}

// What removed sandboxes wrote is read by name and by uid, by a later process too, until
// its time is over or there is too much of it, the oldest first.
func TestLogs_OfRemovedSandboxesAreKept(t *testing.T) {
	b, _ := alone(t, bed.Options{Node: "logs: {max_size_removed: 1MiB}"})
	logs := func(args ...string) bed.Result {
		return b.CLI(append([]string{"--node-socket", b.HostSocket(), "logs"}, args...)...)
	}
	wrote := func(name string, args ...string) (uid, text string) {
		uid = ensure(t, b, name, spec(never, probe("main", args...)))
		await(t, b, uid, "ended", func(s *resourcev1.SandboxStatus) bool {
			return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
		})
		text = output(t, b, uid, "main", 1)
		remove(t, b, uid)
		return uid, text
	}
	pair := ensure(t, b, "pair", spec(never, probe("a", "lines", "1"), probe("b", "lines", "2")))
	await(t, b, pair, "ended", func(s *resourcev1.SandboxStatus) bool {
		return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	})
	remove(t, b, pair)
	if r := logs("pair", "-f", "-c", "b"); r.Stdout != "line 0\nline 1\n" || r.Code != 0 {
		t.Errorf("one of two containers: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	for _, args := range [][]string{{"pair"}, {"pair", "--all-containers"}} {
		if r := logs(args...); r.Code != 2 || !strings.Contains(r.Stderr, "name one of a, b") {
			t.Errorf("logs %v of two containers: exit code %d: %s%s", args, r.Code, r.Stdout, r.Stderr)
		}
	}
	_, older := wrote("web", "lines", "3")
	uid, text := wrote("web", "lines", "5000")
	if older == text || text == "" {
		t.Fatalf("%d and %d bytes were written", len(older), len(text))
	}
	reads := func(when string) {
		t.Helper()
		for _, args := range [][]string{{"web"}, {uid}, {strings.ToLower(uid)}, {"-f", "web"}, {"--all-containers", "web"}, {"web", "--container", "main"}, {"web", "--attempt", "1"}} {
			if r := logs(args...); r.Stdout != text || r.Code != 0 {
				t.Errorf("%s: logs %v: exit code %d and %d bytes, want %d: %s", when, args, r.Code, len(r.Stdout), len(text), r.Stderr)
			}
		}
		if r := logs("web", "--tail", "1", "-o", "json"); !strings.Contains(r.Stdout, `"container":"main"`) || r.Code != 0 {
			t.Errorf("%s: as JSON: %d %s%s", when, r.Code, r.Stdout, r.Stderr)
		}
		for _, args := range [][]string{{"never"}, {"web", "-c", "other"}, {"web", "--previous"}, {"web", "--attempt", "2"}} {
			if r := logs(args...); r.Code != 3 {
				t.Errorf("%s: logs %v: exit code %d: %s%s", when, args, r.Code, r.Stdout, r.Stderr)
			}
		}
	}
	reads("after the removal")
	b.Kill("sandboxhost")
	b.WaitReady()
	reads("by the next process")
	settled(t, b)
	if r := b.CLI("--node-socket", b.HostSocket(), "doctor"); strings.Contains(r.Stdout, "logs-removed") {
		t.Errorf("doctor says:\n%s", r.Stdout)
	}

	// Another one makes more than there may be: those before go, and it stays.
	big, flood := wrote("big", "flood", "1000000", "0")
	if len(flood) != 1_000_000 {
		t.Fatalf("%d bytes were written", len(flood))
	}
	bed.Eventually(t, waitLong, "what was removed first is gone", func(context.Context) (bool, string) {
		left := removedFolders(t, b)
		return len(left) == 1 && logs("web").Code == 3, fmt.Sprint(left)
	})
	if r := logs("big"); r.Stdout != flood {
		t.Errorf("of the last one are %d bytes, want %d: %s", len(r.Stdout), len(flood), r.Stderr)
	}

	// While the process is away, its time comes to an end.
	folder := filepath.Join(b.Paths.Var("sandboxhost"), "logs-removed", "local_big_"+strings.ToLower(big))
	long := time.Now().Add(-25 * time.Hour)
	must(t, os.Chtimes(folder, long, long))
	b.Kill("sandboxhost")
	b.WaitReady()
	bed.Eventually(t, waitLong, "nothing is kept", func(context.Context) (bool, string) {
		left := removedFolders(t, b)
		return len(left) == 0, fmt.Sprint(left)
	})
	if r := logs("big"); r.Code != 3 {
		t.Errorf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	settled(t, b)
}

// The host is killed at any moment of a removal: what was written is there whole, in one
// place, and nothing else is left.
func TestLogs_OfRemovedSandboxesSurviveKills(t *testing.T) {
	const rounds = 8
	b, _ := alone(t, bed.Options{})
	want := map[string]string{}
	for i := range rounds {
		uid := ensure(t, b, fmt.Sprint("web-", i), spec(never, probe("main", "lines", "2000")))
		await(t, b, uid, "ended", func(s *resourcev1.SandboxStatus) bool {
			return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
		})
		want[uid] = output(t, b, uid, "main", 1)
		_, err := b.Host().RemoveSandbox(t.Context(), &sandboxhostv1.RemoveSandboxRequest{Uid: uid, Manager: "local"})
		must(t, err)
		if i > 0 { // the first as it comes, the others ever later in what follows
			live := filepath.Join(b.Paths.Var("sandboxhost"), "logs", strings.ToLower(uid))
			for range 200 * i {
				if _, err := os.Stat(live); err != nil {
					break
				}
			}
		}
		b.Kill("sandboxhost")
		b.WaitReady()
		remove(t, b, uid)
	}
	for uid, text := range want {
		if got := output(t, b, uid, "", 0); got != text {
			t.Errorf("of %s are %d bytes, want %d", uid, len(got), len(text))
		}
	}
	if left := removedFolders(t, b); len(left) != rounds {
		t.Errorf("kept are %v", left)
	}
	live, err := os.ReadDir(filepath.Join(b.Paths.Var("sandboxhost"), "logs"))
	if err != nil || len(live) != 0 {
		t.Errorf("of sandboxes that are here there are %v, %v", live, err)
	}
	settled(t, b)
}

// What a sandbox of the cluster wrote is shown when neither the cluster nor the node has
// it any more, and one of the same name comes before it.
func TestLogs_OfRemovedSandboxesOfTheCluster(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	b.OK("run", "--name", "web", bed.ProbeImage, "--", "lines", "100")
	text := b.OK("logs", "web")
	b.OK("rm", "web")
	b.OK("wait", "--for", "removed", "web")
	for _, args := range [][]string{{"logs", "web"}, {"logs", "-f", "web"}, {"--node-socket", b.HostSocket(), "logs", "web"}} {
		if got := b.OK(args...); got != text {
			t.Errorf("%v: got %d bytes, want %d", args, len(got), len(text))
		}
	}
	if r := b.CLI("logs", "never"); r.Code != 3 {
		t.Errorf("of one that never was: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	b.OK("run", "--name", "web", bed.ProbeImage, "--", "lines", "3")
	if got := b.OK("logs", "web"); got != "line 0\nline 1\nline 2\n" {
		t.Errorf("of the present one: %q", got)
	}
	b.OK("rm", "web")
	settled(t, b)
}
