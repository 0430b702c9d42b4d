package e2e

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// drained follows a drain to its end, over restarts of presence, and returns its last
// message. first is called with the first one.
func drained(t *testing.T, b *bed.Bed, req *presencev1.DrainRequest, first func(*presencev1.DrainProgress)) *presencev1.DrainProgress {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var last *presencev1.DrainProgress
	for ctx.Err() == nil {
		stream, err := presencev1.NewPresenceServiceClient(b.Conn("presence")).Drain(ctx, req)
		for err == nil {
			var msg *presencev1.DrainResponse
			if msg, err = stream.Recv(); err != nil {
				break
			}
			last = msg.GetProgress()
			if first != nil {
				first(last)
				first = nil
			}
		}
		if errors.Is(err, io.EOF) {
			return last
		}
		if fault.KindOf(err) != fault.Unavailable {
			t.Fatalf("drain: %v; last: %v", err, last)
		}
	}
	t.Fatalf("drain did not end; last: %v", last)
	return nil
}

// nobodyLives demands that no workload of the bed has a process.
func nobodyLives(t *testing.T, b *bed.Bed, when string) {
	t.Helper()
	if alive := b.Workloads(); len(alive) > 0 {
		t.Errorf("%s: workloads live: %v", when, alive)
	}
}

// A drain is carried through by whoever comes after those who were killed in its
// middle; nothing is placed meanwhile; and everything comes back.
func TestMachine_DrainSurvivesTheDeathOfPresenceAndHost(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	b.OK("disk", "create", "data")
	b.OK("run", "-d", "--name", "plain", bed.ProbeImage, "--", "sleep")
	b.OK("run", "-d", "--name", "deaf", bed.ProbeImage, "--", "deaf")
	b.OK("run", "-d", "--name", "disk", "--disk", "data:/data", bed.ProbeImage, "--", "sleep")
	names := []string{"plain", "deaf", "disk"}
	for _, name := range names {
		awaitPhase(t, b, name, "RUNNING")
	}
	volume := diskPath(t, b)
	if err := os.WriteFile(filepath.Join(volume, "file"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}

	last := drained(t, b, &presencev1.DrainRequest{Reason: "new disks"}, func(*presencev1.DrainProgress) {
		b.Kill("presence")
		b.Kill("sandboxhost")
		b.Kill("presence")
	})
	if last.GetStep() != presencev1.DrainStep_DRAIN_STEP_DONE || last.GetDead() != 3 || last.GetSandboxes() != 3 || last.GetDisks() != 0 {
		t.Errorf("the drain ended with %v, want 3 of 3 dead and no disk mounted", last)
	}
	nobodyLives(t, b, "after the drain")
	if entries, err := filepath.Glob(filepath.Join(b.Paths.Run(), "storage", "*")); err != nil || len(entries) > 0 {
		t.Errorf("mounted after the drain: %v, %v", entries, err)
	}
	for _, name := range names {
		if s := onHost(t, b, name).GetStatus(); s.GetPhase() != resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED || s.GetReason() != "HELD" || s.GetAttempt() != 1 {
			t.Errorf("%s is %v, want STOPPED in attempt 1 with reason HELD", name, s)
		}
	}

	b.WaitReady()
	if out := b.OK("node", "ls"); !strings.Contains(out, "cordoned on the node: new disks") {
		t.Errorf("node ls does not show the cordon:\n%s", out)
	}
	b.OK("apply", "-f", sandboxFile(t, "late"))
	bed.Eventually(t, waitLong, "the scheduler says why it places nothing", func(context.Context) (bool, string) {
		out := b.CLI("get", "sandbox", "late", "-o", "yaml").Stdout
		return strings.Contains(out, "1 cordoned"), out
	})
	// The agent does not fight it, and nor does a start of everything.
	b.KillRunner(supervisor, true)
	b.Start()
	b.WaitReady()
	nobodyLives(t, b, "after a restart of everything")

	b.OK("node", "uncordon", bed.NodeName)
	for _, name := range names {
		awaitPhase(t, b, name, "RUNNING")
		if s := onHost(t, b, name).GetStatus(); s.GetAttempt() != 2 {
			t.Errorf("%s runs in attempt %d after uncordon, want 2", name, s.GetAttempt())
		}
	}
	awaitPhase(t, b, "late", "RUNNING")
	if raw, err := os.ReadFile(filepath.Join(diskPath(t, b), "file")); err != nil || string(raw) != "kept" {
		t.Errorf("the disk holds %q after the drain, %v", raw, err)
	}
	for _, name := range append(names, "late") {
		b.OK("delete", "sandbox", name)
	}
	b.OK("disk", "rm", "data")
	settled(t, b)
}

// sandboxFile is a document of one sandbox.
func sandboxFile(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".yaml")
	text := "kind: Sandbox\nname: " + name + "\nspec:\n  desired: RUNNING\n  containers:\n    - {name: main, image: \"" +
		bed.ProbeImage + "\", args: [sleep]}\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// The deadline of a drain wins over a grace period, and a shutdown ends with the boot.
func TestMachine_DrainWithADeadlineAndShutdown(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	s := spec(always, probe("c", "deaf"))
	s.TerminationGracePeriod = durationpb.New(10 * time.Minute)
	uid := newUID()
	if _, err := b.Host().EnsureSandbox(t.Context(), &sandboxhostv1.EnsureSandboxRequest{
		Uid: uid, Name: "deaf", Generation: 1, Manager: "local", Spec: s,
	}); err != nil {
		t.Fatal(err)
	}
	await(t, b, uid, "running", running)
	began := time.Now()
	last := drained(t, b, &presencev1.DrainRequest{Shutdown: true, KillAfter: durationpb.New(4 * time.Second)}, nil)
	if took := time.Since(began); took < 4*time.Second || took > time.Minute {
		t.Errorf("the drain took %v with a deadline of 4 s and a grace period of 10 minutes", took)
	}
	nobodyLives(t, b, "after the deadline")
	p, err := b.Presence(t.Context())
	if err != nil || last.GetDead() != 1 || p.GetAdmission().GetCordoned() || p.GetReady() {
		t.Errorf("after the drain for a shutdown: %v, presence %v, %v; want 1 dead, not cordoned and not ready", last, p, err)
	}
	b.Reboot(supervisor, "boot-2")
	b.Start()
	b.WaitReady()
	got := await(t, b, uid, "running after the reboot", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == 2 })
	if exits := got.GetExits(); len(exits) != 1 || exits[0].GetSignal() != 9 {
		t.Errorf("exits are %v, want one by signal 9", exits)
	}
}

