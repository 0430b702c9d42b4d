package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// With an IPv6 network sandboxes have an address of each kind, are found and reached by both,
// and are apart by both; over the death of everything and a flush of the firewall.
func TestNode_IPv6(t *testing.T) {
	b, supervisor := alone(t, bed.Options{Node: "network: {subnet6: \"fd53:7374:6165::/64\"}"})
	serve := func(group string) *resourcev1.SandboxSpec {
		s := spec(always, probe("c", "serve", "7000"))
		s.NetworkGroup = group
		return s
	}
	web := ensure(t, b, "web", serve(""))
	db := ensure(t, b, "db", serve("db"))
	names := ensure(t, b, "names", spec(always, probe("c", "resolve", "web.sandbox.staddle.internal", "50ms")))
	at := func(uid string) (four, six string) {
		t.Helper()
		addrs := await(t, b, uid, "running", running).GetAddresses()
		if len(addrs) != 2 || !strings.HasPrefix(addrs[1], "fd53:7374:6165::") {
			t.Fatalf("sandbox %s has the addresses %v, want one of each kind", uid, addrs)
		}
		return addrs[0], addrs[1]
	}
	_, webSix := at(web)
	_, dbSix := at(db)
	at(names)
	port := func(six string) string { return "[" + six + "]:7000" }
	wrong := func() string {
		if err := errors.Join(b.ConnectsFrom(pinned(b, names), "tcp6", port(webSix)), b.Connects("tcp6", port(webSix))); err != nil {
			return err.Error()
		}
		for _, refused := range []string{port(dbSix), "[fd53:7374:6165::1]:22"} {
			if err := b.ConnectsFrom(pinned(b, names), "tcp6", refused); !errors.Is(err, syscall.ECONNREFUSED) {
				return fmt.Sprintf("%s: got %v, want it refused", refused, err)
			}
		}
		return ""
	}
	right := func(when string) {
		t.Helper()
		bed.Eventually(t, waitLong, when, func(context.Context) (bool, string) {
			got := wrong()
			return got == "", got
		})
	}
	right("at first")
	bed.Eventually(t, waitLong, "both addresses are found", func(context.Context) (bool, string) {
		out := output(t, b, names, "c", 1)
		return strings.Contains(out, webSix), out
	})
	b.KillRunner(supervisor, true)
	if got := wrong(); got != "" {
		t.Errorf("while everything is away: %s", got)
	}
	b.Start()
	b.WaitReady()
	if got := wrong(); got != "" {
		t.Errorf("after the death of everything: %s", got)
	}
	tool(t, "ip", "netns", "exec", b.NS, "nft", "flush", "ruleset")
	right("after a flush")
	for _, uid := range []string{web, db, names} {
		remove(t, b, uid)
	}
	settled(t, b)
}
