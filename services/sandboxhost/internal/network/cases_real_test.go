package network

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// NET-2: the ledger is gone while sandboxes run, and many come at once: no address is
// given out twice, and those that run keep theirs.
func TestNetwork_NET2_NoAddressTwiceAfterTheLedgerIsGone(t *testing.T) {
	const survivors, newcomers = 15, 10
	n := newNode(t, "10.202.20.0/24")
	owner := map[netip.Addr]id.Sandbox{}
	for range survivors {
		uid, addr := n.attach(t)
		owner[addr] = uid
	}
	if err := errors.Join(n.Close(), os.Remove(n.cfg.Ledger)); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	var mu sync.Mutex // guards owner
	var wg sync.WaitGroup
	for range newcomers {
		wg.Go(func() { // waited for below
			uid := id.NewSandbox()
			err := n.pins.Ensure(uid, namespace.Wanted{Network: true, Hostname: "web"})
			addr, attachErr := n.Attach(t.Context(), uid, Wanted{})
			if err := errors.Join(err, attachErr); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if other, taken := owner[addr]; taken {
				t.Errorf("%s and %s both have %s", uid, other, addr)
			}
			owner[addr] = uid
		})
	}
	wg.Wait()
	for addr, uid := range owner {
		if within, ok, err := n.addressWithin(uid); err != nil || !ok || within != addr {
			t.Errorf("sandbox %s: uses %v, %t, %v, want %s", uid, within, ok, err, addr)
		}
	}
}

// NET-2: who was just spoken to at an address must not be taken for who has it next;
// also not after a restart.
func TestNetwork_NET2_FreedAddressCoolsDown(t *testing.T) {
	n := newNode(t, "10.202.21.0/28") // 13 addresses
	late := boottime.Now()
	n.wait = func() time.Duration { return late }
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	var all []id.Sandbox
	for range 13 {
		uid, _ := n.attach(t)
		all = append(all, uid)
	}
	freed, _, err := n.Address(all[5])
	if err := errors.Join(err, n.Detach(all[5]), n.pins.Release(all[5])); err != nil {
		t.Fatal(err)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			n.open(t)
		}
		late += coolDown/2 - time.Second
		if addr, err := n.claim(id.NewSandbox()); !errors.Is(err, fault.Exhausted) {
			t.Errorf("restarted %t: got %v, %v, want exhausted", restart, addr, err)
		}
	}
	late += 2 * time.Second
	if _, addr := n.attach(t); addr != freed {
		t.Errorf("got %s, want %s, which has cooled down", addr, freed)
	}
}

