package network

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/hostport"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// attachWith attaches a new sandbox with ports of the node.
func (n *node) attachWith(t *testing.T, ports ...Port) (id.Sandbox, netip.Addr, error) {
	t.Helper()
	return n.attachAs(t, Wanted{Ports: ports})
}

// leave takes a sandbox away.
func (n *node) leave(t *testing.T, uid id.Sandbox) {
	t.Helper()
	if err := errors.Join(n.Detach(uid), n.pins.Release(uid)); err != nil {
		t.Fatal(err)
	}
}

// inNet runs f where a sandbox is, or in the node for no sandbox.
func (n *node) inNet(uid id.Sandbox, f func() error) error {
	if uid == "" {
		return f()
	}
	return namespace.Inside(n.pins.Path(uid, namespace.Net), f)
}

// tellSource answers each connection to a port of a sandbox with who it comes from.
func tellSource(t *testing.T, n *node, uid id.Sandbox, port uint16) {
	t.Helper()
	var l net.Listener
	err := n.inNet(uid, func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)) // of both kinds of IP, where there are both
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { // ends with the listener; waited for in the cleanup
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = fmt.Fprintln(c, host)
			_ = c.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
}

// source connects and returns what it is told.
func source(n *node, from id.Sandbox, to string) (line string, err error) {
	err = n.inNet(from, func() error {
		c, err := net.DialTimeout("tcp4", to, 3*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return err
		}
		line, err = bufio.NewReader(c).ReadString('\n')
		return err
	})
	return strings.TrimSpace(line), err
}

// freeHostPort is a port that no program of the node has.
func freeHostPort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// Addresses of a machine beside the node, and of the node there.
const (
	lanNode = "198.51.100.1"
	lanPeer = "198.51.100.2"
)

// lanInterface is what the node has there.
func lanInterface() string { return fmt.Sprintf("sdl%d", os.Getpid()%1_000_000) }

// lan makes a machine beside the node that has the node as its gateway.
func lan(t *testing.T, n *node) id.Sandbox {
	t.Helper()
	peer := id.NewSandbox()
	if err := n.pins.Ensure(peer, namespace.Wanted{Network: true, Hostname: "lan"}); err != nil {
		t.Fatal(err)
	}
	ns, err := n.pins.OpenNet(peer)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = lanInterface()
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "lan0", PeerNamespace: netlink.NsFd(ns.Fd())}
	cidr := func(text string) *netlink.Addr {
		return &netlink.Addr{IPNet: ipNet(netip.MustParseAddr(text), 24)}
	}
	if err := errors.Join(netlink.LinkAdd(veth), netlink.AddrAdd(veth, cidr(lanNode)), netlink.LinkSetUp(veth)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(veth); err != nil && !isGone(err) {
			t.Error(err)
		}
	})
	err = n.inNet(peer, func() error {
		link, err := netlink.LinkByName("lan0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(link, cidr(lanPeer)), netlink.LinkSetUp(link),
			netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(lanNode)}))
	})
	if err != nil {
		t.Fatal(err)
	}
	return peer
}

// NET-5: a published port is reached from everywhere, also from the sandbox itself, from
// its neighbour and over the node's loopback; also after a restart. It sees who that is: only to
// itself, and for the node's loopback, it is the gateway.
func TestNetwork_NET5_PublishedPortIsReachedFromEverywhere(t *testing.T) {
	withFilterOfBridges(t, reachesPublished)
}

func reachesPublished(t *testing.T) {
	n := newNode(t, "10.202.30.0/24")
	peer := lan(t, n)
	port := freeHostPort(t)
	web, _, err := n.attachWith(t, Port{Protocol: hostport.TCP, Host: port, Inside: 80})
	if err != nil {
		t.Fatal(err)
	}
	neighbour, neighbourAt := n.attach(t)
	tellSource(t, n, web, 80)
	gateway := n.gateway().String()
	for _, restart := range []bool{false, true} {
		if restart {
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			n.open(t)
		}
		for _, tt := range []struct {
			name string
			from id.Sandbox
			to   string
			want string // the source that it sees
		}{
			{"itself", web, lanNode, gateway},
			{"itself, at the gateway", web, gateway, gateway},
			{"a neighbour", neighbour, lanNode, neighbourAt.String()},
			{"a neighbour, at the gateway", neighbour, gateway, neighbourAt.String()},
			{"the node's loopback", "", "127.0.0.1", gateway},
			{"another loopback address", "", "127.9.9.9", gateway},
			{"the node, at an address of it", "", lanNode, lanNode},
			{"another machine", peer, lanNode, lanPeer},
		} {
			got, err := source(n, tt.from, fmt.Sprintf("%s:%d", tt.to, port))
			if err != nil || got != tt.want {
				t.Errorf("restarted %t, from %s: got %q, %v, want %q", restart, tt.name, got, err, tt.want)
			}
		}
	}
	n.leave(t, web)
	began := time.Now()
	if got, err := source(n, peer, fmt.Sprintf("%s:%d", lanNode, port)); err == nil || time.Since(began) > 2*time.Second {
		t.Errorf("without a sandbox: got %q, %v after %s, want a refusal at once", got, err, time.Since(began))
	}
}

