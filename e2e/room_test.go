package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// free is how much room the filesystem of all durable data has.
func free(t *testing.T, b *bed.Bed) int64 {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(b.Paths.Var(""), &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// TestNode_IMG4_PullFillsTheDisk pulls an image that is larger than the disk, beside a
// sandbox that runs.
func TestNode_IMG4_PullFillsTheDisk(t *testing.T) {
	const whole, large = 160 << 20, 200 << 20
	b := bed.New(t, bed.Options{
		Composition: "node", Disabled: nodeAlone,
		Node: "pressure: {disk_min_free: 1MiB, disk_min_free_percent: 0}\nimages: {gc: {high_percent: 0, min_free: 4MiB, min_age: 0s, import_grace: 1h}}",
	})
	b.PutStateOn(fmt.Sprint(whole))
	b.Start()
	b.WaitReady()
	importProbe(t, b)
	uid := ensure(t, b, "beside", spec(always, probe("c", "sleep")))
	before := await(t, b, uid, "running", running)
	registry := serveOn(t, b.Listen(), nil)
	ref := push(t, registry, larger(t, probeImage(t), large), "test/large")
	room := free(t, b)

	for _, way := range []string{"the first time", "again"} {
		r := b.CLI("--node-socket", b.HostSocket(), "image", "pull", ref)
		if r.Code != 1 || !strings.Contains(r.Stderr, "the disk is full") || !strings.Contains(r.Stderr, "free on the filesystem of") ||
			!strings.Contains(r.Stderr, "MiB compressed") {
			t.Errorf("pull %s: exit code %d, want 1 with the figures\n%s", way, r.Code, r.Stderr)
		}
		bed.Eventually(t, time.Minute, "what came in part is gone", func(context.Context) (bool, string) {
			now := free(t, b)
			return now > room-5<<20, fmt.Sprintf("%d of %d bytes are free", now, room)
		})
	}
	if got := await(t, b, uid, "running", running); got.GetAttempt() != before.GetAttempt() {
		t.Errorf("what ran beside it is in attempt %d, was in %d", got.GetAttempt(), before.GetAttempt())
	}
	b.GrowState("900m")
	b.OK("--node-socket", b.HostSocket(), "image", "pull", ref)
	if r := b.CLI("--node-socket", b.HostSocket(), "image", "ls"); !strings.Contains(r.Stdout, ref) {
		t.Errorf("pulled, and not listed:\n%s", r.Stdout)
	}

	// The way back: it goes when the disk asks for that, what is in use stays.
	archive := filepath.Join(t.TempDir(), "probe.tar")
	b.OK("--node-socket", b.HostSocket(), "image", "export", bed.ProbeImage, archive)
	if info, err := os.Stat(archive); err != nil || info.Size() == 0 {
		t.Errorf("export: %v, %v", info, err)
	}
	b.OK("--node-socket", b.HostSocket(), "image", "prune")
	list := b.OK("--node-socket", b.HostSocket(), "image", "ls")
	if strings.Contains(list, ref) || !strings.Contains(list, bed.ProbeImage) {
		t.Errorf("after a prune:\n%s", list)
	}
	removeAll(t, b, uid)
	settled(t, b)
}

// shortOfMemory is what no machine has.
const shortOfMemory = "pressure: {memory_min_free: 1TiB, hold: 0s}"

// hasAppArmor says whether this machine can give workloads a profile of AppArmor.
func hasAppArmor() bool {
	on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	_, folder := os.Stat("/sys/kernel/security/apparmor")
	_, parser := os.Stat("/sbin/apparmor_parser")
	return err == nil && strings.HasPrefix(string(on), "Y") && folder == nil && parser == nil && os.Getenv("container") == ""
}

// confinesWith says whether a node tells that it confines with AppArmor, or that it does
// not and why.
func confinesWith(all []*resourcev1.Condition, armor bool) bool {
	for _, c := range all {
		if c.GetType() == "AppArmor" {
			const no, yes = resourcev1.ConditionState_CONDITION_STATE_FALSE, resourcev1.ConditionState_CONDITION_STATE_TRUE
			return armor && c.GetState() == yes && c.GetReason() == "" || !armor && c.GetState() == no && c.GetReason() != ""
		}
	}
	return false
}

// TestNode_MemoryPressure has a node run short of memory by what its configuration asks
// for.
func TestNode_MemoryPressure(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	b.WaitNodeReady()
	uid := ensure(t, b, "accepted", spec(always, probe("c", "sleep")))
	before := await(t, b, uid, "running", running)
	pressed := func(want bool) {
		t.Helper()
		bed.Eventually(t, time.Minute, fmt.Sprintf("the node's record says MemoryPressure %t and Ready", want), func(ctx context.Context) (bool, string) {
			p, err := b.Presence(ctx)
			states := map[string]resourcev1.ConditionState{}
			for _, c := range p.GetConditions() {
				states[c.GetType()] = c.GetState()
			}
			const no, yes = resourcev1.ConditionState_CONDITION_STATE_FALSE, resourcev1.ConditionState_CONDITION_STATE_TRUE
			memory := no
			if want {
				memory = yes
			}
			list := b.CLI("node", "ls").Stdout
			good := p.GetReady() && states["MemoryPressure"] == memory && states["DiskPressure"] == no && states["PIDPressure"] == no &&
				confinesWith(p.GetConditions(), hasAppArmor()) &&
				want == strings.Contains(list, "MemoryPressure")
			return good, fmt.Sprint(p, err, list)
		})
	}
	pressed(false)

	b.WriteConfig(shortOfMemory)
	b.Kill("sandboxhost")
	b.WaitNodeReady()
	pressed(true)
	refused := &sandboxhostv1.EnsureSandboxRequest{Uid: newUID(), Name: "refused", Generation: 1, Manager: "local", Spec: spec(always, probe("c", "sleep"))}
	_, err := b.Host().EnsureSandbox(t.Context(), refused)
	if fault.KindOf(err) != fault.Exhausted || fault.Reason(err) != "MEMORY_PRESSURE" || !strings.Contains(err.Error(), "memory available, 1.0 TiB have to be") {
		t.Errorf("a new sandbox: got %v, want Exhausted with the figures", err)
	}
	waits := b.Begin("run", "-d", "--name", "waits", bed.ProbeImage, "--", "sleep")
	bed.Eventually(t, time.Minute, "the sandbox waits because of it", func(context.Context) (bool, string) {
		said := b.CLI("ps", "-o", "yaml").Stdout + waits.Stderr()
		return strings.Contains(said, "under MemoryPressure"), said
	})

	// What was accepted goes on, restarts, and can be removed.
	if got := await(t, b, uid, "running still", running); got.GetAttempt() != before.GetAttempt() {
		t.Errorf("what was accepted is in attempt %d, was in %d", got.GetAttempt(), before.GetAttempt())
	}
	signal(t, before, syscall.SIGKILL)
	await(t, b, uid, "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == before.GetAttempt()+1 })
	removeAll(t, b, uid)

	b.WriteConfig("")
	b.Kill("sandboxhost")
	b.WaitNodeReady()
	pressed(false)
	if r := waits.Wait(); r.Code != 0 {
		t.Errorf("the sandbox that waited: exit code %d\n%s", r.Code, r.Stderr)
	}
	b.OK("rm", "waits")
}
