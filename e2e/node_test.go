package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

func sprint(v any) string { return fmt.Sprintf("%+v", v) }

func TestNode_LifeOfASandbox(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	socket := []string{"--node-socket", b.HostSocket()}
	cli := func(args ...string) string { return b.OK(append(socket, args...)...) }

	// A person's way: run, look, read, stop, start, remove.
	cli("run", "-d", "--name", "web", bed.ProbeImage, "--", "count", "10ms")
	if out := cli("ps"); !strings.Contains(out, "web") || !strings.Contains(strings.ToUpper(out), "RUNNING") {
		t.Fatalf("ps does not show the sandbox:\n%s", out)
	}
	if out := cli("logs", "web"); !strings.HasPrefix(out, "0\n1\n") {
		t.Fatalf("logs: got %.40q", out)
	}
	cli("stop", "web")
	if out := strings.ToUpper(cli("ps")); !strings.Contains(out, "STOPPED") {
		t.Fatalf("ps after stop:\n%s", out)
	}
	cli("start", "web")
	cli("rm", "web")
	if out := cli("ps"); strings.Contains(out, "web") {
		t.Fatalf("ps after rm:\n%s", out)
	}
	settled(t, b)

	// The exit code comes through to the person, and to the record.
	if r := b.CLI(append(socket, "run", "--name", "seven", bed.ProbeImage, "--", "exit", "7", "200ms")...); r.Code != 7 {
		t.Fatalf("run of a workload that exits with 7: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := b.CLI(append(socket, "run", "--rm", bed.ProbeImage, "--", "lines", "5000")...); r.Code != 0 || strings.Count(r.Stdout, "\n") != 5000 {
		t.Fatalf("run of 5000 lines: exit code %d, %d lines\n%s", r.Code, strings.Count(r.Stdout, "\n"), r.Stderr)
	}
	cli("rm", "seven")
	settled(t, b)
}

// killSettle is how long after a kill for memory the end of the main process is
// taken for it, and a bit.
const killSettle = 6 * time.Second

// childrenEatTooMuch has the kernel end a child for memory, of a process that goes
// on, and of one that then ends well: either way it is told, and not as its end.
// What ends the main process by force afterwards is not the kernel. (LIF-5)
func childrenEatTooMuch(t *testing.T, b *bed.Bed, limit *int64) {
	main := probe("c", "feed", "200000000")
	main.Limits = &resourcev1.ResourceLimits{MemoryLimitBytes: limit}
	uid := ensure(t, b, "goes-on", spec(never, main))
	got := await(t, b, uid, "to count the kill", func(s *resourcev1.SandboxStatus) bool {
		return running(s) && s.GetContainers()[0].GetOomKills() == 1
	})
	<-time.After(killSettle) // until then nobody can tell it from the end of the main process
	if err := syscall.Kill(int(pids(got)["c"]), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	got = await(t, b, uid, "ended", ended)
	if exit := got.GetExits()[0]; exit.GetCode() != 137 || exit.GetOomKilled() || exit.GetOomKills() != 1 {
		t.Errorf("got exit %v, want a signal of somebody else and one kill for memory", exit)
	}
	remove(t, b, uid)

	main.Args = append(main.GetArgs(), "0")
	uid = ensure(t, b, "ends-well", spec(never, main))
	got = await(t, b, uid, "ended", ended)
	if exit := got.GetExits()[0]; exit.GetCode() != 0 || exit.GetOomKilled() || exit.GetOomKills() != 1 {
		t.Errorf("got exit %v, want code 0 and one kill for memory", exit)
	}
	remove(t, b, uid)
}

func TestNode_ExitsAreTold(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	limit := int64(32 << 20)
	eater := probe("c", "eat", "200000000")
	eater.Limits = &resourcev1.ResourceLimits{MemoryLimitBytes: &limit}
	for _, c := range []struct {
		name      string
		container *resourcev1.ContainerSpec
		want      *resourcev1.ContainerExit
	}{
		{"zero", probe("c", "exit", "0"), &resourcev1.ContainerExit{}},
		{"seven", probe("c", "exit", "7"), &resourcev1.ContainerExit{Code: 7}},
		{"memory", eater, &resourcev1.ContainerExit{Code: 137, Signal: 9, OomKilled: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			uid := ensure(t, b, c.name, spec(never, c.container))
			got := await(t, b, uid, "ended", ended)
			exit := got.GetExits()[len(got.GetExits())-1]
			if exit.GetCode() != c.want.GetCode() || exit.GetSignal() != c.want.GetSignal() || exit.GetOomKilled() != c.want.GetOomKilled() || exit.GetUnknown() {
				t.Errorf("got exit %v, want %v", exit, c.want)
			}
			remove(t, b, uid)
		})
	}
	t.Run("memory of a child", func(t *testing.T) { childrenEatTooMuch(t, b, &limit) })
	t.Run("killed from outside", func(t *testing.T) {
		uid := ensure(t, b, "killed", spec(never, probe("c", "sleep")))
		pid := pids(await(t, b, uid, "running", running))["c"]
		if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		got := await(t, b, uid, "ended", ended)
		if exit := got.GetExits()[0]; exit.GetCode() != 137 || exit.GetSignal() != 9 || exit.GetOomKilled() || exit.GetUnknown() {
			t.Errorf("got exit %v, want signal 9", exit)
		}
		remove(t, b, uid)
	})
	t.Run("deaf to SIGTERM", func(t *testing.T) {
		s := spec(always, probe("c", "deaf"))
		s.TerminationGracePeriod = seconds(1)
		uid := ensure(t, b, "deaf", s)
		await(t, b, uid, "running", running)
		bed.Eventually(t, waitLong, "it ignores the signal", outputIs(t, b, uid, "c", 1, "deaf\n"))
		got := remove(t, b, uid)
		if exit := got.GetExits()[0]; exit.GetCode() != 137 || exit.GetSignal() != 9 {
			t.Errorf("got exit %v, want one by force", exit)
		}
	})
	settled(t, b)
}

func TestNode_ContainersShareANetwork(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	uid := ensure(t, b, "pair", spec(always, probe("server", "serve", "7000"), probe("client", "ask", "127.0.0.1:7000", "hello")))
	status := await(t, b, uid, "running", running)
	bed.Eventually(t, waitLong, "the client has its answer", outputIs(t, b, uid, "client", 1, "answer hello\n"))
	if len(status.GetAddresses()) != 1 {
		t.Fatalf("got addresses %v, want one", status.GetAddresses())
	}
	// From another sandbox, over the bridge.
	other := ensure(t, b, "other", spec(always, probe("client", "ask", status.GetAddresses()[0]+":7000", "neighbour")))
	bed.Eventually(t, waitLong, "the neighbour has its answer", outputIs(t, b, other, "client", 1, "answer neighbour\n"))
	if shims := b.Shims(); len(shims) != 2 {
		t.Errorf("two sandboxes with three containers have %d shims, want 2", len(shims))
	}
	remove(t, b, uid)
	remove(t, b, other)
	settled(t, b)
}

func TestNode_ShimKilledIsAnUnknownExit(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	uid := ensure(t, b, "victim", spec(always, probe("c", "sleep")))
	bystander := ensure(t, b, "bystander", spec(always, probe("c", "sleep")))
	await(t, b, uid, "running", running)
	before := b.Shims()
	calm := await(t, b, bystander, "running", running)
	// The victim's shim is the parent of its main process.
	victim := parent(t, int(pids(await(t, b, uid, "running", running))["c"]))
	if len(before) != 2 {
		t.Fatalf("got shims %v, want 2", before)
	}
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	got := await(t, b, uid, "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == 2 })
	if exit := got.GetExits()[0]; !exit.GetUnknown() || exit.GetAttempt() != 1 {
		t.Errorf("got exit %v, want an unknown one of attempt 1", exit)
	}
	if now := await(t, b, bystander, "running", running); pids(now)["c"] != pids(calm)["c"] {
		t.Errorf("the bystander's process changed from %d to %d", pids(calm)["c"], pids(now)["c"])
	}
	remove(t, b, uid)
	remove(t, b, bystander)
	settled(t, b)
}

func TestNode_KilledProcessesHarmNoWorkload(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	uid := ensure(t, b, "steady", spec(always, probe("counter", "count", "1ms"), probe("sleeper", "sleep")))
	want := await(t, b, uid, "running", running)
	lives := func(what string) {
		t.Helper()
		b.WaitReady()
		got := await(t, b, uid, "running", running)
		if sprint(pids(got)) != sprint(pids(want)) || got.GetAttempt() != 1 || sprint(got.GetAddresses()) != sprint(want.GetAddresses()) {
			t.Fatalf("after %s: got %v, want %v", what, got, want)
		}
		was := counted(t, output(t, b, uid, "counter", 1))
		bed.Eventually(t, waitLong, "output goes on after "+what, moreThan(t, b, uid, "counter", was))
	}
	restart := func(containerd bool) {
		t.Helper()
		b.KillRunner(supervisor, containerd)
		supervisor = b.Start()
	}
	lives("start")
	for range 3 {
		b.Kill("sandboxhost")
		lives("kill of sandboxhost")
	}
	b.Kill("containerd")
	lives("kill of containerd")
	restart(false)
	lives("kill of supervisor and sandboxhost")
	restart(true)
	lives("kill of everything")

	// What ends while nobody looks is found, with its true code.
	for _, away := range []string{"sandboxhost", "containerd", "everything"} {
		late := ensure(t, b, "late-"+away, spec(never, probe("c", "exit", "9", "1500ms")))
		pid := pids(await(t, b, late, "running", running))["c"]
		switch away {
		case "everything":
			b.KillRunner(supervisor, true)
		default:
			b.Stop(away)
		}
		bed.Eventually(t, waitLong, "the workload ended meanwhile", gone(int(pid)))
		switch away {
		case "everything":
			supervisor = b.Start()
		default:
			b.Continue(away)
		}
		b.WaitReady()
		got := await(t, b, late, "ended", ended)
		if exit := got.GetExits()[0]; len(got.GetExits()) != 1 || exit.GetCode() != 9 || exit.GetUnknown() {
			t.Errorf("%s was away: got exits %v, want one with code 9", away, got.GetExits())
		}
		remove(t, b, late)
	}
	lives("all")
	remove(t, b, uid)
	settled(t, b)
}

func TestNode_BadWishesLeaveNothing(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	tiny := int64(1)
	small := probe("c", "sleep")
	small.Limits = &resourcev1.ResourceLimits{MemoryLimitBytes: &tiny}
	missing := &resourcev1.ContainerSpec{Name: "c", Image: "127.0.0.1:1/none:1"}
	nothing := &resourcev1.ContainerSpec{Name: "c", Image: bed.ProbeImage, Command: []string{"/not/there"}}
	host := spec(never, probe("c", "sleep"))
	host.Network = resourcev1.NetworkMode_NETWORK_MODE_HOST

	for _, c := range []struct {
		name, sandbox, say string
		spec               *resourcev1.SandboxSpec
	}{
		{"memory of one byte", "a", "memory_limit_bytes", spec(never, small)},
		{"name that is no label", "Not_A_Label", "name", spec(never, probe("c", "sleep"))},
		{"no container", "a", "containers", spec(never)},
		{"same name twice", "a", "unique", spec(never, probe("c", "sleep"), probe("c", "sleep"))},
		{"host network", "a", "allow_host_network", host},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := b.Host().EnsureSandbox(t.Context(), &sandboxhostv1.EnsureSandboxRequest{
				Uid: newUID(), Name: c.sandbox, Generation: 1, Manager: "local", Spec: c.spec,
			})
			if err == nil || !strings.Contains(err.Error(), c.say) {
				t.Fatalf("got %v, want an error about %s", err, c.say)
			}
		})
	}
	for name, container := range map[string]*resourcev1.ContainerSpec{"image": missing, "command": nothing} {
		uid := ensure(t, b, "bad-"+name, spec(never, container))
		got := await(t, b, uid, "failed", func(s *resourcev1.SandboxStatus) bool {
			return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED || s.GetReason() != "" && s.GetMessage() != "" && name == "image"
		})
		if got.GetMessage() == "" {
			t.Errorf("%s: got no message: %v", name, got)
		}
		t.Logf("%s: %s: %s", name, got.GetReason(), got.GetMessage())
		remove(t, b, uid)
	}
	cut := cutArchive(t)
	if r := b.CLI("--node-socket", b.HostSocket(), "image", "import", cut); r.Code == 0 || !strings.Contains(r.Stderr, "archive") {
		t.Errorf("import of half an archive: exit code %d, %s", r.Code, r.Stderr)
	}
	settled(t, b)
	if entries, err := os.ReadDir(b.Paths.Run()); err != nil || len(entries) == 0 {
		t.Fatalf("folder of sockets: %v, %v", entries, err)
	}
}
