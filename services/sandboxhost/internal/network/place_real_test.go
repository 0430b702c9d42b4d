package network

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
)

// No sandbox gets what is sent to another by saying, in frames that no rule is asked about,
// that it has its hardware address; also after the bridge has forgotten everything, and after
// interfaces of an older version were taken over.
func TestNetwork_PlaceOfASandboxIsNotLearnt(t *testing.T) {
	n := newNode(t, "10.202.61.0/24")
	victim, at := n.attach(t)
	liar, _ := n.attach(t)
	link := mustLink(t, hostInterface(victim))
	ear := hear(t, n, victim)
	check := func(when string) {
		t.Helper()
		lie(t, n, liar, hardwareOf(at))
		if entry := placeOf(t, n, hardwareOf(at)); entry == nil || entry.LinkIndex != link.Attrs().Index || entry.State&netlink.NUD_NOARP == 0 {
			t.Errorf("%s: bridge says that the sandbox is at %v, want interface %d for good", when, entry, link.Attrs().Index)
		}
		for _, uid := range []id.Sandbox{victim, liar} {
			port, err := netlink.LinkGetProtinfo(mustLink(t, hostInterface(uid)))
			if err != nil || port.Learning || port.Flood {
				t.Errorf("%s: bridge learns of the interface of sandbox %s: %t, or sends it what is for others: %t; %v", when, uid, port.Learning, port.Flood, err)
			}
		}
		c, err := net.Dial("udp", net.JoinHostPort(at.String(), "7002"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Write([]byte(when))
		if err := errors.Join(err, c.Close()); err != nil {
			t.Fatal(err)
		}
		first(t, ear, when)
	}
	older := func() {
		t.Helper()
		entry := placeOf(t, n, hardwareOf(at))
		if entry == nil {
			t.Fatal("the bridge does not know the sandbox")
		}
		err := errors.Join(netlink.NeighDel(entry), netlink.LinkSetLearning(link, true), netlink.LinkSetFlood(link, true))
		if err != nil {
			t.Fatal(err)
		}
	}
	check("attached")
	older()
	if _, err := n.Mend(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("mended")
	older()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	check("taken over")
	if broken, err := n.broken(); err != nil || broken != "" {
		t.Errorf("got %q, %v, want nothing broken", broken, err)
	}
}

// lie sends frames with the hardware address of another to addresses of protocols of bridges.
func lie(t *testing.T, n *node, from id.Sandbox, hardware net.HardwareAddr) {
	t.Helper()
	for _, last := range []byte{0x00, 0x03, 0x0e} { // of spanning trees, of access control and of LLDP
		frame := append(ethernetHeader(hardware, net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, last}, 0x88cc), make([]byte, 46)...)
		if err := n.inNet(from, func() error { return sendFrame(0x88cc, frame) }); err != nil {
			t.Fatal(err)
		}
	}
}

// placeOf is what the bridge knows of a hardware address, nil if nothing.
func placeOf(t *testing.T, n *node, hardware net.HardwareAddr) *netlink.Neigh {
	t.Helper()
	entries, err := netlink.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if bytes.Equal(e.HardwareAddr, hardware) && e.MasterIndex == n.bridge {
			e.Family, e.Flags = unix.AF_BRIDGE, netlink.NTF_MASTER
			return &e
		}
	}
	return nil
}

// A sandbox that may change its network takes the address of another, and lets no route be
// set: a start of the node goes on, everybody keeps his address, and is reached at it.
func TestNetwork_SandboxThatChangesItsNetworkHoldsUpNobody(t *testing.T) {
	n := newNode(t, "10.202.62.0/24")
	victim, at := n.attach(t)
	changed, own := n.attach(t)
	tellSource(t, n, victim, openPort)
	err := n.inNet(changed, func() error {
		link, err := netlink.LinkByName(inside)
		if err != nil {
			return err
		}
		rule := netlink.NewRule()
		rule.Priority, rule.Type, rule.Family = 0, unix.FR_ACT_UNREACHABLE, unix.AF_INET
		return errors.Join(
			netlink.AddrDel(link, &netlink.Addr{IPNet: ipNet(own, n.cfg.Subnet.Bits())}),
			netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(at, n.cfg.Subnet.Bits())}),
			netlink.RuleAdd(rule))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	if got := n.Addresses(); got[victim] != at || got[changed] != own {
		t.Errorf("got the addresses %v, want %s for %s and %s for %s", got, at, victim, own, changed)
	}
	tries(t, n, "", "from the node", net.JoinHostPort(at.String(), "7000"), true)
}
