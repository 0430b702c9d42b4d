package network

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// defaultMTU is used on a node without a default route.
const defaultMTU = 1500

// substrate makes the bridge, forwarding and the rules.
func (n *Network) substrate() error {
	if err := n.ready(); err != nil {
		return err
	}
	return errors.Join(n.fastenAll(), n.meetAll(), n.writeTable())
}

// ready makes the bridge and forwarding.
func (n *Network) ready() error {
	mtu, err := uplinkMTU()
	if err != nil {
		return err
	}
	bridge, err := n.ensureBridge(mtu)
	if err != nil {
		return fmt.Errorf("make bridge %s: %w", n.cfg.Bridge, err)
	}
	n.mu.Lock()
	n.bridge, n.mtu = bridge.Attrs().Index, mtu
	n.mu.Unlock()
	if err := forwarding(); err != nil {
		return err
	}
	off := false
	if n.cfg.Subnet6.IsValid() {
		if err := n.withIPv6(bridge); err != nil {
			return fmt.Errorf("give bridge %s IPv6: %w", n.cfg.Bridge, err)
		}
	} else if off, err = n.withoutIPv6(); err != nil { // the settings of a machine that is a container itself may be read-only: IPv4 is kept from it all the same
		n.log.Warn("sandboxes may reach ports of this node by IPv6; make /proc/sys writable, or switch IPv6 off", logging.Err(err))
	}
	n.mu.Lock()
	n.ipv6Off = off
	n.mu.Unlock()
	if err := n.routeLoopback(); err != nil {
		n.log.Warn("what is published may not be reached at loopback as it should be; make /proc/sys writable", logging.Err(err))
	}
	err = n.withoutRedirects()
	if err != nil {
		n.log.Warn("sandboxes may wait where they should be refused; make /proc/sys writable, or set send_redirects to 0", logging.Err(err))
	}
	n.mu.Lock()
	n.noRedirects = err == nil
	n.mu.Unlock()
	return nil
}

// Teardown removes the rules and the bridge, with whatever hangs on it. It is for
// a node that is taken down: no sandbox may be left.
func (n *Network) Teardown(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if held := n.Sandboxes(); len(held) > 0 {
		return fault.New(fault.Conflict, "take down network: %d sandboxes still have an address; remove them first", len(held))
	}
	err := n.removeRules()
	bridge, findErr := netlink.LinkByName(n.cfg.Bridge)
	switch {
	case isGone(findErr):
		return err
	case findErr != nil:
		return errors.Join(err, fmt.Errorf("find bridge %s: %w", n.cfg.Bridge, findErr))
	}
	// Those of sandboxes whose namespaces are gone would go by themselves, later.
	n.mu.Lock()
	n.bridge = bridge.Attrs().Index
	n.mu.Unlock()
	err = errors.Join(err, n.sweep(nil))
	if delErr := netlink.LinkDel(bridge); delErr != nil && !isGone(delErr) {
		err = errors.Join(err, fmt.Errorf("remove bridge %s: %w", n.cfg.Bridge, delErr))
	}
	return err
}

// ensureBridge makes the bridge and sets its hardware address, size and network
// address. The hardware address is fixed: a bridge without one takes that of its
// newest port, and neighbours would lose it with every sandbox.
func (n *Network) ensureBridge(mtu int) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = n.cfg.Bridge, hardwareAddress(n.cfg.Bridge)
	err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	bridge, err := netlink.LinkByName(n.cfg.Bridge)
	if err != nil {
		return nil, err
	}
	if bridge.Type() != "bridge" {
		return nil, fault.New(fault.Conflict, "an interface of that name is a %s; choose another name with network.bridge", bridge.Type())
	}
	if a := bridge.Attrs(); a.HardwareAddr.String() != attrs.HardwareAddr.String() {
		if err := netlink.LinkSetHardwareAddr(bridge, attrs.HardwareAddr); err != nil {
			return nil, fmt.Errorf("set hardware address: %w", err)
		}
	}
	if bridge.Attrs().MTU != mtu { // not when it is made: the kernel keeps to a size that was set later, and to no other (br_mtu_auto_adjust)
		if err := netlink.LinkSetMTU(bridge, mtu); err != nil {
			return nil, fmt.Errorf("set mtu %d: %w", mtu, err)
		}
	}
	if err := setGateway(bridge, netip.PrefixFrom(n.gateway(), n.cfg.Subnet.Bits())); err != nil {
		return nil, err
	}
	return bridge, netlink.LinkSetUp(bridge)
}