// SCY-3: what is published at one address is reached there and nowhere else, and what is
// not published is not reached at all.
func TestNetwork_SCY3_OnlyWherePublished(t *testing.T) {
	n := newNode(t, "10.202.31.0/24")
	peer := lan(t, n)
	loop, there := freeHostPort(t), freeHostPort(t)
	web, addr, err := n.attachWith(t,
		Port{Protocol: hostport.TCP, Host: loop, Address: netip.MustParseAddr("127.0.0.1"), Inside: 80},
		Port{Protocol: hostport.TCP, Host: there, Address: netip.MustParseAddr(lanNode), Inside: 80})
	if err != nil {
		t.Fatal(err)
	}
	neighbour, _ := n.attach(t)
	tellSource(t, n, web, 80)
	aimAtLoopback(t, n, peer)
	at := func(host string, port uint16) string {
		return netip.AddrPortFrom(netip.MustParseAddr(host), port).String()
	}
	for _, tt := range []struct {
		name string
		from id.Sandbox
		to   string
		want bool
	}{
		{"the node", "", at("127.0.0.1", loop), true},
		{"another loopback address", "", at("127.0.0.2", loop), false},
		{"another machine, at the node's address", peer, at(lanNode, loop), false},
		{"another machine, at 127.0.0.1", peer, at("127.0.0.1", loop), false},
		{"a neighbour, at the gateway", neighbour, at(n.gateway().String(), loop), false},
		{"another machine", peer, at(lanNode, there), true},
		{"the node, at loopback", "", at("127.0.0.1", there), false},
		{"another machine, at the gateway", peer, at(n.gateway().String(), there), false},
		{"another machine, at the sandbox itself", peer, netip.AddrPortFrom(addr, 80).String(), false},
	} {
		if got, err := source(n, tt.from, tt.to); (err == nil) != tt.want {
			t.Errorf("from %s: got %q, %v, want it reached: %t", tt.name, got, err, tt.want)
		}
	}
}

