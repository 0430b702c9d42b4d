package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// onHost finds the one sandbox of that name on the node, or nil.
func onHost(t *testing.T, b *bed.Bed, name string) *sandboxhostv1.SandboxState {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := b.Host().ListSandboxes(ctx, &sandboxhostv1.ListSandboxesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.GetSandboxes() {
		if s.GetName() == name {
			return s
		}
	}
	return nil
}

// phase asks the coordinator, through the command line, for a sandbox's phase.
func phase(b *bed.Bed, name string) string {
	r := b.CLI("get", "sandbox", name, "-o", "json")
	if r.Code != 0 {
		return strings.TrimSpace(r.Stderr)
	}
	var record struct {
		Status struct {
			Phase string `json:"phase"`
		} `json:"status"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &record); err != nil {
		return err.Error() + ": " + r.Stdout
	}
	return record.Status.Phase
}

func awaitPhase(t *testing.T, b *bed.Bed, name, want string) {
	t.Helper()
	bed.Eventually(t, time.Minute, "the coordinator shows "+name+" as "+want, func(context.Context) (bool, string) {
		got := phase(b, name)
		return strings.HasSuffix(got, want), got
	})
}

func TestMachine_SandboxThroughTheCluster(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	b.OK("run", "-d", "--name", "web", bed.ProbeImage, "--", "count", "1ms")
	awaitPhase(t, b, "web", "RUNNING")
	host := onHost(t, b, "web")
	before := host.GetStatus()
	same := func(what string) {
		t.Helper()
		b.WaitReady()
		awaitPhase(t, b, "web", "RUNNING")
		got := await(t, b, host.GetUid(), "running", running)
		if sprint(pids(got)) != sprint(pids(before)) {
			t.Fatalf("after %s: pids %v, want %v", what, pids(got), pids(before))
		}
		was := counted(t, output(t, b, host.GetUid(), "", 1))
		bed.Eventually(t, waitLong, "output goes on after "+what, moreThan(t, b, host.GetUid(), "", was))
	}
	for _, name := range []string{"coordinator", "clusteraccess", "storage", "storage-agent", "sandboxhost", "sandbox-agent", "presence", "containerd"} {
		b.Kill(name)
		same("kill of " + name)
	}
	b.KillSupervisor(supervisor)
	supervisor = b.Start()
	same("kill of the supervisor")
	b.KillRunner(supervisor, true)
	b.Start()
	same("kill of everything")

	// What ends while the way to the coordinator is dead arrives afterwards.
	b.OK("run", "-d", "--restart", "never", "--name", "late", bed.ProbeImage, "--", "exit", "3", "1s")
	awaitPhase(t, b, "late", "RUNNING")
	b.Kill("clusteraccess")
	awaitPhase(t, b, "late", "FAILED")

	if r := b.CLI("run", "-d", "--name", "web", bed.ProbeImage); r.Code != 4 {
		t.Errorf("a second sandbox of one name: exit code %d, want 4\n%s", r.Code, r.Stderr)
	}
	b.OK("stop", "web")
	awaitPhase(t, b, "web", "STOPPED")
	b.OK("start", "web")
	awaitPhase(t, b, "web", "RUNNING")
	b.OK("delete", "sandbox", "web")
	b.OK("delete", "sandbox", "late")
	bed.Eventually(t, time.Minute, "records gone", func(context.Context) (bool, string) {
		out := b.OK("get", "sandbox", "-o", "name")
		return strings.TrimSpace(out) == "", out
	})
	settled(t, b)
}

func TestMachine_RebootWithAndWithoutTheCoordinator(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	b.OK("run", "-d", "--name", "kept", bed.ProbeImage, "--", "sleep")
	b.OK("run", "-d", "--name", "doomed", bed.ProbeImage, "--", "sleep")
	awaitPhase(t, b, "kept", "RUNNING")
	awaitPhase(t, b, "doomed", "RUNNING")
	uid := onHost(t, b, "kept").GetUid()

	// A reboot with the coordinator away: what should run does again.
	b.Reboot(supervisor, "boot-2")
	b.WriteConfigWithout("coordinator")
	supervisor = b.Start()
	got := await(t, b, uid, "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == 2 })
	if exit := got.GetExits()[0]; !exit.GetUnknown() {
		t.Errorf("the reboot ended it, but its exit is %v, not unknown", exit)
	}

	// It comes back: everything converges without a restart of the node.
	b.WriteConfig("")
	b.KillRunner(supervisor, false)
	supervisor = b.Start()
	b.WaitReady()
	awaitPhase(t, b, "kept", "RUNNING")
	awaitPhase(t, b, "doomed", "RUNNING")

	// A reboot, and a record deleted before the node is back.
	b.Reboot(supervisor, "boot-3")
	b.WriteConfigOnly("coordinator")
	supervisor = b.Start()
	b.WaitComponents()
	b.OK("delete", "sandbox", "doomed", "--no-wait")
	b.KillRunner(supervisor, false)
	b.WriteConfig("")
	b.Start()
	b.WaitReady()
	awaitPhase(t, b, "kept", "RUNNING")
	bed.Eventually(t, time.Minute, "the deleted one is gone", func(context.Context) (bool, string) {
		return onHost(t, b, "doomed") == nil, sprint(onHost(t, b, "doomed"))
	})
	b.OK("delete", "sandbox", "kept")
	settled(t, b)
}

func TestMachine_EmptySnapshotRemovesNothing(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	b.OK("run", "-d", "--name", "web", bed.ProbeImage, "--", "sleep")
	awaitPhase(t, b, "web", "RUNNING")
	host := onHost(t, b, "web")
	// The cluster's store is lost; a new, empty one takes its place under the
	// same certificates.
	b.KillRunner(supervisor, false)
	if err := os.RemoveAll(filepath.Join(b.Paths.Var("coordinator"), "etcd")); err != nil {
		t.Fatal(err)
	}
	b.Start()
	b.WaitReady()
	// A second sandbox goes the whole way, so the snapshot was live and acted on.
	b.OK("run", "-d", "--name", "fresh", bed.ProbeImage, "--", "sleep")
	awaitPhase(t, b, "fresh", "RUNNING")
	got := await(t, b, host.GetUid(), "running", running)
	if sprint(pids(got)) != sprint(pids(host.GetStatus())) {
		t.Fatalf("an empty snapshot changed the sandbox: %v, want %v", got, host.GetStatus())
	}
}

// copyTree copies a folder with owners and modes.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp -a %s %s: %v: %s", from, to, err, out)
	}
}

// A store that was put back to a copy, and has grown past what the node knew, does
// not know of what came after the copy.
func TestMachine_OlderMirrorRemovesNothing(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	b.OK("run", "-d", "--name", "old", bed.ProbeImage, "--", "sleep")
	awaitPhase(t, b, "old", "RUNNING")
	store := filepath.Join(b.Paths.Var("coordinator"), "etcd")
	b.KillRunner(supervisor, false)
	copied := filepath.Join(t.TempDir(), "etcd")
	copyTree(t, store, copied)
	supervisor = b.Start()
	b.WaitReady()
	b.OK("run", "-d", "--name", "web", bed.ProbeImage, "--", "sleep")
	awaitPhase(t, b, "web", "RUNNING")
	apply(t, b, serviceYAML("web", "app: web", "7000", ""))
	awaitService(t, b, "web", true)
	web, old := onHost(t, b, "web"), onHost(t, b, "old")

	b.KillRunner(supervisor, false)
	if err := os.RemoveAll(store); err != nil {
		t.Fatal(err)
	}
	copyTree(t, copied, store)
	b.Start()
	b.WaitReady()
	if out := b.OK("get", "sandbox", "-o", "name"); strings.TrimSpace(out) != old.GetUid() {
		t.Fatalf("the store was put back, and shows:\n%s", out)
	}
	// Others go the whole way, until the history is longer than the one that was lost.
	for i := range 10 {
		name := fmt.Sprintf("fresh%d", i)
		b.OK("run", "-d", "--name", name, bed.ProbeImage, "--", "sleep")
		awaitPhase(t, b, name, "RUNNING")
		b.OK("delete", "sandbox", name)
	}
	b.Kill("sandbox-agent")
	b.Kill("clusteraccess")
	b.Kill("coordinator")
	b.WaitReady()
	b.OK("run", "-d", "--name", "last", bed.ProbeImage, "--", "sleep")
	awaitPhase(t, b, "last", "RUNNING")
	for _, want := range []*sandboxhostv1.SandboxState{web, old} {
		got := await(t, b, want.GetUid(), "running", running)
		if sprint(pids(got)) != sprint(pids(want.GetStatus())) {
			t.Errorf("%s: %v, want %v", want.GetName(), got, want.GetStatus())
		}
	}
	// What the store knows of is ended by it as ever.
	b.OK("delete", "sandbox", "old")
	b.OK("delete", "sandbox", "last")
	bed.Eventually(t, time.Minute, "only web is left", func(context.Context) (bool, string) {
		gone := onHost(t, b, "old") == nil && onHost(t, b, "last") == nil
		return gone && onHost(t, b, "web") != nil, sprint(onHost(t, b, "old")) + sprint(onHost(t, b, "last"))
	})
	awaitService(t, b, "web", true)
	if r := b.CLI("service", "rm", "web"); r.Code != 6 || !strings.Contains(r.Stderr, "--lost") {
		t.Errorf("rm of a service of the cluster: exit code %d\n%s", r.Code, r.Stderr)
	}
	b.OK("service", "rm", "--lost", "web")
	awaitService(t, b, "web", false)
	// What the cluster has lost goes when a person on the node says so.
	if r := b.CLI("--node-socket", b.HostSocket(), "rm", "web"); r.Code != 6 || !strings.Contains(r.Stderr, "--lost") {
		t.Errorf("rm of a sandbox of the cluster: exit code %d\n%s", r.Code, r.Stderr)
	}
	if r := b.CLI("--node-socket", b.HostSocket(), "rm", "--lost", "web"); r.Code != 0 || onHost(t, b, "web") != nil {
		t.Errorf("rm --lost: exit code %d\n%s%s", r.Code, r.Stderr, sprint(onHost(t, b, "web")))
	}
	settled(t, b)
}

func TestMachine_WithoutContainerdNeverReady(t *testing.T) {
	b := bed.New(t, bed.Options{Node: "containerd: {managed: false, address: /nowhere/containerd.sock}"})
	b.Start()
	bed.Eventually(t, time.Minute, "the node says that it waits for containerd", func(ctx context.Context) (bool, string) {
		graph, err := b.Graph(ctx)
		if err != nil {
			return false, err.Error()
		}
		reason := graph["sandboxhost"].GetReason()
		return strings.Contains(reason, "containerd"), graph["sandboxhost"].String()
	})
	if out := b.CLI("status"); out.Code == 0 || !strings.Contains(out.Stdout, "containerd") {
		t.Errorf("status: exit code %d\n%s", out.Code, out.Stdout)
	}
}

func TestMachine_UpAndDown(t *testing.T) {
	b := bed.New(t, bed.Options{})
	for range 2 {
		out := b.OK("up")
		if !strings.Contains(out, "Hello from sandbox hello") {
			t.Fatalf("up does not show the first sandbox's page:\n%s", out)
		}
	}
	out := b.OK("status")
	for _, name := range []string{"coordinator", "containerd", "clusteraccess", "storage", "sandboxhost", "sandbox-agent", "storage-agent", "presence"} {
		if !strings.Contains(out, name) {
			t.Errorf("status does not show %s:\n%s", name, out)
		}
	}
	b.OK("down", "--yes")
	b.OK("down", "--yes")
	b.OK("up")
}

func TestMachine_DiskGoesFromOneSandboxToTheNext(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	b.OK("disk", "create", "data")
	b.OK("run", "-d", "--name", "first", "--disk", "data:/data", bed.ProbeImage, "--", "sleep")
	awaitPhase(t, b, "first", "RUNNING")
	second := `kind: Sandbox
name: second
spec:
  desired: RUNNING
  containers:
    - {name: main, image: "` + bed.ProbeImage + `", args: [sleep], disks: [{disk: data, path: /data}]}
`
	if r := b.CLIWith(strings.NewReader(second), "apply", "-f", "-"); r.Code != 0 {
		t.Fatalf("apply: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	volume := diskPath(t, b)
	if err := os.WriteFile(filepath.Join(volume, "file"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	pid := pids(onHost(t, b, "first").GetStatus())["main"]
	inside := func(pid uint32) string {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/data/file", pid))
		if err != nil {
			return err.Error()
		}
		return string(raw)
	}
	if got := inside(pid); got != "kept" {
		t.Fatalf("the first sandbox sees %q on its disk", got)
	}
	b.KillRunner(supervisor, true)
	b.Start()
	b.WaitReady()
	if got := inside(pid); got != "kept" {
		t.Fatalf("after a restart of everything the first sandbox sees %q on its disk", got)
	}
	if onHost(t, b, "second") != nil {
		t.Fatal("a second sandbox came to the node while the first holds the disk")
	}
	b.OK("delete", "sandbox", "first")
	awaitPhase(t, b, "second", "RUNNING")
	if got := inside(pids(onHost(t, b, "second").GetStatus())["main"]); got != "kept" {
		t.Fatalf("the second sandbox sees %q on the disk", got)
	}
	b.OK("delete", "sandbox", "second")
	bed.Eventually(t, waitLong, "the disk is released and removed", func(context.Context) (bool, string) {
		r := b.CLI("disk", "rm", "data")
		return r.Code == 0, r.Stderr
	})
	bed.Eventually(t, waitLong, "the volume is gone", func(context.Context) (bool, string) {
		entries, err := os.ReadDir(filepath.Join(b.Paths.Var("storage"), "volumes"))
		return err == nil && len(entries) == 0, sprint(entries)
	})
	settled(t, b)
}

// diskPath is where the only attached volume is mounted.
func diskPath(t *testing.T, b *bed.Bed) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(b.Paths.Run(), "storage", "*"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("attached volumes: %v, %v; want one", paths, err)
	}
	if out, err := exec.Command("mountpoint", "-q", paths[0]).CombinedOutput(); err != nil {
		t.Fatalf("%s is not mounted: %v %s", paths[0], err, out)
	}
	return paths[0]
}

func TestMachine_LabelsOfTheNodeChooseIt(t *testing.T) {
	b, _ := machine(t, bed.Options{Node: "labels: {disk: fast}"})
	for name, selector := range map[string]string{"there": "fast", "nowhere": "slow"} {
		document := "kind: Sandbox\nname: " + name + "\nspec:\n  desired: RUNNING\n  node_selector: {disk: " + selector +
			"}\n  containers:\n    - {name: main, image: \"" + bed.ProbeImage + "\", args: [sleep]}\n"
		if r := b.CLIWith(strings.NewReader(document), "apply", "-f", "-"); r.Code != 0 {
			t.Fatalf("apply: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
	}
	awaitPhase(t, b, "there", "RUNNING")
	bed.Eventually(t, waitLong, "the other one says why it is not placed", func(context.Context) (bool, string) {
		r := b.CLI("get", "sandbox", "nowhere", "-o", "yaml")
		return strings.Contains(r.Stdout, "reason:"), r.Stdout + r.Stderr
	})
	if onHost(t, b, "nowhere") != nil {
		t.Fatal("a sandbox came to a node without the label that it asks for")
	}
	b.OK("delete", "sandbox", "there")
	b.OK("delete", "sandbox", "nowhere")
	settled(t, b)
}