// setGateway makes an address the bridge's only one of its version of IP: one of an earlier
// subnet would draw traffic that belongs elsewhere.
func setGateway(bridge netlink.Link, want netip.Prefix) error {
	addrs, err := netlink.AddrList(bridge, familyOf(want))
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	present := false
	for _, a := range addrs {
		if a.IPNet.String() == want.String() {
			present = true
			continue
		}
		if err := netlink.AddrDel(bridge, &a); err != nil {
			return fmt.Errorf("remove address %s: %w", a.IPNet, err)
		}
	}
	if present {
		return nil
	}
	if err := netlink.AddrAdd(bridge, &netlink.Addr{IPNet: ipNet(want.Addr(), want.Bits())}); err != nil {
		return fmt.Errorf("set address %s: %w", want, err)
	}
	return nil
}

func hasAddress(link netlink.Link, want netip.Prefix) (bool, error) {
	addrs, err := netlink.AddrList(link, familyOf(want))
	if err != nil {
		return false, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	return slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IPNet.String() == want.String() }), nil
}

func familyOf(p netip.Prefix) int {
	if p.Addr().Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// hardwareAddress derives a locally administered address from a name.
func hardwareAddress(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("staddle bridge " + name))
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}
}

// uplinkMTU is the size of packets on the interface of the default route.
func uplinkMTU() (int, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return 0, fmt.Errorf("list routes: %w", err)
	}
	return smallestMTU(bestDefault(routes), func(index int) (int, error) {
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			return 0, err
		}
		return link.Attrs().MTU, nil
	})
}

// bestDefault are the interfaces of the default route that the kernel prefers; more
// than one where it spreads over several.
func bestDefault(routes []netlink.Route) (interfaces []int) {
	best := math.MaxInt
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() || r.Priority >= best {
			continue
		}
		best, interfaces = r.Priority, nil
		if r.LinkIndex != 0 {
			interfaces = append(interfaces, r.LinkIndex)
		}
		for _, hop := range r.MultiPath {
			interfaces = append(interfaces, hop.LinkIndex)
		}
	}
	return interfaces
}

// smallestMTU is that of the interface with the smallest packets, and never more than a
// bridge can have. One that is gone meanwhile does not count.
func smallestMTU(interfaces []int, mtuOf func(index int) (int, error)) (int, error) {
	smallest := 0
	for _, index := range interfaces {
		mtu, err := mtuOf(index)
		if isGone(err) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("look at interface of the default route: %w", err)
		}
		if smallest == 0 || mtu < smallest {
			smallest = mtu
		}
	}
	if smallest == 0 {
		return defaultMTU, nil
	}
	return min(smallest, math.MaxUint16), nil
}

// forwarding lets this network namespace pass packets on.
func forwarding() error { return set(forwardFile, "1") }

// routeLoopback lets answers of sandboxes to programs on the node's loopback pass, or not
// without local net. The rules drop whatever else comes from the bridge for a loopback
// address.
func (n *Network) routeLoopback() error {
	want := "1"
	if n.cfg.NoLocalNet {
		want = "0"
	}
	err := set(n.localNetFile(), want)
	if err != nil {
		want = ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.localNet = want
	return err
}

func (n *Network) localNetFile() string { return settingOf(n.cfg.Bridge, "route_localnet") }

// withoutRedirects keeps the kernel from telling sandboxes to look for others among their
// neighbours. It tells so where either of two settings says it, so that of all interfaces
// goes as well; others have their own. A rule drops what is sent all the same, yet only
// without them are refusals not held back: the kernel counts both against one limit
// (ip_rt_send_redirect, inet_peer_xrlim_allow).
func (n *Network) withoutRedirects() error {
	var errs []error
	for _, path := range n.redirectFiles() {
		errs = append(errs, set(path, "0"))
	}
	return errors.Join(errs...)
}

func (n *Network) redirectFiles() []string {
	return []string{settingOf("all", "send_redirects"), settingOf(n.cfg.Bridge, "send_redirects")}
}

// sendsRedirects says whether the kernel would tell sandboxes so.
func (n *Network) sendsRedirects() (bool, error) {
	for _, path := range n.redirectFiles() {
		if off, err := says(path, "0"); err != nil || !off {
			return true, err
		}
	}
	return false, nil
}

// settingOf is the file of a setting of IPv4 of an interface.
func settingOf(link, name string) string { return filepath.Join("/proc/sys/net/ipv4/conf", link, name) }

// set makes a setting of the kernel be a digit. One that is so is not written: its file may
// be read-only.
func set(path, want string) error {
	if is, err := says(path, want); err != nil || is {
		return err
	}
	if err := os.WriteFile(path, []byte(want), 0); err != nil {
		return fmt.Errorf("set %s to %s: %w", path, want, err)
	}
	return nil
}

// says says whether a setting of the kernel is a digit.
func says(path, want string) (bool, error) {
	have, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("read setting of the kernel: %w", err)
	}
	return strings.TrimSpace(string(have)) == want, nil
}

const forwardFile = "/proc/sys/net/ipv4/ip_forward"

// forwards says whether packets are passed on.
func forwards() (bool, error) { return says(forwardFile, "1") }
