package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// found is what a sandbox that looks a name up has found last.
func found(t *testing.T, b *bed.Bed, uid string) string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(output(t, b, uid, "c", 1)), "\n")
	_, last, _ := strings.Cut(lines[len(lines)-1], " ")
	return last
}

// finds waits until it has found that.
func finds(t *testing.T, b *bed.Bed, uid, what, want string) {
	t.Helper()
	bed.Eventually(t, waitLong, what, func(context.Context) (bool, string) {
		last := found(t, b, uid)
		return strings.HasPrefix(last, want), last
	})
}

// DNS-3 and DNS-5: a sandbox is found by its name as long as it runs, by itself over
// restarts of the host, and as nothing when it has ended.
func TestNode_DNS3_FoundWhileItRuns(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	server := ensure(t, b, "server", spec(always, probe("c", "sleep")))
	address := await(t, b, server, "running", running).GetAddresses()[0]
	client := ensure(t, b, "client", spec(always, probe("c", "resolve", "server", "50ms")))
	whole := ensure(t, b, "whole", spec(always, probe("c", "resolve", "Server.sandbox.Staddle.internal.", "50ms")))
	await(t, b, client, "running", running)
	await(t, b, whole, "running", running)
	finds(t, b, client, "its address", address)
	finds(t, b, whole, "its address by its whole name", address)

	b.Kill("sandboxhost")
	b.WaitReady()
	b.KillRunner(supervisor, true)
	b.Start()
	b.WaitReady()
	finds(t, b, client, "its address after restarts", address)
	for _, line := range strings.Split(strings.TrimSpace(output(t, b, client, "c", 1)), "\n") {
		if strings.Contains(line, "no such host") {
			t.Errorf("while the host was away or began, the name was said not to be there: %q", line)
		}
	}

	// Its process is killed while the host is away: it must not be found as what is dead.
	pid := int(pids(await(t, b, server, "running", running))["c"])
	b.Stop("sandboxhost")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.Continue("sandboxhost")
	b.WaitReady()
	next := await(t, b, server, "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == 2 }).GetAddresses()[0]
	finds(t, b, client, "the address of its next life", next)
	remove(t, b, server)
	finds(t, b, client, "nothing", "none: lookup server")
	finds(t, b, whole, "nothing", "none: lookup Server")
	remove(t, b, client)
	remove(t, b, whole)
	settled(t, b)
}

// DNS-2 and NET-4: the file of a sandbox names the gateway, and the resolver answers after
// the bridge was taken away.
func TestNode_DNS2_AsksTheGateway(t *testing.T) {
	b, _ := alone(t, bed.Options{Node: "network: {subnet: 10.91.0.0/24, dns: {domain: node.example}}"})
	uid := ensure(t, b, "web", spec(always, probe("c", "resolve", "web.sandbox.node.example", "50ms")))
	address := await(t, b, uid, "running", running).GetAddresses()[0]
	finds(t, b, uid, "itself", address)
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/resolv.conf", pids(await(t, b, uid, "running", running))["c"]))
	if err != nil {
		t.Fatal(err)
	}
	got := string(raw)
	if !strings.HasPrefix(got, "nameserver 10.91.0.1\nsearch sandbox.node.example") || strings.Contains(got, "nameserver 127.") {
		t.Errorf("got %q", got)
	}
	tool(t, "ip", "-n", b.NS, "link", "del", "staddle0")
	bed.Eventually(t, waitLong, "it was missed", func(context.Context) (bool, string) {
		last := found(t, b, uid)
		return strings.HasPrefix(last, "none"), last
	})
	finds(t, b, uid, "itself again", address)
	remove(t, b, uid)
	settled(t, b)
}
