package network

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A sandbox is reached from every address of the node, by whom it has never spoken to.
func TestNetwork_EveryAddressOfTheNodeReachesASandbox(t *testing.T) {
	n := newNode(t, "10.202.36.0/24")
	lan(t, n)
	for _, source := range []string{lanNode, n.gateway().String()} {
		web, addr := n.attach(t)
		tellSource(t, n, web, 80)
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: 10 * time.Second}
		c, err := d.DialContext(t.Context(), "tcp4", netip.AddrPortFrom(addr, 80).String())
		if err != nil {
			t.Errorf("from %s: %v", source, err)
			continue
		}
		_ = c.Close() // it was only to be made
	}
}

// Where a sandbox is does not outlive it, is told again when somebody forgets it, and to a
// node whose last version did not tell.
func TestNetwork_TheNodeKnowsWhereSandboxesAre(t *testing.T) {
	n := newNode(t, "10.202.37.0/24")
	web, addr := n.attach(t)
	known := func(what string, want bool) {
		t.Helper()
		met, err := netlink.NeighList(mustLink(t, n.cfg.Bridge).Attrs().Index, unix.AF_INET)
		if err != nil {
			t.Fatal(err)
		}
		got := false
		for _, m := range met {
			got = got || m.IP.Equal(addr.AsSlice()) && m.State&netlink.NUD_PERMANENT != 0 && m.HardwareAddr.String() == hardwareOf(addr).String()
		}
		if got != want {
			t.Errorf("%s: known %t, want %t; %v", what, got, want, met)
		}
	}
	forget := func() {
		t.Helper()
		if err := unmeet(n.bridgeIndex(), layer4, addr); err != nil {
			t.Fatal(err)
		}
		known("forgotten", false)
	}
	known("attached", true)
	forget()
	if _, err := n.Mend(t.Context()); err != nil {
		t.Fatal(err)
	}
	known("mended", true)
	forget()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	known("taken over", true)
	n.leave(t, web)
	known("gone", false)
}