// NET-3: the hardware address of the bridge is its own, whoever comes and goes, and
// also after a restart: else all connections stall with every sandbox.
func TestNetwork_NET3_BridgeKeepsItsHardwareAddress(t *testing.T) {
	n := newNode(t, "10.202.22.0/24")
	want := mustLink(t, n.cfg.Bridge).Attrs().HardwareAddr.String()
	check := func(when string) {
		t.Helper()
		if got := mustLink(t, n.cfg.Bridge).Attrs().HardwareAddr.String(); got != want {
			t.Fatalf("%s: got %s, want %s", when, got, want)
		}
	}
	low := net.HardwareAddr{0x00, 0, 0, 0, 0, 1} // a bridge without its own would take the lowest
	for range 10 {
		uid, _ := n.attach(t)
		if err := netlink.LinkSetHardwareAddr(mustLink(t, hostInterface(uid)), low); err != nil {
			t.Fatal(err)
		}
		low[5]++
		check("attached")
		if err := errors.Join(n.Detach(uid), n.pins.Release(uid)); err != nil {
			t.Fatal(err)
		}
		check("detached")
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	check("restarted")
}

// NET-8: a bridge that was made for small packets still is after its last port is gone.
func TestNetwork_NET8_BridgeKeepsItsSize(t *testing.T) {
	const mtu = 1300
	n := newNode(t, "10.202.23.0/24")
	if err := netlink.LinkDel(mustLink(t, n.cfg.Bridge)); err != nil {
		t.Fatal(err)
	}
	bridge, err := n.ensureBridge(mtu)
	if err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex = n.cfg.Bridge+"p", mtu, bridge.Attrs().Index
	port := &netlink.Veth{LinkAttrs: attrs, PeerName: n.cfg.Bridge + "q"}
	if err := errors.Join(netlink.LinkAdd(port), netlink.LinkDel(port)); err != nil {
		t.Fatal(err)
	}
	if got := mustLink(t, n.cfg.Bridge).Attrs().MTU; got != mtu {
		t.Errorf("got %d, want %d", got, mtu)
	}
}

// NET-8: packets of sandboxes are as large as the underlay lets through.
func TestUplink_NET8_SmallestOfThePreferredRoute(t *testing.T) {
	elsewhere := &net.IPNet{IP: net.IPv4(10, 0, 0, 0), Mask: net.CIDRMask(8, 32)}
	routes := []netlink.Route{
		{LinkIndex: 1, Dst: elsewhere},
		{LinkIndex: 2, Priority: 600},
		{Priority: 100, MultiPath: []*netlink.NexthopInfo{{LinkIndex: 3}, {LinkIndex: 4}, {LinkIndex: 5}}},
	}
	mtus := map[int]int{1: 600, 2: 700, 3: 9000, 4: 1400} // 5 is gone
	mtuOf := func(index int) (int, error) {
		if mtu, ok := mtus[index]; ok {
			return mtu, nil
		}
		return 0, netlink.LinkNotFoundError{}
	}
	for _, tt := range []struct {
		routes []netlink.Route
		want   int
	}{{routes, 1400}, {routes[:2], 700}, {routes[:1], defaultMTU}, {nil, defaultMTU}} {
		if got, err := smallestMTU(bestDefault(tt.routes), mtuOf); err != nil || got != tt.want {
			t.Errorf("%v: got %d, %v, want %d", tt.routes, got, err, tt.want)
		}
	}
	mtus[4], mtus[3] = 65536, 65536
	if got, err := smallestMTU(bestDefault(routes), mtuOf); err != nil || got != 65535 {
		t.Errorf("got %d, %v, want the most that a bridge can have", got, err)
	}
}

// NET-10: while interfaces, the bridge and routes are taken away between the steps, a sandbox is
// attached whole or not at all, and in the end whole.
func TestNetwork_NET10_NeverHalfAttached(t *testing.T) {
	n := newNode(t, "10.202.24.0/24")
	other, otherAt := n.attach(t)
	for i := range 52 {
		uid := id.NewSandbox()
		if err := n.pins.Ensure(uid, namespace.Wanted{Network: true, Hostname: "web"}); err != nil {
			t.Fatal(err)
		}
		harm := make(chan error, 1)
		go func() { harm <- takeAway(n, uid, i%4) }() // waited for below
		_, attachErr := n.Attach(t.Context(), uid, Wanted{})
		if err := <-harm; err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if attachErr != nil {
			t.Logf("round %d: %v", i, attachErr)
		}
		off, err := n.Mend(t.Context())
		if err != nil {
			t.Fatalf("round %d: mend: %v", i, err)
		}
		if _, whole, err := n.Address(uid); err != nil || whole == slices.Contains(off, uid) {
			t.Fatalf("round %d: whole %t, while %v are off, %v", i, whole, off, err)
		} else if whole {
			checkWithin(t, n, uid)
		}
		for _, uid := range off {
			if _, err := n.Attach(t.Context(), uid, Wanted{}); err != nil {
				t.Fatalf("round %d: again: %v", i, err)
			}
		}
		checkWithin(t, n, uid)
		if err := talk(n, uid, other, otherAt); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if err := errors.Join(n.Detach(uid), n.pins.Release(uid)); err != nil {
			t.Fatal(err)
		}
	}
}

// takeAway removes something as soon as the interface of a sandbox is there: that interface, its
// place on the bridge, the bridge or the default route within.
func takeAway(n *node, uid id.Sandbox, what int) error {
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		link, err := netlink.LinkByName(hostInterface(uid))
		if err == nil {
			switch what {
			case 0:
				err = netlink.LinkDel(link)
			case 1:
				err = netlink.LinkSetNoMaster(link)
			case 2:
				err = netlink.LinkDel(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: n.cfg.Bridge}})
			default:
				err = n.inNet(uid, func() error { return netlink.RouteDel(&netlink.Route{Gw: n.gateway().AsSlice()}) })
				if errors.Is(err, unix.ESRCH) { // not yet
					continue
				}
			}
		}
		if isGone(err) { // not yet, or not any more
			continue
		}
		return err
	}
	return errors.New("there was nothing to take away")
}

