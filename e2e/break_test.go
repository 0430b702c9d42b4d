package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/id"
)

// tool runs a tool of the machine that must succeed.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// samePIDs demands that a sandbox goes on with the processes that it had.
func samePIDs(t *testing.T, b *bed.Bed, uid string, want map[string]uint32) {
	t.Helper()
	got := await(t, b, uid, "running", running)
	if sprint(pids(got)) != sprint(want) || got.GetAttempt() != 1 {
		t.Errorf("got %v in attempt %d, want %v in the first", pids(got), got.GetAttempt(), want)
	}
}

// NET-4 and NET-10: a firewall that is loaded anew, an interface and a route that are tidied up
// cost no sandbox its network for long, and none its processes.
func TestNode_NET4_NetworkTakenAway(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	server := ensure(t, b, "server", spec(always, probe("c", "serve", "7000")))
	was := await(t, b, server, "running", running)
	address := was.GetAddresses()[0]
	rules := func() string { return tool(t, "ip", "netns", "exec", b.NS, "nft", "--stateless", "list", "ruleset") }
	want := rules()
	for i, harm := range [][]string{
		{"ip", "netns", "exec", b.NS, "nft", "flush", "ruleset"},
		{"ip", "-n", b.NS, "link", "del", "staddle0"},
		{"ip", "-n", b.NS, "link", "del", "v" + id.Sandbox(server).Short()},
		{"ip", "-n", b.NS, "link", "set", "v" + id.Sandbox(server).Short(), "nomaster"},
		{"nsenter", "--net=" + pinned(b, server), "--", "ip", "route", "del", "default"},
	} {
		what := strings.Join(harm, " ")
		tool(t, harm[0], harm[1:]...)
		bed.Eventually(t, waitLong, "rules are back after: "+what, func(context.Context) (bool, string) {
			now := rules()
			return now == want, now
		})
		client := ensure(t, b, fmt.Sprintf("client%d", i), spec(always, probe("c", "ask", address+":7000", "hello")))
		bed.Eventually(t, waitLong, "answer after: "+what, func(ctx context.Context) (bool, string) {
			s := await(t, b, client, "running", running)
			got := output(t, b, client, "c", s.GetAttempt())
			return got == "answer hello\n", got
		})
		remove(t, b, client)
		samePIDs(t, b, server, pids(was))
	}
	remove(t, b, server)
	settled(t, b)
}

// The socket of containerd is removed while all hold a connection: who comes later
// must reach it again.
func TestNode_SocketOfContainerdIsLost(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	uid := ensure(t, b, "web", spec(always, probe("c", "sleep")))
	was := pids(await(t, b, uid, "running", running))
	old := b.PID("containerd")
	if err := os.Remove(filepath.Join(b.Paths.Run(), "containerd.sock")); err != nil {
		t.Fatal(err)
	}
	b.Kill("sandboxhost")
	bed.Eventually(t, waitLong, "containerd is another", func(ctx context.Context) (bool, string) {
		graph, err := b.Graph(ctx)
		now := int(graph["containerd"].GetPid())
		return err == nil && now != 0 && now != old, graph["containerd"].String()
	})
	b.WaitReady()
	samePIDs(t, b, uid, was)
	remove(t, b, uid)
	settled(t, b)
}

// Somebody makes room and removes the output of a workload that runs: it goes on
// writing, before and after a restart of the host.
func TestNode_OutputTakenAway(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	uid := ensure(t, b, "web", spec(always, probe("c", "count", "1ms")))
	was := pids(await(t, b, uid, "running", running))
	folder := filepath.Join(b.Paths.Var("sandboxhost"), "logs", strings.ToLower(uid))
	written := func(context.Context) (bool, string) {
		found, err := filepath.Glob(filepath.Join(folder, "c", "1", "stdout", "*.log"))
		if err != nil || len(found) == 0 {
			return false, fmt.Sprint(found, err)
		}
		info, err := os.Stat(found[0])
		return err == nil && info.Size() > 0, fmt.Sprint(err)
	}
	for _, restart := range []bool{false, true} {
		bed.Eventually(t, waitLong, "output is kept", written)
		if restart {
			b.Stop("sandboxhost")
		}
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
		if restart {
			b.Continue("sandboxhost")
			b.WaitReady()
		}
	}
	bed.Eventually(t, waitLong, "output is kept after all", written)
	samePIDs(t, b, uid, was)
	remove(t, b, uid)
	settled(t, b)
}

// A shim that hangs while containerd starts is forgotten by it. The sandbox goes on
// with another attempt, and the others notice nothing.
func TestNode_ShimHangsWhileContainerdStarts(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	uid := ensure(t, b, "web", spec(always, probe("c", "sleep")))
	await(t, b, uid, "running", running)
	hung := b.Shims()
	other := ensure(t, b, "other", spec(always, probe("c", "sleep")))
	was := pids(await(t, b, other, "running", running))
	if len(hung) != 1 {
		t.Fatalf("got shims %v, want one", hung)
	}
	if err := syscall.Kill(hung[0], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b.KillRunner(supervisor, true)
	b.Start()
	b.WaitReady()
	bed.Eventually(t, waitLong, "it runs again", func(ctx context.Context) (bool, string) {
		s := await(t, b, uid, "running", running)
		return s.GetAttempt() > 1, s.String()
	})
	if bed.Alive(hung[0]) {
		t.Errorf("the hung shim %d is left", hung[0])
	}
	samePIDs(t, b, other, was)
	remove(t, b, uid)
	remove(t, b, other)
	settled(t, b)
}

// Persons and timers give up and down at any moment, also at once: the last one to
// have its turn counts, and nobody is left half way.
func TestMachine_UpAndDownAtOnce(t *testing.T) {
	b := bed.New(t, bed.Options{})
	b.OK("up", "--no-sample")
	var wg sync.WaitGroup
	begin := func(args ...string) {
		wg.Go(func() { // waited for below
			if r := b.CLI(args...); r.Code != 0 {
				t.Errorf("staddle %s: exit code %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
			}
		})
	}
	begin("down", "--yes")
	bed.Eventually(t, waitLong, "down is half way", func(context.Context) (bool, string) {
		_, err := os.Stat(b.Paths.Socket("supervisor"))
		return os.IsNotExist(err), fmt.Sprint(err)
	})
	begin("up", "--no-sample")
	wg.Wait()
	b.WaitReady()

	begin("down", "--yes")
	begin("down", "--yes")
	wg.Wait()
	if left := b.Processes(); len(left) > 0 {
		t.Errorf("after down: %v", left)
	}

	for range 3 {
		begin("up", "--no-sample")
	}
	wg.Wait()
	b.WaitReady()
}
