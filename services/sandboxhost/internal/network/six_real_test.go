package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/hostport"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// subnet6 is that of the tests.
var subnet6 = netip.MustParsePrefix("fd53:7374:6164::/64")

// withSix opens the network anew with IPv6, or without for the zero Prefix.
func (n *node) withSix(t *testing.T, subnet netip.Prefix, p Policy) {
	t.Helper()
	n.cfg.Subnet6 = subnet
	n.with(t, p)
}

// tries6 checks that a sandbox is answered at an address, and as whom, or that it is refused
// at once for an empty one.
func tries6(t *testing.T, n *node, from id.Sandbox, what string, to netip.AddrPort, want string) {
	t.Helper()
	var got string
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
	defer stop()
	err := n.inNet(from, func() error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp6", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := io.ReadAll(c)
		got = strings.TrimSpace(string(raw))
		return err
	})
	if want == "" && !errors.Is(err, unix.ECONNREFUSED) || want != "" && (err != nil || got != want) {
		t.Errorf("%s, at %s: got %q, %v, want %q", what, to, got, err, want)
	}
}

// Sandboxes reach each other, the outside and what is allowed over IPv6, and nothing else;
// their addresses follow from those that the ledger has.
func TestNetwork_IPv6(t *testing.T) {
	n := newNode(t, "10.202.70.0/24")
	before, beforeAt := n.attach(t) // it runs when IPv6 comes
	allowed, closed := freeHostPort(t), freeHostPort(t)
	n.withSix(t, subnet6, Policy{Ports: []PortRange{{hostport.TCP, allowed, allowed}}})
	web, webAt := n.member(t, "")
	db, dbAt := n.member(t, "db")
	port := func(addr netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(addr, port) }
	six := func(addr netip.Addr) netip.Addr {
		t.Helper()
		b, last := subnet6.Addr().As16(), addr.As4()
		b[15] = last[3]
		return netip.AddrFrom16(b)
	}
	if got, err := n.AddressesOf(web); err != nil || fmt.Sprint(got) != fmt.Sprint([]netip.Addr{webAt, six(webAt)}) {
		t.Errorf("got %v, %v, want %s and %s", got, err, webAt, six(webAt))
	}
	for uid := range map[id.Sandbox]bool{before: true, web: true, db: true} {
		tellSource(t, n, uid, 6000)
	}
	tellSource(t, n, "", allowed)
	tellSource(t, n, "", closed)
	gateway := n.gatewayOf(layer6)
	again := func(when string) {
		t.Helper()
		tries6(t, n, web, "a neighbour that was there, "+when, port(six(beforeAt), 6000), six(webAt).String())
		tries6(t, n, before, "a neighbour that came, "+when, port(six(webAt), 6000), six(beforeAt).String())
		tries6(t, n, "", "the node, "+when, port(six(webAt), 6000), gateway.String())
		tries6(t, n, web, "another group, "+when, port(six(dbAt), 6000), "")
		tries6(t, n, web, "an allowed port of the node, "+when, port(gateway, allowed), six(webAt).String())
		tries6(t, n, web, "a port of the node, "+when, port(gateway, closed), "")
		tries6(t, n, web, "metadata, "+when, netip.MustParseAddrPort("[fd00:ec2::254]:80"), "")
	}
	again("at first")
	for name, harm := range map[string]func() error{
		"the table is gone":  func() error { return removeTable(n.tableOf(layer6)) },
		"the bridge is gone": func() error { return netlink.LinkDel(mustLink(t, n.cfg.Bridge)) },
		"the bridge went down": func() error {
			l := mustLink(t, n.cfg.Bridge)
			return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetUp(l))
		},
		"IPv6 was switched off": func() error { return os.WriteFile(n.ipv6File(), []byte("1"), 0) },
		"it passes nothing on":  func() error { return os.WriteFile(setting6("all", "forwarding"), []byte("0"), 0) },
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		off, err := n.Mend(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, uid := range off {
			group := map[id.Sandbox]string{db: "db"}[uid]
			if _, err := n.Attach(t.Context(), uid, Wanted{Group: group}); err != nil {
				t.Fatal(err)
			}
		}
		again("after " + name)
		if broken, err := n.Fault(); broken != "" || err != nil {
			t.Errorf("after %s: still %q, %v", name, broken, err)
		}
	}
	tries6(t, n, "", "the node, before it leaves", port(six(dbAt), 6000), gateway.String())
	if flows := flows6(t, six(dbAt)); flows == 0 {
		t.Error("the kernel knows no connection of a sandbox that was reached")
	}
	n.leave(t, db)
	if flows := flows6(t, six(dbAt)); flows > 0 { // who has the address next would be reached by them
		t.Errorf("%d connections of a sandbox that is gone are left", flows)
	}
	met, err := netlink.NeighList(mustLink(t, n.cfg.Bridge).Attrs().Index, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range met {
		if m.IP.Equal(six(dbAt).AsSlice()) {
			t.Errorf("a neighbour is left: %s", m.String())
		}
	}
	n.withSix(t, netip.Prefix{}, Policy{})
	tries(t, n, web, "IPv4 when IPv6 is gone", netip.AddrPortFrom(beforeAt, 1).String(), false)
	if got := left6(t, n, web); len(got) > 0 {
		t.Errorf("IPv6 was taken away, and %v is left", got)
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyIPv6)
	if err != nil || slices.ContainsFunc(tables, func(table *nftables.Table) bool { return table.Name == n.tableName() }) {
		t.Errorf("tables %v, %v: want ours removed", tables, err)
	}
}

// left6 is what the node has given a sandbox of IPv6: addresses, routes and neighbours.
func left6(t *testing.T, n *node, uid id.Sandbox) (all []string) {
	t.Helper()
	err := namespace.Inside(n.pins.Path(uid, namespace.Net), func() error {
		link := mustLink(t, inside)
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
		routes, routesErr := netlink.RouteList(link, netlink.FAMILY_V6)
		met, metErr := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V6)
		for _, r := range routes {
			if r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() {
				all = append(all, r.String())
			}
		}
		for _, m := range met {
			if m.State&netlink.NUD_PERMANENT != 0 {
				all = append(all, m.String())
			}
		}
		for _, a := range addrs {
			if !a.IP.IsLinkLocalUnicast() {
				all = append(all, a.String())
			}
		}
		return errors.Join(err, routesErr, metErr)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What a sandbox sends to the outside carries the node's address.
func TestNetwork_IPv6ToTheOutside(t *testing.T) {
	n := newNode(t, "10.202.71.0/24")
	peer := lan(t, n)
	n.withSix(t, subnet6, Policy{})
	const node6, peer6 = "2001:db8:53::1", "2001:db8:53::2"
	address := func(link, text string) error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(netip.MustParseAddr(text), 64), Flags: unix.IFA_F_NODAD})
	}
	if err := errors.Join(address(lanInterface(), node6), n.inNet(peer, func() error { return address("lan0", peer6) })); err != nil {
		t.Fatal(err)
	}
	web, webAt := n.attach(t)
	tellSource(t, n, peer, 6000)
	tellSource(t, n, web, 6000)
	tries6(t, n, web, "the outside", netip.MustParseAddrPort("["+peer6+"]:6000"), node6)
	err := n.inNet(peer, func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: ipNet(subnet6.Addr(), subnet6.Bits()), Gw: net.ParseIP(node6)})
	})
	if err != nil {
		t.Fatal(err)
	}
	err = n.inNet(peer, func() error {
		c, err := net.DialTimeout("tcp6", netip.AddrPortFrom(n.six(webAt), 6000).String(), time.Second)
		if err == nil {
			err = errors.Join(errors.New("a stranger came in"), c.Close())
		}
		return err
	})
	if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
		t.Errorf("from the outside: got %v, want that it is dropped", err)
	}
}

