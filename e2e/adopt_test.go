package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// helperLimit is how soon all that looks after a survivor has to be at it again
// (ADO-8).
const helperLimit = 15 * time.Second

// readyYAML is a sandbox that is ready while its port is open.
func readyYAML(name, args, more string) string {
	return fmt.Sprintf("kind: Sandbox\nname: %s\nspec:\n  desired: RUNNING\n  containers:\n    - name: main\n      image: %q\n      args: [%s]\n"+
		"      readiness_probe: {tcp: {port: 7000}, period: 200ms, failure_threshold: 2}\n%s---\n", name, bed.ProbeImage, args, more)
}

// recorded waits until the record of a sandbox is as wanted and returns it.
func recorded(t *testing.T, far *bed.Bed, name, what string, limit time.Duration, ok func(*resourcev1.SandboxStatus) bool) *resourcev1.SandboxStatus {
	t.Helper()
	var last *resourcev1.SandboxStatus
	bed.Eventually(t, limit, "the record of "+name+" says: "+what, func(ctx context.Context) (bool, string) {
		r, err := far.Records().GetResource(ctx, &coordinatorv1.GetResourceRequest{
			Kind: kindSandbox, Which: &coordinatorv1.GetResourceRequest_Name{Name: name},
		})
		if err != nil {
			return false, err.Error()
		}
		last = r.GetResource().GetSandbox().GetStatus()
		return ok(last), last.String()
	})
	return last
}

// witness notes every revision in which a sandbox that was ready is not.
type witness struct {
	mu    sync.Mutex // guards what follows
	seen  int
	wrong []string
}

// watch follows the records until ctx ends.
func (w *witness) watch(ctx context.Context, t *testing.T, far *bed.Bed) {
	t.Helper()
	stream, err := far.Records().WatchResources(ctx, &coordinatorv1.WatchResourcesRequest{Kinds: []resourcev1.Kind{kindSandbox}})
	must(t, err)
	for {
		m, err := stream.Recv()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			t.Errorf("the watch ended: %v", err)
			return
		}
		status := m.GetChanged().GetSandbox().GetStatus()
		if m.GetChanged() == nil {
			continue
		}
		w.mu.Lock()
		w.seen++
		if !running(status) || !isReady(status) || status.GetAttempt() != 1 {
			w.wrong = append(w.wrong, fmt.Sprintf("revision %d: %v", m.GetRevision(), status))
		}
		w.mu.Unlock()
	}
}

// knock connects to each of the addresses 50 times a second until ctx ends, and
// returns how often it did and what failed.
func knock(ctx context.Context, b *bed.Bed, addresses []string) (asked int, failed []error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return asked, failed
		case <-tick.C:
		}
		err := b.Connects("tcp", addresses[asked%len(addresses)])
		asked++
		if err != nil {
			failed = append(failed, err)
		}
	}
}

// TestNode_ADO5_SurvivorsStayReady restarts a node of a cluster 6 times instead of 10,
// while somebody follows every revision of its sandboxes, and another connects to them.
func TestNode_ADO5_SurvivorsStayReady(t *testing.T) {
	far, b, supervisor := joined(t, bed.Options{})
	var names, addresses []string
	for i := range 5 {
		names = append(names, fmt.Sprintf("web-%d", i))
		apply(t, far, readyYAML(names[i], "serve, '7000'", ""))
	}
	for _, name := range names {
		s := recorded(t, far, name, "ready", time.Minute, isReady)
		addresses = append(addresses, s.GetAddresses()[0]+":7000")
	}
	ctx, stop := context.WithCancel(t.Context())
	var w witness
	var asked int
	var failed []error
	var wg sync.WaitGroup
	wg.Go(func() { w.watch(ctx, t, far) })
	wg.Go(func() { asked, failed = knock(ctx, b, addresses) })
	bed.Eventually(t, waitLong, "all are followed", func(context.Context) (bool, string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.seen >= len(names), fmt.Sprint(w.seen)
	})
	for i := range 6 {
		switch i % 3 {
		case 0:
			b.StopRunner(supervisor)
			supervisor = b.Start()
		case 1:
			b.KillRunner(supervisor, true)
			supervisor = b.Start()
		default:
			b.Kill("sandboxhost")
			b.Kill("sandbox-agent")
		}
		b.WaitReady()
		for _, name := range names { // reported since, and told as it was
			recorded(t, far, name, "ready still", waitLong, isReady)
		}
	}
	stop()
	wg.Wait()
	for _, wrong := range w.wrong {
		t.Errorf("a survivor was shown otherwise: %s", wrong)
	}
	if len(failed) > 0 || asked < 50 {
		t.Errorf("%d of %d connections failed: %v", len(failed), asked, failed)
	}
}

