package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// echoes asks a server at an address of the bed and says what is wrong, "" if nothing.
func echoes(b *bed.Bed, address string) string {
	if err := b.Connects("tcp", address); err != nil {
		return err.Error()
	}
	conn := b.DialAt("tcp", address)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintln(conn, "hello"); err != nil {
		return err.Error()
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || line != "hello\n" {
		return fmt.Sprintf("%q, %v", line, err)
	}
	return ""
}

// answers waits until a server answers at an address of the bed.
func answers(t *testing.T, b *bed.Bed, when, address string) {
	t.Helper()
	bed.Eventually(t, waitLong, "it answers at "+address+" "+when, func(context.Context) (bool, string) {
		wrong := echoes(b, address)
		return wrong == "", wrong
	})
}

func withPorts(s *resourcev1.SandboxSpec, ports ...*resourcev1.PublishedPort) *resourcev1.SandboxSpec {
	s.PublishedPorts = ports
	return s
}

// NET-5 and NET-9: a published port leads to the sandbox from the node and from its
// neighbour, over the death of everything and a flush of the firewall; it is had once,
// and given back.
func TestNode_NET9_PublishedPortIsHadOnce(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	port := &resourcev1.PublishedPort{HostPort: 18081, Port: 7000}
	web := ensure(t, b, "web", withPorts(spec(always, probe("c", "serve", "7000")), port))
	await(t, b, web, "running", running)
	answers(t, b, "at first", "127.0.0.1:18081")
	answers(t, b, "at first", "10.77.0.1:18081")
	neighbour := ensure(t, b, "neighbour", spec(always, probe("c", "ask", "10.77.0.1:18081", "hi")))
	await(t, b, neighbour, "running", running)
	bed.Eventually(t, waitLong, "the neighbour is answered", outputIs(t, b, neighbour, "c", 1, "answer hi\n"))

	second := ensure(t, b, "second", withPorts(spec(always, probe("c", "serve", "7000")), port))
	await(t, b, second, "refused", func(s *resourcev1.SandboxStatus) bool {
		return strings.Contains(s.GetMessage(), "sandbox "+web+" has it")
	})
	b.KillRunner(supervisor, true)
	b.Start()
	b.WaitReady()
	answers(t, b, "after a restart", "127.0.0.1:18081")
	tool(t, "ip", "netns", "exec", b.NS, "nft", "flush", "ruleset")
	answers(t, b, "after a flush", "127.0.0.1:18081")
	samePIDs(t, b, web, pids(await(t, b, web, "running", running)))

	remove(t, b, web)
	await(t, b, second, "running", running)
	answers(t, b, "from the next", "127.0.0.1:18081")
	remove(t, b, second)
	if err := b.Connects("tcp", "127.0.0.1:18081"); err == nil {
		t.Error("there is an answer from nobody")
	}
	remove(t, b, neighbour)
	settled(t, b)
}

// NET-9: a port that a program of the node has is refused with its name, and published
// when the program has ended.
func TestNode_NET9_PortOfAProgramIsRefused(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	l := b.ListenAt("tcp", "127.0.0.1:18082")
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	uid := ensure(t, b, "web", withPorts(spec(always, probe("c", "serve", "7000")), &resourcev1.PublishedPort{HostPort: 18082, Port: 7000}))
	await(t, b, uid, "refused", func(s *resourcev1.SandboxStatus) bool {
		return strings.Contains(s.GetMessage(), "port tcp "+port) && strings.Contains(s.GetMessage(), "it is in use by \"")
	})
	if rules := tool(t, "ip", "netns", "exec", b.NS, "nft", "--stateless", "list", "ruleset"); strings.Contains(rules, port) {
		t.Errorf("a rule leads there: %s", rules)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, b, uid, "running", running)
	answers(t, b, "when the program has ended", "127.0.0.1:18082")
	remove(t, b, uid)
	settled(t, b)
}