// Nobody sends as another, and is believed, over IPv6.
func TestNetwork_NobodySendsAsAnotherOverIPv6(t *testing.T) {
	n := newNode(t, "10.202.72.0/24")
	n.withSix(t, subnet6, Policy{})
	forger, own := n.member(t, "")
	_, victim := n.member(t, "")
	target, targetAt := n.member(t, "")
	heard := hear(t, n, target)
	gateway := hardwareAddress(n.cfg.Bridge)
	send := func(from netip.Addr, hardware, to net.HardwareAddr, text string) {
		t.Helper()
		frame := datagram6(hardware, to, netip.AddrPortFrom(n.six(from), 9), netip.AddrPortFrom(n.six(targetAt), heardPort), text)
		if err := n.inNet(forger, func() error { return sendFrame(unix.ETH_P_IPV6, frame) }); err != nil {
			t.Fatal(err)
		}
	}
	send(victim, hardwareOf(own), gateway, "its address")
	send(victim, hardwareOf(victim), gateway, "both its addresses")
	send(own, hardwareOf(own), hardwareOf(targetAt), "past the gateway")
	send(own, hardwareOf(own), gateway, "end")
	first(t, heard, "end")
}

// flows6 is how many connections from or to an address the kernel remembers.
func flows6(t *testing.T, addr netip.Addr) (count int) {
	t.Helper()
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET6)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		if f.Forward.DstIP.Equal(addr.AsSlice()) || f.Forward.SrcIP.Equal(addr.AsSlice()) {
			count++
		}
	}
	return count
}
