package balance

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/hostport"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// onNode is a front of the node, at all addresses for "".
func onNode(text, protocol string, port uint16) Front {
	addr, _ := netip.ParseAddr(text)
	return Front{Node: true, Address: addr, Protocol: protocol, Port: port}
}

// toward is a front as it is dialled at an address.
func toward(text string, f Front) Front {
	f.Address = netip.MustParseAddr(text)
	return f
}

// peer makes a machine beside the node, whose address there it returns too.
func (n *node) peer(t *testing.T) (uid id.Sandbox, own string) {
	t.Helper()
	uid = id.NewSandbox()
	if err := n.pins.Ensure(uid, namespace.Wanted{Network: true, Hostname: "lan"}); err != nil {
		t.Fatal(err)
	}
	ns, err := n.pins.OpenNet(uid)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "l" + n.cfg.Bridge
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "lan0", PeerNamespace: netlink.NsFd(ns.Fd())}
	address := func(text string) *netlink.Addr {
		return &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(text), Mask: net.CIDRMask(24, 32)}}
	}
	const there, here = "198.51.100.2", "198.51.100.1"
	if err := errors.Join(netlink.LinkAdd(veth), netlink.AddrAdd(veth, address(here)), netlink.LinkSetUp(veth)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(veth); err != nil {
			t.Error(err)
		}
	})
	err = n.inside(uid, func() error {
		link, err := netlink.LinkByName("lan0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(link, address(there)), netlink.LinkSetUp(link))
	})
	if err != nil {
		t.Fatal(err)
	}
	return uid, here
}

// NET-5: a port of the node leads to all sandboxes behind a service, from another machine,
// from the node at every address and over loopback, from a neighbour and from themselves;
// one of a single address is reached there and nowhere else.
func TestBalance_NET5_NodePortIsReachedFromEverywhere(t *testing.T) {
	n := newNode(t, "10.203.8.0/24", "10.203.240.0/20")
	one, two, client := n.attach(t), n.attach(t), n.attach(t)
	peer, here := n.peer(t)
	gateway := n.cfg.Gateway.String()
	for _, protocol := range []string{hostport.TCP, hostport.UDP} {
		all, there, loop := onNode("", protocol, 30080), onNode(here, protocol, 30081), onNode("127.0.0.1", protocol, 30082)
		set(t, n, map[Front]Service{
			all: {Backends: at(one, two)}, there: {Backends: at(one)}, loop: {Affinity: time.Minute, Backends: at(one)},
		})
		for _, tt := range []struct {
			from id.Sandbox
			to   Front
			by   []sandbox
		}{
			{peer, toward(here, all), []sandbox{one, two}},
			{"", toward(here, all), []sandbox{one, two}},
			{"", toward("127.0.0.1", all), []sandbox{one, two}},
			{"", toward("127.9.9.9", all), []sandbox{one, two}},
			{"", toward(gateway, all), []sandbox{one, two}},
			{client.uid, toward(here, all), []sandbox{one, two}},
			{client.uid, toward(gateway, all), []sandbox{one, two}},
			{one.uid, toward(here, all), []sandbox{one, two}},
			{peer, there, []sandbox{one}},
			{"", there, []sandbox{one}},
			{client.uid, there, []sandbox{one}},
			{"", loop, []sandbox{one}},
		} {
			n.met(t, tt.from, tt.to, tt.by...)
		}
		for _, tt := range []struct {
			from id.Sandbox
			to   Front
		}{{"", toward("127.0.0.1", there)}, {peer, toward(here, loop)}, {client.uid, toward(gateway, loop)}, {"", toward(gateway, there)}} {
			if who, err := n.ask(tt.from, tt.to); err == nil {
				t.Errorf("from %q to %s: answered by %s, want nothing there", tt.from, tt.to, who)
			}
		}
	}
}

// Without local net a port of the node leads nowhere from loopback, and goes on elsewhere.
func TestBalance_NodePortWithoutLocalNet(t *testing.T) {
	n := newNode(t, "10.203.12.0/24", "10.205.16.0/20")
	one := n.attach(t)
	peer, here := n.peer(t)
	n.cfg.NoLocalNet = true
	n.Balancer = New(n.cfg, n.log)
	all := onNode("", hostport.TCP, 30084)
	set(t, n, map[Front]Service{all: {Backends: at(one)}})
	for _, from := range []id.Sandbox{"", peer, one.uid} {
		n.met(t, from, toward(here, all), one)
	}
	if who, err := n.ask("", toward("127.0.0.1", all)); err == nil {
		t.Errorf("at loopback: answered by %s, want nothing there", who)
	}
}

// With nobody behind it a port of the node refuses at once, also when a program of the
// node listens there by now; and that program's own connections are not touched.
func TestBalance_NodePortRefusesAtOnceWithNobodyBehind(t *testing.T) {
	n := newNode(t, "10.203.9.0/24", "10.205.0.0/20")
	one, client := n.attach(t), n.attach(t)
	peer, here := n.peer(t)
	held := onNode("", hostport.TCP, 30083)
	set(t, n, map[Front]Service{held: {}})
	l, err := net.Listen("tcp4", ":30083")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, who := range []struct {
		from id.Sandbox
		at   string
	}{{peer, here}, {"", here}, {"", "127.0.0.1"}, {client.uid, here}, {client.uid, n.cfg.Gateway.String()}} {
		if got, err := n.ask(who.from, toward(who.at, held)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("from %q at %s: got %q, %v, want it refused", who.from, who.at, got, err)
		}
	}
	udp := onNode(here, hostport.UDP, 30084)
	set(t, n, map[Front]Service{udp: {}, held: {Backends: at(one)}})
	for _, from := range []id.Sandbox{peer, ""} {
		if got, err := n.ask(from, udp); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("udp from %q: got %q, %v, want it refused", from, got, err)
		}
	}
	n.met(t, peer, toward(here, held), one)

	set(t, n, map[Front]Service{held: {}})
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{Port: 30085}, Timeout: 3 * time.Second}
	set(t, n, map[Front]Service{onNode("", hostport.TCP, 30085): {}})
	c, err := dialer.Dial("tcp4", netip.AddrPortFrom(one.addr, 80).String())
	if err != nil {
		t.Fatalf("a connection whose own end is a held port: %v", err)
	}
	defer c.Close()
	if who, err := talk(c); err != nil || who != one.addr.String() {
		t.Errorf("got %q, %v, want %s", who, err, one.addr)
	}
}

// NET-6: a client of udp beside the node follows who is behind a port of the node, though
// it never changes its own port, also when for a while nobody was.
func TestBalance_NET6_NodePortOfUDPLeavesWhoIsGone(t *testing.T) {
	n := newNode(t, "10.203.10.0/24", "10.205.16.0/20")
	one, two := n.attach(t), n.attach(t)
	peer, here := n.peer(t)
	port := onNode("", hostport.UDP, 30086)
	for _, from := range []id.Sandbox{peer, ""} {
		set(t, n, map[Front]Service{port: {}})
		var c net.Conn
		err := n.inside(from, func() (err error) {
			c, err = net.Dial("udp4", netip.AddrPortFrom(netip.MustParseAddr(here), port.Port).String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if who, err := talk(c); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("from %q: got %q, %v, want it refused", from, who, err)
		}
		for i, want := range []sandbox{one, two, one} {
			set(t, n, map[Front]Service{port: {Backends: at(want)}})
			if who, err := talk(c); err != nil || who != want.addr.String() {
				t.Errorf("from %q, change %d: got %q, %v, want %s", from, i, who, err, want.addr)
			}
		}
	}
}
