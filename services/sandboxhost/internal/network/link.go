package network

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

// inside is the name of a sandbox's interface within it.
const inside = "eth0"

// hostPrefix begins the names of the host's ends.
const hostPrefix = "v"

func hostInterface(uid id.Sandbox) string { return hostPrefix + uid.Short() }

// attached says whether a sandbox is attached and whole. The host's end is
// brought up as the very last step, and it goes when the namespace goes: so one
// look at it is enough.
func (n *Network) attached(uid id.Sandbox) (bool, error) {
	link, err := netlink.LinkByName(hostInterface(uid))
	if isGone(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at interface of sandbox %s: %w", uid, err)
	}
	n.mu.Lock()
	bridge := n.bridge
	n.mu.Unlock()
	a := link.Attrs()
	return a.Flags&net.FlagUp != 0 && a.MasterIndex == bridge, nil
}

// connect makes the pair of interfaces anew.
func (n *Network) connect(uid id.Sandbox, addr netip.Addr, group string) (err error) {
	ns, err := n.pins.OpenNet(uid)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()

	bridge, mtu, err := n.ground()
	if err != nil {
		return err
	}
	name := hostInterface(uid)
	if old, err := netlink.LinkByName(name); err == nil {
		if joined, err := n.rejoin(uid, old, addr, bridge); err != nil || joined {
			return err
		}
		if err := netlink.LinkDel(old); err != nil && !isGone(err) {
			return fmt.Errorf("remove half made interface %s: %w", name, err)
		}
	} else if !isGone(err) {
		return fmt.Errorf("look at interface %s: %w", name, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex = name, mtu, bridge
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: inside, PeerMTU: uint32(mtu), PeerHardwareAddr: hardwareOf(addr), PeerNamespace: netlink.NsFd(ns.Fd())}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make interface %s: %w", name, err)
	}
	if err := errors.Join(noteGroup(veth, group), n.fasten(veth, addr), n.reflect(uid, veth)); err != nil {
		return err
	}
	if err := errors.Join(n.configure(ns, addr), n.meet(addr)); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return fmt.Errorf("bring up interface %s: %w", name, err)
	}
	return n.settle(ns, veth, bridge)
}

// settle waits until packets pass. An interface that got its carrier drops all packets until the
// kernel's queue of such events comes to it, which may take a second; who asks for one interface
// has it done for this one before the answer (linkwatch_sync_dev in rtnl_getlink, Linux 6.8). The
// host's end is asked for before the bridge, which has a carrier once a port has.
func (n *Network) settle(ns *os.File, veth netlink.Link, bridge int) error {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("ask network namespace: %w", err)
	}
	defer h.Close()
	_, outside := netlink.LinkByIndex(veth.Attrs().Index)
	_, under := netlink.LinkByIndex(bridge)
	_, within := h.LinkByName(inside)
	if err := errors.Join(outside, under, within); err != nil {
		return fmt.Errorf("wait for interface %s: %w", veth.Attrs().Name, err)
	}
	return nil
}