// A shutdown keeps sandboxes, or stops them first; both times the node finds out
// afterwards how it was.
func TestMachine_ShutdownKeepsOrDrains(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	s := settle(t, b, 2)
	if out := b.OK("shutdown"); !strings.Contains(out, "have stopped") {
		t.Errorf("shutdown says %q", out)
	}
	if left := b.Processes(); len(left) != len(b.Shims()) {
		t.Errorf("after a shutdown these run: %v", left)
	}
	if out := b.OK("shutdown"); !strings.Contains(out, "nothing runs") {
		t.Errorf("a second shutdown says %q", out)
	}
	b.Start()
	b.WaitReady()
	s.same(t, b, "after a shutdown")

	if r := b.CLI("shutdown", "--kill-after", "3s"); r.Code != 2 {
		t.Errorf("--kill-after alone: exit code %d\n%s", r.Code, r.Stderr)
	}
	b.OK("shutdown", "--drain", "--kill-after", "30s")
	if left := b.Workloads(); len(left) > 0 {
		t.Errorf("after a shutdown with drain these processes of sandboxes live: %v", left)
	}
	b.Start()
	b.WaitComponents()
	for _, uid := range s.uids {
		got := await(t, b, uid, "held", func(s *resourcev1.SandboxStatus) bool { return s.GetReason() == "HELD" })
		if exits := got.GetExits(); len(exits) != 1 || exits[0].GetUnknown() {
			t.Errorf("exits are %v, want one that is known", exits)
		}
	}
	b.OK("--node-socket", b.HostSocket(), "node", "uncordon")
	for _, uid := range s.uids {
		await(t, b, uid, "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == 2 })
	}
	b.WaitReady()
}
