package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// node is a network with the namespaces it works on.
type node struct {
	*Network

	cfg  Config
	pins *namespace.Pins
	wait func() time.Duration // time since boot; nil is the real one
}

func newNode(t *testing.T, subnet string) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "sdn")
	if err != nil {
		t.Fatal(err)
	}
	pins := namespace.New(filepath.Join(dir, "run"))
	if err := pins.Open(); err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Bridge: fmt.Sprintf("sdn%d", os.Getpid()%1_000_000), Subnet: netip.MustParsePrefix(subnet),
		Ledger: filepath.Join(dir, "network.db"),
	}
	n := &node{cfg: cfg, pins: pins}
	n.open(t)
	t.Cleanup(func() {
		uids, err := pins.Sandboxes()
		if err != nil {
			t.Error(err)
		}
		for _, uid := range uids {
			if err := errors.Join(n.Detach(uid), pins.Release(uid)); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(n.Teardown(context.WithoutCancel(t.Context())), n.Close(), pins.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *node) deps(t *testing.T) Deps {
	return Deps{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Namespaces: n.pins, Now: n.wait}
}

func (n *node) open(t *testing.T) {
	t.Helper()
	n.Network = New(n.cfg, n.deps(t))
	if err := n.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (n *node) attach(t *testing.T) (id.Sandbox, netip.Addr) {
	t.Helper()
	uid, addr, err := n.attachAs(t, Wanted{})
	if err != nil {
		t.Fatal(err)
	}
	return uid, addr
}

// attachAs attaches a new sandbox.
func (n *node) attachAs(t *testing.T, want Wanted) (id.Sandbox, netip.Addr, error) {
	t.Helper()
	uid := id.NewSandbox()
	if err := n.pins.Ensure(uid, namespace.Wanted{Network: true, Hostname: "web"}); err != nil {
		t.Fatal(err)
	}
	addr, err := n.Attach(t.Context(), uid, want)
	return uid, addr, err
}

func TestNetwork_ConnectsSandboxes(t *testing.T) {
	n := newNode(t, "10.202.1.0/24")
	one, _ := n.attach(t)
	two, addr := n.attach(t)
	if again, err := n.Attach(t.Context(), two, Wanted{}); err != nil || again != addr {
		t.Errorf("attached again: got %v, %v, want %v", again, err, addr)
	}
	accepted := make(chan error, 1)
	listening := make(chan struct{})
	go func() {
		accepted <- namespace.Inside(n.pins.Path(two, namespace.Net), func() error {
			l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 7000).String())
			close(listening)
			if err != nil {
				return err
			}
			c, err := l.Accept()
			if err != nil {
				return err
			}
			return errors.Join(c.Close(), l.Close())
		})
	}()
	<-listening
	err := namespace.Inside(n.pins.Path(one, namespace.Net), func() error {
		c, err := net.Dial("tcp", netip.AddrPortFrom(addr, 7000).String())
		if err != nil {
			return err
		}
		return c.Close()
	})
	if err := errors.Join(err, <-accepted); err != nil {
		t.Error(err)
	}
}

func TestNetwork_RebuildsFromNamespaces(t *testing.T) {
	n := newNode(t, "10.202.2.0/24")
	one, addr1 := n.attach(t)
	two, addr2 := n.attach(t)
	before := mustLink(t, n.cfg.Bridge).Attrs()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(n.cfg.Ledger), os.WriteFile(n.cfg.Ledger, []byte("garbled"), 0o600)); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	after := mustLink(t, n.cfg.Bridge).Attrs()
	if before.Index != after.Index || before.HardwareAddr.String() != after.HardwareAddr.String() {
		t.Errorf("bridge was %+v, is %+v", before, after)
	}
	for uid, want := range map[id.Sandbox]netip.Addr{one: addr1, two: addr2} {
		if got, whole, err := n.Address(uid); err != nil || !whole || got != want {
			t.Errorf("sandbox %s: got %v, whole %t, %v, want %v", uid, got, whole, err, want)
		}
	}
	if _, addr := n.attach(t); addr == addr1 || addr == addr2 {
		t.Errorf("got %s, which is in use", addr)
	}
	if err := errors.Join(n.Detach(one), n.pins.Release(one), n.Detach(one)); err != nil {
		t.Error(err)
	}
	if n.Holds(one) {
		t.Error("the address is still held")
	}
}

func TestNetwork_MendsHalfMade(t *testing.T) {
	n := newNode(t, "10.202.3.0/24")
	uid, addr := n.attach(t)
	if err := netlink.LinkSetDown(mustLink(t, hostInterface(uid))); err != nil {
		t.Fatal(err)
	}
	if _, whole, err := n.Address(uid); whole || err != nil {
		t.Errorf("whole %t, %v, want it seen", whole, err)
	}
	if again, err := n.Attach(t.Context(), uid, Wanted{}); err != nil || again != addr {
		t.Errorf("got %v, %v, want %v again", again, err, addr)
	}
	if _, whole, err := n.Address(uid); !whole || err != nil {
		t.Errorf("whole %t, %v, want it mended", whole, err)
	}
	stranger := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "sdnpeer"}
	stranger.Name, stranger.MasterIndex = "v"+id.NewSandbox().Short(), mustLink(t, n.cfg.Bridge).Attrs().Index
	if err := netlink.LinkAdd(stranger); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	if _, err := netlink.LinkByName(stranger.Name); !isGone(err) {
		t.Errorf("an interface of no sandbox is left: %v", err)
	}
}

