package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// rootfs is where the root filesystem of a sandbox's container is mounted on the node.
func rootfs(t *testing.T, b *bed.Bed, uid string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(b.Paths.Run(), "containerd", "io.containerd.runtime.v2.task", "*", strings.ToLower(uid)+"-*", "rootfs"))
	if err != nil || len(found) != 1 {
		t.Fatalf("root filesystems of %s: %v, %v", uid, found, err)
	}
	return found[0]
}

// holder is a process of the node that is not ours, until the test ends.
func holder(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// hang stops the only shim that the sandboxes named before do not have.
func hang(t *testing.T, b *bed.Bed, before []int) int {
	t.Helper()
	for _, pid := range b.Shims() {
		if !strings.Contains(sprint(before), fmt.Sprint(pid)) {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("no shim beside %v", before)
	return 0
}

// A registry that stands still, a shim that hangs and a mount that somebody holds are each
// the trouble of one sandbox: others come, go and are adopted as if there were none.
func TestNode_BlockedOnesDelayNoOther(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	registry := newSlow() // never goes on
	stalled := push(t, serveOn(t, b.Listen(), registry.wrap), larger(t, probeImage(t), 1<<20), "test/stalled:1")
	hung := ensure(t, b, "hung", spec(always, probe("c", "sleep")))
	wasHung := pids(await(t, b, hung, "running", running))
	shim := hang(t, b, nil)
	busy := ensure(t, b, "busy", spec(always, probe("c", "sleep")))
	await(t, b, busy, "running", running)
	waits := ensure(t, b, "waits", spec(never, &resourcev1.ContainerSpec{Name: "c", Image: stalled}))
	await(t, b, waits, "pulling", pulling)
	silent := func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetReason() == "SHIM_SILENT" }
	await(t, b, hung, "shown as hung", silent)
	holder(t, rootfs(t, b, busy), "sleep", "600")
	if _, err := b.Host().RemoveSandbox(t.Context(), &sandboxhostv1.RemoveSandboxRequest{Uid: busy, Manager: "local"}); err != nil {
		t.Fatal(err)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			b.Kill("sandboxhost")
			b.WaitReady()
		}
		for i := range 3 {
			uid := ensure(t, b, fmt.Sprintf("other-%d", i), spec(always, probe("c", "sleep")))
			await(t, b, uid, "running", running)
			remove(t, b, uid)
		}
		if got := await(t, b, hung, "shown as hung", silent); sprint(pids(got)) != sprint(wasHung) || got.GetAttempt() != 1 {
			t.Errorf("got %v, want it as it was: %v", got, wasHung)
		}
		await(t, b, waits, "pulling still", pulling)
	}
	remove(t, b, waits)
	remove(t, b, busy) // holds no more than what the holder looks at

	// The hung one is removed for certain, and its workload with it.
	last := remove(t, b, hung)
	if len(last.GetExits()) != 1 {
		t.Errorf("got exits %v, want one", last.GetExits())
	}
	bed.Eventually(t, waitLong, "the hung shim is gone", func(context.Context) (bool, string) {
		return !bed.Alive(shim) && !bed.Alive(int(wasHung["c"])), fmt.Sprint(shim, wasHung)
	})
	settled(t, b)
}

// A shim that was stopped for a while costs its sandbox nothing.
func TestNode_ShimThatGoesOnIsForgiven(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	uid := ensure(t, b, "web", spec(always, probe("c", "count", "5ms")))
	was := pids(await(t, b, uid, "running", running))
	shim := hang(t, b, nil)
	await(t, b, uid, "shown as hung", func(s *resourcev1.SandboxStatus) bool { return s.GetReason() == "SHIM_SILENT" })
	if r := b.CLI("--node-socket", b.HostSocket(), "exec", "web", "--", "probe", "where"); r.Code != 125 || !strings.Contains(r.Stderr, "its shim does not answer") {
		t.Errorf("exec beside a shim that hangs: %+v", r)
	}
	if err := syscall.Kill(shim, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(t, b, uid, "as it was", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetReason() == "" })
	samePIDs(t, b, uid, was)
	remove(t, b, uid)
	settled(t, b)
}

// TestNode_LIF10_ForeignNamespaceHoldsNothing copies the mounts of 5 sandboxes instead of
// 20 into the namespace of a stranger, and makes others in their place while it lives.
func TestNode_LIF10_ForeignNamespaceHoldsNothing(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	for round := range 2 {
		var uids []string
		for i := range 5 {
			uids = append(uids, ensure(t, b, fmt.Sprintf("web-%d", i), spec(always, probe("c", "sleep"))))
		}
		for _, uid := range uids {
			await(t, b, uid, "running", running)
		}
		if round == 0 {
			holder(t, "/", "unshare", "-m", "--propagation", "unchanged", "sleep", "1000")
		}
		removeAll(t, b, uids...)
		settled(t, b)
	}
}