// checkWithin demands address, default route and loopback inside a sandbox.
func checkWithin(t *testing.T, n *node, uid id.Sandbox) {
	t.Helper()
	addr, ok, err := n.addressWithin(uid)
	if err != nil || !ok {
		t.Fatalf("sandbox %s: address %v, %t, %v", uid, addr, ok, err)
	}
	err = namespace.Inside(n.pins.Path(uid, namespace.Net), func() error {
		routes, err := netlink.RouteGet(net.IPv4(192, 0, 2, 1))
		if err != nil || len(routes) == 0 || !routes[0].Gw.Equal(n.gateway().AsSlice()) {
			return errors.Join(errors.New("no default route"), err)
		}
		lo, err := net.InterfaceByName("lo")
		if err != nil || lo.Flags&net.FlagUp == 0 {
			return errors.Join(errors.New("lo is down"), err)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("sandbox %s: %v", uid, err)
	}
}

// NET-10: who is attached is reached at once, by the very first packet, and reaches others.
func TestNetwork_NET10_AttachedIsReachedAtOnce(t *testing.T) {
	const rounds, limit = 60, 500 * time.Millisecond // who asks again for a hardware address waits for a second
	n := newNode(t, "10.202.25.0/24")
	other, otherAt := n.attach(t)
	old := hearUDP(t, n, other, netip.AddrPortFrom(otherAt, 0))
	for i := range rounds {
		fresh, _ := n.attach(t)
		err := n.inNet(fresh, func() error { return sendUDP(old) })
		if took, heard := hears(t, old, limit); err != nil || !heard {
			t.Fatalf("round %d: the first packet from a new one was not heard within %v: %v", i, took, err)
		}
		if err := errors.Join(n.Detach(fresh), n.pins.Release(fresh)); err != nil {
			t.Fatal(err)
		}
		uid, addr := n.attach(t)
		own := hearUDP(t, n, uid, netip.AddrPortFrom(addr, 0))
		err = n.inNet(other, func() error { return sendUDP(own) })
		if took, heard := hears(t, own, limit); err != nil || !heard {
			t.Fatalf("round %d: the first packet to a new one was not heard within %v: %v", i, took, err)
		}
		if err := errors.Join(own.Close(), n.Detach(uid), n.pins.Release(uid)); err != nil {
			t.Fatal(err)
		}
	}
}

// hearUDP listens for datagrams in a sandbox.
func hearUDP(t *testing.T, n *node, uid id.Sandbox, at netip.AddrPort) (c *net.UDPConn) {
	t.Helper()
	err := n.inNet(uid, func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func sendUDP(to *net.UDPConn) error {
	c, err := net.Dial("udp4", to.LocalAddr().String())
	if err != nil {
		return err
	}
	_, err = c.Write([]byte("first"))
	return errors.Join(err, c.Close())
}

// hears waits for one datagram.
func hears(t *testing.T, c *net.UDPConn, limit time.Duration) (took time.Duration, heard bool) {
	t.Helper()
	begun := time.Now()
	if err := c.SetReadDeadline(begun.Add(limit)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Read(make([]byte, 64))
	return time.Since(begun), err == nil
}