// aimAtLoopback makes a machine send what is for 127.0.0.1 to the node.
func aimAtLoopback(t *testing.T, n *node, peer id.Sandbox) {
	t.Helper()
	err := n.inNet(peer, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName("lan0")
		if err != nil {
			return err
		}
		return errors.Join(
			netlink.AddrDel(lo, &netlink.Addr{IPNet: ipNet(netip.MustParseAddr("127.0.0.1"), 8)}),
			os.WriteFile("/proc/sys/net/ipv4/conf/lan0/route_localnet", []byte("1"), 0),
			netlink.RouteAdd(&netlink.Route{
				LinkIndex: link.Attrs().Index, Dst: ipNet(netip.MustParseAddr("127.0.0.1"), 32), Gw: net.ParseIP(lanNode), Src: net.ParseIP(lanPeer),
			}))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// NET-6: packets of udp go to whoever has the port now, from a client that never changes
// its own; also when for a while nobody had it.
func TestNetwork_NET6_UDPFollowsTheNext(t *testing.T) {
	n := newNode(t, "10.202.32.0/24")
	peer := lan(t, n)
	port := freeHostPort(t)
	published := Port{Protocol: hostport.UDP, Host: port, Inside: 5353}
	var client net.Conn
	err := n.inNet(peer, func() (err error) {
		client, err = net.Dial("udp4", netip.AddrPortFrom(netip.MustParseAddr(lanNode), port).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	echo := func() string {
		buffer := make([]byte, 64)
		_ = client.SetDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := client.Write([]byte("?")); err != nil {
			return err.Error()
		}
		read, err := client.Read(buffer)
		if err != nil {
			return err.Error()
		}
		return string(buffer[:read])
	}
	for range 4 {
		echo() // to nobody
		uid, addr, err := n.attachWith(t, published)
		if err != nil {
			t.Fatal(err)
		}
		var server net.PacketConn
		err = n.inNet(uid, func() (err error) {
			server, err = net.ListenPacket("udp4", ":5353")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { // ends with the socket; waited for below
			defer close(ended)
			buffer := make([]byte, 64)
			for {
				_, from, err := server.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = server.WriteTo([]byte(addr.String()), from)
			}
		}()
		deadline, last := time.Now().Add(2*time.Second), echo()
		for ; last != addr.String() && time.Now().Before(deadline); last = echo() {
		}
		if last != addr.String() {
			t.Errorf("got %q, want %s within two seconds", last, addr)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-ended
		n.leave(t, uid)
	}
}

// NET-9: a port that a program of the node has is refused with its name, and one of
// another sandbox with that; neither leaves a rule. It is free when nobody has it, also
// after the death of everything.
func TestNetwork_NET9_PortsAreHadOnce(t *testing.T) {
	n := newNode(t, "10.202.33.0/24")
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	used := Port{Protocol: hostport.TCP, Host: uint16(l.Addr().(*net.TCPAddr).Port), Inside: 80}
	refused, _, err := n.attachWith(t, used)
	if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) || fault.Reason(err) != reasonPortInUse {
		t.Errorf("got %v, want it refused with its owner", err)
	}
	if got, err := n.listPublished(); err != nil || len(got) != 0 {
		t.Errorf("got rules %v, %v, want none", got, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Attach(t.Context(), refused, Wanted{Ports: []Port{used}}); err != nil {
		t.Errorf("the port is free: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	_, _, err = n.attachWith(t, used)
	if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), string(refused)) || fault.Reason(err) != reasonPortTaken {
		t.Errorf("got %v, want it refused with the sandbox that has it", err)
	}
	n.leave(t, refused)
	if _, _, err = n.attachWith(t, used); err != nil {
		t.Errorf("it was given back: %v", err)
	}
	_, _, err = n.attachWith(t, Port{Protocol: hostport.TCP, Host: 1, Address: netip.MustParseAddr("203.0.113.9"), Inside: 80})
	if fault.Reason(err) != reasonAddressMissing {
		t.Errorf("got %v, want that the node has no such address", err)
	}
}

// The ledger is lost: what leads to those that run is taken from the kernel, and is
// neither lost nor given to another.
func TestNetwork_NET9_PublishedPortsAreFoundAgain(t *testing.T) {
	n := newNode(t, "10.202.34.0/24")
	ports := []Port{
		{Protocol: hostport.TCP, Host: freeHostPort(t), Inside: 80},
		{Protocol: hostport.UDP, Host: 20053, Address: netip.MustParseAddr("127.0.0.1"), Inside: 53},
	}
	uid, _, err := n.attachWith(t, ports...)
	if err != nil {
		t.Fatal(err)
	}
	want := n.published()
	if err := errors.Join(n.Close(), os.Remove(n.cfg.Ledger)); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	if got, err := n.listPublished(); err != nil || !slices.Equal(got, want) || !slices.Equal(n.published(), want) {
		t.Errorf("got %v, %v, and the ledger has %v, want %v", got, err, n.published(), want)
	}
	if _, _, err = n.attachWith(t, ports[0]); fault.Reason(err) != reasonPortTaken {
		t.Errorf("got %v, want it taken", err)
	}
	n.leave(t, uid)
}

// NET-4: maps that others empty or add to are made as they should be.
func TestNetwork_NET4_MendsPublishedPorts(t *testing.T) {
	n := newNode(t, "10.202.35.0/24")
	if _, _, err := n.attachWith(t, Port{Protocol: hostport.TCP, Host: freeHostPort(t), Inside: 80}); err != nil {
		t.Fatal(err)
	}
	want := n.published()
	stranger := element{port: Port{Protocol: hostport.TCP, Host: 22, Inside: 22}, to: n.gateway()}
	for name, harm := range map[string]func(c *nftables.Conn) error{
		"emptied": func(c *nftables.Conn) error { c.FlushSet(portMap(n.table(), mapPorts)); return nil },
		"added": func(c *nftables.Conn) error {
			name, e := stranger.set()
			return c.SetAddElements(portMap(n.table(), name), []nftables.SetElement{e})
		},
		"flushed": func(c *nftables.Conn) error { c.DelTable(n.table()); return nil },
	} {
		c, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(harm(c), c.Flush()); err != nil {
			t.Fatal(err)
		}
		_, err = n.Mend(t.Context())
		got, listErr := n.listPublished()
		if err := errors.Join(err, listErr); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, want)
		}
		before := handles(t, n)
		if _, err := n.Mend(t.Context()); err != nil || !slices.Equal(before, handles(t, n)) {
			t.Errorf("%s: written anew at rest, %v", name, err)
		}
	}
}