// ground is the bridge that interfaces stand on, made anew if somebody took it away.
func (n *Network) ground() (bridge, mtu int, err error) {
	n.mu.Lock()
	bridge = n.bridge
	n.mu.Unlock()
	_, err = netlink.LinkByIndex(bridge)
	if isGone(err) {
		err = n.substrate()
	}
	if err != nil {
		return 0, 0, fmt.Errorf("find bridge %s: %w", n.cfg.Bridge, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.bridge, n.mtu, nil
}

// rejoin puts an interface that lacks nothing but its bridge back on it: the
// connections of the sandbox go on. It reports whether that was so.
func (n *Network) rejoin(uid id.Sandbox, old netlink.Link, addr netip.Addr, bridge int) (bool, error) {
	if old.Attrs().Flags&net.FlagUp == 0 {
		return false, nil
	}
	within, ok, err := n.addressWithin(uid)
	if err != nil || !ok || within != addr {
		return false, err
	}
	if err := netlink.LinkSetMasterByIndex(old, bridge); err != nil {
		return false, fmt.Errorf("put interface %s on bridge %s: %w", old.Attrs().Name, n.cfg.Bridge, err)
	}
	return true, errors.Join(n.fasten(old, addr), n.reflect(uid, old))
}

// Reflect lets a sandbox reach itself by an address that leads to it, from now on. One
// that is not attached is left: its next attachment begins without.
func (n *Network) Reflect(uid id.Sandbox) error {
	link, err := netlink.LinkByName(hostInterface(uid))
	if isGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at interface of sandbox %s: %w", uid, err)
	}
	n.mu.Lock()
	n.mirrored[uid] = true
	n.mu.Unlock()
	return n.reflect(uid, link)
}

// reflect lets the bridge send packets back to whom they come from, for a sandbox that
// reaches itself by a port of the node or by a service: with br_netfilter the bridge itself
// leads it there.
func (n *Network) reflect(uid id.Sandbox, link netlink.Link) error {
	n.mu.Lock()
	mirrored := n.mirrored[uid]
	n.mu.Unlock()
	if !mirrored && len(n.elementsOf(uid)) == 0 {
		return nil
	}
	if err := netlink.LinkSetHairpin(link, true); err != nil {
		return fmt.Errorf("let bridge %s send back to interface %s: %w", n.cfg.Bridge, link.Attrs().Name, err)
	}
	return nil
}

// configure sets address and routes within the namespace: everything goes through the
// gateway, also to neighbours, so that the rules are asked. Safe to repeat, also for an
// interface that an older version has made.
func (n *Network) configure(ns *os.File, addr netip.Addr) error {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("ask network namespace: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(inside)
	if err != nil {
		return fmt.Errorf("find %s within: %w", inside, err)
	}
	if lo, err := h.LinkByName(localName); err != nil || lo.Attrs().Flags&net.FlagUp == 0 {
		if err == nil {
			err = h.LinkSetUp(lo)
		}
		if err != nil {
			return fmt.Errorf("bring up %s within: %w", localName, err)
		}
	}
	net := ipNet(addr, n.cfg.Subnet.Bits())
	if err := h.AddrAdd(link, &netlink.Addr{IPNet: net, Flags: unix.IFA_F_NOPREFIXROUTE}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("set address %s: %w", addr, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up %s within: %w", inside, err)
	}
	index, gateway := link.Attrs().Index, n.gateway()
	for _, route := range []*netlink.Route{
		{LinkIndex: index, Dst: ipNet(gateway, gateway.BitLen()), Scope: netlink.SCOPE_LINK},
		{LinkIndex: index, Gw: gateway.AsSlice()},
	} {
		if err := h.RouteAdd(route); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("set route through %s: %w", gateway, err)
		}
	}
	direct := &netlink.Route{LinkIndex: index, Dst: ipNet(n.cfg.Subnet.Masked().Addr(), n.cfg.Subnet.Bits()), Scope: netlink.SCOPE_LINK}
	if err := h.RouteDel(direct); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove route to neighbours: %w", err)
	}
	if err := n.configure6(h, link, addr); err != nil {
		return err
	}
	return setHardware(h, link, addr)
}

// setHardware gives an interface the hardware address that it may send from.
func setHardware(h *netlink.Handle, link netlink.Link, addr netip.Addr) error {
	want := hardwareOf(addr)
	if bytes.Equal(link.Attrs().HardwareAddr, want) {
		return nil
	}
	if err := h.LinkSetHardwareAddr(link, want); err != nil {
		return fmt.Errorf("set hardware address %s: %w", want, err)
	}
	return nil
}

// addressWithin reads the address that a sandbox's namespace uses.
func (n *Network) addressWithin(uid id.Sandbox) (addr netip.Addr, ok bool, err error) {
	ns, err := n.pins.OpenNet(uid)
	if errors.Is(err, fault.NotFound) {
		return addr, false, nil
	}
	if err != nil {
		return addr, false, err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return addr, false, fmt.Errorf("ask network namespace: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(inside)
	if isGone(err) {
		return addr, false, nil
	}
	if err != nil {
		return addr, false, fmt.Errorf("find %s: %w", inside, err)
	}
	addrs, err := h.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return addr, false, fmt.Errorf("list addresses: %w", err)
	}
	if len(addrs) == 0 {
		return addr, false, nil
	}
	addr, ok = netip.AddrFromSlice(addrs[0].IP.To4())
	return addr, ok, nil
}

// sweep removes interfaces on our bridge that belong to nobody in the ledger.
func (n *Network) sweep(want found) error {
	named := map[string]bool{}
	for uid := range want {
		named[hostInterface(uid)] = true
	}
	links, err := n.hostEnds()
	if err != nil {
		return err
	}
	for _, l := range links {
		if named[l.Attrs().Name] {
			continue
		}
		if err := n.removeStray(l); err != nil {
			return err
		}
	}
	return nil
}

// maxLists bounds how often a list of interfaces is asked for.
const maxLists = 20

// listLinks lists all interfaces. While others come and go the kernel says that a
// list is not whole, and is asked again.
func listLinks() (links []netlink.Link, err error) {
	for range maxLists {
		if links, err = netlink.LinkList(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return links, nil
}

func ipNet(addr netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())}
}

// isGone says that an interface does not exist (any more).
func isGone(err error) bool {
	_, missing := errors.AsType[netlink.LinkNotFoundError](err)
	return missing || errors.Is(err, unix.ENODEV)
}
