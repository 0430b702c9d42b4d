package e2e

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"staddle.internal/e2e/bed"
)

// SCY-3: a sandbox reaches of the node what its configuration allows, and no metadata of a
// cloud; also while sandboxhost is away, and again after a flush of the firewall.
func TestNode_SCY3_SandboxReachesWhatIsAllowed(t *testing.T) {
	b, _ := alone(t, bed.Options{Node: "network: {allow_node_ports: [tcp/18091]}"})
	const metadata = "169.254.169.254"
	tool(t, "ip", "-n", b.NS, "addr", "add", metadata+"/32", "dev", "lo")
	const closed, allowed, cloud = "10.77.0.1:18090", "10.77.0.1:18091", metadata + ":80"
	for _, port := range []string{":18090", ":18091", ":80"} {
		l := b.ListenAt("tcp4", "0.0.0.0"+port)
		defer l.Close()
	}
	uid := ensure(t, b, "web", spec(always, probe("c", "sleep")))
	before := pids(await(t, b, uid, "running", running))
	reaches := func(address string) error { return b.ConnectsFrom(pinned(b, uid), "tcp4", address) }
	wrong := func() string {
		for address, want := range map[string]error{closed: syscall.ECONNREFUSED, allowed: nil, cloud: syscall.ECONNREFUSED} {
			if err := reaches(address); !errors.Is(err, want) {
				return fmt.Sprintf("%s: got %v, want %v", address, err, want)
			}
		}
		return ""
	}
	if got := wrong(); got != "" {
		t.Errorf("at first: %s", got)
	}
	if err := b.Connects("tcp4", closed); err != nil {
		t.Errorf("the node itself: %v", err)
	}
	b.Stop("sandboxhost")
	if got := wrong(); got != "" {
		t.Errorf("while sandboxhost is away: %s", got)
	}
	b.Continue("sandboxhost")
	b.WaitReady()
	if got := wrong(); got != "" {
		t.Errorf("after its death: %s", got)
	}
	tool(t, "ip", "netns", "exec", b.NS, "nft", "flush", "ruleset")
	bed.Eventually(t, waitLong, "it is refused again after a flush", func(context.Context) (bool, string) {
		got := wrong()
		return got == "", got
	})
	samePIDs(t, b, uid, before)
	remove(t, b, uid)
	settled(t, b)
}