// TestNode_ADO6_AddressesStayAsTheyAreWritten restarts every component, and the whole,
// of a machine whose network has room for a few sandboxes only. There are no
// addresses of version 6 and none that are asked for.
func TestNode_ADO6_AddressesStayAsTheyAreWritten(t *testing.T) {
	const room = 13 // of a /28: without network, gateway and broadcast
	b, supervisor := machine(t, bed.Options{Node: "network: {subnet: 10.77.0.0/28}"})
	names := []string{"one", "two", "three"}
	was := map[string]string{}
	for _, name := range names {
		apply(t, b, readyYAML(name, "serve, '7000'", ""))
	}
	for _, name := range names {
		list := recorded(t, b, name, "ready", time.Minute, isReady).GetAddresses()
		address, err := netip.ParseAddr(list[0])
		if len(list) != 1 || err != nil || address.String() != list[0] || slices.Contains(values(was), list[0]) {
			t.Fatalf("%s has the addresses %q, want one of its own, alone and in its plain form", name, list)
		}
		was[name] = list[0]
	}
	same := func(after string) {
		t.Helper()
		b.WaitReady()
		for _, name := range names {
			host := onHost(t, b, name).GetStatus()
			record := recorded(t, b, name, "ready after "+after, waitLong, isReady)
			for who, s := range map[string]*resourcev1.SandboxStatus{"the node": host, "the record": record} {
				if !slices.Equal(s.GetAddresses(), []string{was[name]}) {
					t.Errorf("after %s, %s says that %s has %q, want %q", after, who, name, s.GetAddresses(), was[name])
				}
			}
			if err := b.Connects("tcp", was[name]+":7000"); err != nil {
				t.Errorf("after %s: %s: %v", after, name, err)
			}
		}
	}
	same("the start")
	for _, component := range []string{"coordinator", "containerd", "clusteraccess", "storage", "storage-agent", "sandboxhost", "sandbox-agent", "presence"} {
		b.Kill(component)
		same("a kill of " + component)
	}
	b.KillRunner(supervisor, true)
	b.Start()
	same("a kill of all")

	// Each is given back when its sandbox goes: the network never runs out, and
	// nobody has the address of another.
	for i := range room + 2 {
		uid := ensure(t, b, fmt.Sprintf("next-%d", i), spec(always, probe("c", "sleep")))
		got := await(t, b, uid, "running", running).GetAddresses()
		if len(got) != 1 || slices.Contains(values(was), got[0]) {
			t.Errorf("number %d got %q beside %v", i, got, was)
		}
		remove(t, b, uid)
	}
	b.OK(append([]string{"delete", "sandbox"}, names...)...)
	settled(t, b)
	wantFindings(t, "in the end", examine(t, b), "", nil)
}

func values(m map[string]string) []string {
	var all []string
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

// TestMachine_ADO8_HelpersOfSurvivorsAreAtItAgain takes what looks after a sandbox away,
// and finds each at its work again: who reads its output, who asks whether it is
// ready, who counts what the kernel ends, who reports, who keeps the right to its disk.
func TestMachine_ADO8_HelpersOfSurvivorsAreAtItAgain(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	b.OK("disk", "create", "data")
	const disk = "      disks: [{disk: data, path: /data}]\n"
	apply(t, b, readyYAML("web", "tended, '7000', '200000000'", disk+"      limits: {memory_limit_bytes: 64MiB}\n"))
	recorded(t, b, "web", "ready", time.Minute, isReady)
	apply(t, b, readyYAML("next", "serve, '7000'", disk))
	uid := onHost(t, b, "web").GetUid()
	was := await(t, b, uid, "running", running)
	pid, volume := pids(was)["main"], diskPath(t, b)
	tell := func(s syscall.Signal) {
		t.Helper()
		must(t, syscall.Kill(int(pid), s))
	}
	// One beside the main process is counted apart, and only whoever sees it end knows. (LIF-5)
	if r := b.CLI("exec", "web", "--", "probe", "eat", "200000000"); r.Code != 137 {
		t.Fatalf("exec of what takes more memory than there may be: exit code %d, want 137\n%s", r.Code, r.Stderr)
	}
	besides := func(s *resourcev1.SandboxStatus) bool { return s.GetContainers()[0].GetOomKillsBeside() == 1 }
	recorded(t, b, "web", "a kill beside the main process", helperLimit, besides)
	kills := uint64(1)
	for _, part := range []string{"nobody", "sandboxhost", "containerd", "the runner, killed", "the runner, asked to stop"} {
		if part != "nobody" {
			supervisor = away(t, b, supervisor, part, func() {})
		}
		samePIDs(t, b, uid, pids(was))
		from := counted(t, output(t, b, uid, "main", 1))
		bed.Eventually(t, helperLimit, "output is read after the end of "+part, moreThan(t, b, uid, "main", from))
		tell(syscall.SIGUSR1)
		recorded(t, b, "web", "not ready after the end of "+part, helperLimit, func(s *resourcev1.SandboxStatus) bool { return running(s) && !isReady(s) })
		tell(syscall.SIGUSR2)
		recorded(t, b, "web", "ready again after the end of "+part, helperLimit, isReady)
		if n := await(t, b, uid, "running", running).GetContainers()[0].GetOomKills(); n != kills {
			t.Errorf("after the end of %s %d kills for memory are known, want %d", part, n, kills)
		}
		await(t, b, uid, "to know of the one beside the main process", besides)
		kills++
		tell(syscall.SIGHUP)
		recorded(t, b, "web", fmt.Sprintf("%d kills for memory after the end of %s", kills, part), helperLimit, func(s *resourcev1.SandboxStatus) bool {
			return s.GetContainers()[0].GetOomKills() == kills && besides(s)
		})
		if onHost(t, b, "next") != nil || diskPath(t, b) != volume {
			t.Fatalf("after the end of %s the disk was given to another", part)
		}
	}
	samePIDs(t, b, uid, pids(was))

	// The right to the disk was never lost, and so it can be handed on.
	must(t, os.WriteFile(filepath.Join(volume, "file"), []byte("kept"), 0o644))
	b.OK("delete", "sandbox", "web")
	next := recorded(t, b, "next", "ready", time.Minute, isReady)
	if raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/data/file", pids(next)["main"])); err != nil || string(raw) != "kept" {
		t.Errorf("the next holder finds %q on the disk: %v", raw, err)
	}
	b.OK("delete", "sandbox", "next")
	bed.Eventually(t, waitLong, "the disk is released and removed", func(context.Context) (bool, string) {
		r := b.CLI("disk", "rm", "data")
		return r.Code == 0 || strings.Contains(r.Stderr, "no such record"), r.Stderr
	})
	settled(t, b)
}
