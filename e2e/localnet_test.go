package e2e

import (
	"context"
	"strings"
	"testing"

	"staddle.internal/e2e/bed"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// On a node without local net a published port and a node port of a service are reached at its
// addresses, and not at loopback; what is for loopback alone waits, and says why. Networks that
// know the way back see who comes.
func TestNode_LocalNetIsOff(t *testing.T) {
	b, _ := alone(t, bed.Options{Node: "network: {disable_local_net: true, ipv4_routable: [198.51.100.0/24]}"})
	labelled := withPorts(spec(always, probe("c", "serve", "7000")), &resourcev1.PublishedPort{HostPort: 18090, Port: 7000})
	web := ensure(t, b, "web", labelled)
	await(t, b, web, "running", running)
	b.OK("--node-socket", b.HostSocket(), "run", "-d", "--name", "behind", "--label", "app=web", bed.ProbeImage, "--", "serve", "7000")
	b.OK("service", "create", "web", "--selector", "app=web", "--port", "http=80:7000", "--node-port", "http=30090")
	for _, port := range []string{"18090", "30090"} {
		answers(t, b, "at the gateway", "10.77.0.1:"+port)
		if wrong := echoes(b, "127.0.0.1:"+port); wrong == "" {
			t.Errorf("port %s is reached at loopback", port)
		}
	}
	loop := ensure(t, b, "loop", withPorts(spec(always, probe("c", "serve", "7000")),
		&resourcev1.PublishedPort{HostPort: 18091, HostAddress: "127.0.0.1", Port: 7000}))
	await(t, b, loop, "refused", func(s *resourcev1.SandboxStatus) bool {
		return s.GetCauseReason() == "LOCAL_NET_DISABLED" && strings.Contains(s.GetMessage(), "disable_local_net")
	})
	bed.Eventually(t, waitLong, "the next step is told", func(context.Context) (bool, string) {
		r := b.CLI("--node-socket", b.HostSocket(), "explain", "loop")
		return strings.Contains(r.Stdout, "publish at another address"), r.Stdout + r.Stderr
	})
	rules := tool(t, "ip", "netns", "exec", b.NS, "nft", "--stateless", "list", "chain", "ip", "staddle_staddle0", "postrouting")
	if !strings.Contains(rules, "198.51.100.0/24 return") {
		t.Errorf("no rule for networks that know the way: %s", rules)
	}
	b.OK("service", "rm", "web")
	b.OK("--node-socket", b.HostSocket(), "rm", "behind")
	removeAll(t, b, web, loop)
	settled(t, b)
}
