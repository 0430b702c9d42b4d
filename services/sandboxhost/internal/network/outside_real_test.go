package network

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/hostport"
)

// again opens the network with another configuration.
func (n *node) again(t *testing.T, change func(*Config)) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	change(&n.cfg)
	n.open(t)
}

// What sandboxes send to networks that know the way back carries their own address, from the
// next connection on; and from there nobody reaches more than before.
func TestNetwork_RoutableNetworksSeeWhoComes(t *testing.T) {
	n := newNode(t, "10.202.34.0/24")
	peer := lan(t, n)
	err := n.inNet(peer, func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: ipNet(n.cfg.Subnet.Addr(), n.cfg.Subnet.Bits()), Gw: net.ParseIP(lanNode)})
	})
	if err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	tellSource(t, n, peer, 80)
	web, addr := n.attach(t)
	tellSource(t, n, web, 80)
	for _, tt := range []struct {
		routable []netip.Prefix
		want     string
	}{
		{nil, lanNode},
		{[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix(lanPeer + "/32")}, addr.String()},
		{[]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, addr.String()},
		{[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, lanNode},
	} {
		n.again(t, func(c *Config) { c.Routable = tt.routable })
		if got, err := source(n, web, lanPeer+":80"); err != nil || got != tt.want {
			t.Errorf("with %v: the other machine sees %q, %v, want %q", tt.routable, got, err, tt.want)
		}
		if got, err := source(n, peer, addr.String()+":80"); err == nil {
			t.Errorf("with %v: the other machine reaches the sandbox, as %q", tt.routable, got)
		}
	}
}

// Without local net nothing that is published is reached at loopback, everything else goes on,
// and a port that is for loopback alone is refused with the reason.
func TestNetwork_WithoutLocalNet(t *testing.T) {
	n := newNode(t, "10.202.35.0/24")
	peer, port := lan(t, n), freeHostPort(t)
	web, _, err := n.attachWith(t, Port{Protocol: hostport.TCP, Host: port, Inside: 80})
	if err != nil {
		t.Fatal(err)
	}
	tellSource(t, n, web, 80)
	at := func(host string) string { return netip.AddrPortFrom(netip.MustParseAddr(host), port).String() }
	for _, off := range []bool{true, false} {
		n.again(t, func(c *Config) { c.NoLocalNet = off })
		for _, tt := range []struct {
			name string
			from id.Sandbox
			to   string
			want bool
		}{
			{"the node's loopback", "", at("127.0.0.1"), !off},
			{"another loopback address", "", at("127.9.9.9"), !off},
			{"the node, at an address of it", "", at(lanNode), true},
			{"another machine", peer, at(lanNode), true},
			{"itself", web, at(lanNode), true},
		} {
			if got, err := source(n, tt.from, tt.to); (err == nil) != tt.want {
				t.Errorf("local net off %t, from %s: got %q, %v, want it reached: %t", off, tt.name, got, err, tt.want)
			}
		}
		// Somebody turns it round, and it is turned back.
		if err := set(n.localNetFile(), map[bool]string{true: "1", false: "0"}[off]); err != nil {
			t.Fatal(err)
		}
		if broken, err := n.Fault(); err != nil || !strings.Contains(broken, "route_localnet") {
			t.Errorf("local net off %t: got %q, %v, want to be told of route_localnet", off, broken, err)
		}
		if _, err := n.Mend(t.Context()); err != nil {
			t.Fatal(err)
		}
		if broken, err := n.Fault(); err != nil || broken != "" {
			t.Errorf("local net off %t, mended: got %q, %v", off, broken, err)
		}
	}
	n.again(t, func(c *Config) { c.NoLocalNet = true })
	loop := Port{Protocol: hostport.TCP, Host: freeHostPort(t), Address: netip.MustParseAddr("127.0.0.1"), Inside: 80}
	_, _, sandbox := n.attachWith(t, loop)
	for what, err := range map[string]error{"sandbox": sandbox, "service": n.ClaimForService("web", []Port{loop})} {
		if fault.KindOf(err) != fault.Conflict || fault.Reason(err) != reasonNoLocalNet || !strings.Contains(err.Error(), "disable_local_net") {
			t.Errorf("%s with a port at loopback: got %v, want a conflict with reason %s", what, err, reasonNoLocalNet)
		}
	}
}
