package network

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// harm is something that others do to a node's network.
type harm struct {
	name string
	do   func(n *node, t *testing.T, uid id.Sandbox) error
}

// inTable does something to the rules.
func inTable(do func(*nftables.Conn, *nftables.Table) error) func(*node, *testing.T, id.Sandbox) error {
	return func(n *node, _ *testing.T, _ id.Sandbox) error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		return errors.Join(do(c, n.table()), c.Flush())
	}
}

func harms() []harm {
	bridge := func(do func(netlink.Link) error) func(*node, *testing.T, id.Sandbox) error {
		return func(n *node, t *testing.T, _ id.Sandbox) error { return do(mustLink(t, n.cfg.Bridge)) }
	}
	port := func(do func(netlink.Link) error) func(*node, *testing.T, id.Sandbox) error {
		return func(_ *node, t *testing.T, uid id.Sandbox) error { return do(mustLink(t, hostInterface(uid))) }
	}
	within := func(do func(link netlink.Link, n *node) error) func(*node, *testing.T, id.Sandbox) error {
		return func(n *node, t *testing.T, uid id.Sandbox) error {
			return n.inNet(uid, func() error { return do(mustLink(t, inside), n) })
		}
	}
	forward := func(t *nftables.Table) *nftables.Chain { return &nftables.Chain{Name: "forward", Table: t} }
	return []harm{
		{"table removed", inTable(func(c *nftables.Conn, t *nftables.Table) error { c.DelTable(t); return nil })},
		{"chain flushed", inTable(func(c *nftables.Conn, t *nftables.Table) error { c.FlushChain(forward(t)); return nil })},
		{"rule added", inTable(func(c *nftables.Conn, t *nftables.Table) error {
			c.AddRule(&nftables.Rule{Table: t, Chain: forward(t), Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}})
			return nil
		})},
		{"set emptied", inTable(func(c *nftables.Conn, t *nftables.Table) error {
			set, err := c.GetSetByName(t, "sandboxes")
			if err == nil {
				c.FlushSet(set)
			}
			return err
		})},
		{"bridge removed", bridge(netlink.LinkDel)},
		{"bridge down", bridge(netlink.LinkSetDown)},
		{"bridge without address", bridge(func(l netlink.Link) error {
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
			if err != nil || len(addrs) == 0 {
				return fmt.Errorf("%v, %w", addrs, err)
			}
			return netlink.AddrDel(l, &addrs[0])
		})},
		{"bridge with IPv6", func(n *node, _ *testing.T, _ id.Sandbox) error { return os.WriteFile(n.ipv6File(), []byte("0"), 0) }},
		{"redirects", func(n *node, _ *testing.T, _ id.Sandbox) error { return set(n.redirectFiles()[1], "1") }},
		{"port off the bridge", port(netlink.LinkSetNoMaster)},
		{"port down", port(netlink.LinkSetDown)},
		{"port removed", port(netlink.LinkDel)},
		{"down within", within(func(l netlink.Link, _ *node) error { return netlink.LinkSetDown(l) })},
		{"loopback down", within(func(netlink.Link, *node) error {
			lo, err := netlink.LinkByName(localName)
			return errors.Join(err, netlink.LinkSetDown(lo))
		})},
		{"no address within", within(func(l netlink.Link, _ *node) error {
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
			if err != nil || len(addrs) == 0 {
				return fmt.Errorf("%v, %w", addrs, err)
			}
			return netlink.AddrDel(l, &addrs[0])
		})},
		{"no default route", within(func(l netlink.Link, n *node) error {
			return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: n.gateway().AsSlice()})
		})},
	}
}

// NET-4: what others take away comes back, once, and at rest nothing is written.
func TestNetwork_NET4_MendsWhatOthersTookAway(t *testing.T) {
	n := newNode(t, "10.202.7.0/24")
	one, _ := n.attach(t)
	two, addr := n.attach(t)
	rules, err := n.listRules(n.table())
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range harms() {
		t.Run(h.name, func(t *testing.T) {
			if err := h.do(n, t, one); err != nil {
				t.Fatal(err)
			}
			off, err := n.Mend(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, uid := range off {
				if _, err := n.Attach(t.Context(), uid, Wanted{}); err != nil {
					t.Fatal(err)
				}
			}
			checkMended(t, n, rules)
			checkWithin(t, n, one)
			if err := talk(n, one, two, addr); err != nil {
				t.Error(err)
			}
		})
	}
}

// checkMended demands that all is as it was, and that one more look changes nothing.
func checkMended(t *testing.T, n *node, rules map[string]string) {
	t.Helper()
	if now, err := n.listRules(n.table()); err != nil || !maps.Equal(now, rules) {
		t.Errorf("the rules are others than before: %v", err)
	}
	before := handles(t, n)
	off, err := n.Mend(t.Context())
	if err != nil || len(off) > 0 {
		t.Errorf("looked again: %v are off, %v", off, err)
	}
	if after := handles(t, n); !slices.Equal(before, after) {
		t.Errorf("rules %v were written anew as %v at rest", before, after)
	}
}

// handles are the kernel's numbers of our rules, which change when they are written.
func handles(t *testing.T, n *node) []uint64 {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	var all []uint64
	for _, name := range []string{"postrouting", "forward", ofGroup(prefixFrom, DefaultGroup)} {
		rules, err := c.GetRules(n.table(), &nftables.Chain{Name: name, Table: n.table()})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			all = append(all, r.Handle)
		}
	}
	return all
}

// talk opens a connection from one sandbox to another, and from the node to it.
func talk(n *node, from, to id.Sandbox, addr netip.Addr) error {
	l, err := listenIn(n, to, addr)
	if err != nil {
		return err
	}
	dial := func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	}
	return errors.Join(namespace.Inside(n.pins.Path(from, namespace.Net), dial), dial(), l.Close())
}

func listenIn(n *node, uid id.Sandbox, addr netip.Addr) (l net.Listener, err error) {
	err = namespace.Inside(n.pins.Path(uid, namespace.Net), func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	return l, err
}

// A step that meets the loss before anybody mends it does not fail for it.
func TestNetwork_AttachesAlthoughTheBridgeIsGone(t *testing.T) {
	n := newNode(t, "10.202.8.0/24")
	if err := netlink.LinkDel(mustLink(t, n.cfg.Bridge)); err != nil {
		t.Fatal(err)
	}
	one, _ := n.attach(t)
	two, addr := n.attach(t)
	if err := talk(n, one, two, addr); err != nil {
		t.Error(err)
	}
}