// The subnet was changed between two boots: a note of an address that is none of
// the network's any more would keep its sandbox without one for ever.
func TestNetwork_FollowsTheSubnetAfterABoot(t *testing.T) {
	n := newNode(t, "10.202.15.0/24")
	uid, before := n.attach(t)
	link := mustLink(t, hostInterface(uid))
	if err := errors.Join(n.Close(), netlink.LinkDel(link), n.pins.Release(uid)); err != nil { // as a boot does
		t.Fatal(err)
	}
	n.cfg.Subnet = netip.MustParsePrefix("10.202.16.0/24")
	n.open(t)
	if err := n.pins.Ensure(uid, namespace.Wanted{Network: true, Hostname: "web"}); err != nil {
		t.Fatal(err)
	}
	if got, err := n.Attach(t.Context(), uid, Wanted{}); err != nil || !n.cfg.Subnet.Contains(got) {
		t.Errorf("had %s, got %v, %v, want an address of %s", before, got, err, n.cfg.Subnet)
	}
}

func TestNetwork_SaysWhenFull(t *testing.T) {
	n := newNode(t, "10.202.4.0/30")
	n.attach(t)
	if _, _, err := n.attachAs(t, Wanted{}); !errors.Is(err, fault.Exhausted) {
		t.Errorf("got %v, want exhausted", err)
	}
}

func TestNetwork_RulesAreOneTable(t *testing.T) {
	n := newNode(t, "10.202.5.0/24")
	count := func() (tables, rules int) {
		c, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		all, err := c.ListTablesOfFamily(nftables.TableFamilyIPv4)
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range all {
			if table.Name != n.tableName() {
				continue
			}
			tables++
			for _, chain := range []string{"postrouting", "forward"} {
				found, err := c.GetRules(table, &nftables.Chain{Name: chain, Table: table})
				if err != nil {
					t.Fatal(err)
				}
				rules += len(found)
			}
		}
		return tables, rules
	}
	for range 3 {
		if tables, rules := count(); tables != 1 || rules != 4 {
			t.Errorf("got %d tables with %d rules, want 1 with 4", tables, rules)
		}
		if err := n.applyRules(); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Teardown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tables, _ := count(); tables != 0 {
		t.Error("the table is left")
	}
	if err := n.Teardown(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
}

func mustLink(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A node is taken down by a process that knows of no sandbox: their interfaces go
// with the bridge, also while their namespaces still end.
func TestNetwork_TeardownTakesInterfaces(t *testing.T) {
	n := newNode(t, "10.202.5.0/24")
	uid, _ := n.attach(t)
	if err := New(n.cfg, Deps{Log: slog.New(slog.NewTextHandler(t.Output(), nil))}).Teardown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{hostInterface(uid), n.cfg.Bridge} {
		if link, err := netlink.LinkByName(name); !isGone(err) {
			t.Errorf("interface %s is left: %v, %v", name, link, err)
		}
	}
}
