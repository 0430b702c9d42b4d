package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// settings6 is where the kernel has those of IPv6.
const settings6 = "/proc/sys/net/ipv6/conf"

// setting6 is the file of a setting of IPv6 of an interface.
func setting6(link, name string) string { return filepath.Join(settings6, link, name) }

// withIPv6 lets the bridge have IPv6, without a link-local address, and this network
// namespace pass it on. Interfaces that learn their routers go on with it: a kernel that
// passes packets on asks no router any more, but where it is told to do both (accept_ra 2).
func (n *Network) withIPv6(bridge netlink.Link) error {
	if _, err := os.Stat(settings6); errors.Is(err, os.ErrNotExist) {
		return fault.New(fault.Denied, "network.subnet6 is set, and the kernel of this node has no IPv6; leave it out of node.yaml, or load the module ipv6")
	}
	for _, s := range []struct{ name, want string }{
		{"addr_gen_mode", "1"}, {"accept_ra", "0"}, {"accept_dad", "0"}, {"disable_ipv6", "0"},
	} {
		if err := set(setting6(n.cfg.Bridge, s.name), s.want); err != nil {
			return err
		}
	}
	if err := setGateway(bridge, netip.PrefixFrom(n.gatewayOf(layer6), n.cfg.Subnet6.Bits())); err != nil {
		return err
	}
	switch on, err := forwards6(); {
	case err != nil:
		return err
	case !on:
		return n.forward6()
	case n.began6():
		return n.allGoOn()
	}
	return nil
}

func forwards6() (bool, error) { return says(setting6("all", "forwarding"), "1") }

// broken6 says what of IPv6 is not as it should be, "" if nothing.
func (n *Network) broken6(bridge netlink.Link) (string, error) {
	if off, err := says(n.ipv6File(), "0"); err != nil || !off {
		return "IPv6 of bridge " + n.cfg.Bridge + " was switched off", err
	}
	if has, err := hasAddress(bridge, netip.PrefixFrom(n.gatewayOf(layer6), n.cfg.Subnet6.Bits())); err != nil || !has {
		return "bridge " + n.cfg.Bridge + " has lost its IPv6 address", err
	}
	if on, err := forwards6(); err != nil || !on {
		return "forwarding of IPv6 was switched off", err
	}
	return "", nil
}

// configure6 sets the IPv6 address and routes of a sandbox, and where the gateway is. It
// takes away what an earlier configuration has set.
func (n *Network) configure6(h *netlink.Handle, link netlink.Link, addr netip.Addr) error {
	six := n.six(addr)
	have, err := h.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("list IPv6 addresses: %w", err)
	}
	for _, a := range have {
		if at, ok := netip.AddrFromSlice(a.IP); ok && !at.IsLinkLocalUnicast() && at != six {
			if err := deconfigure6(h, link, a.IPNet); err != nil {
				return fmt.Errorf("remove address %s: %w", at, err)
			}
		}
	}
	if !six.IsValid() {
		return nil
	}
	err = h.AddrAdd(link, &netlink.Addr{IPNet: ipNet(six, n.cfg.Subnet6.Bits()), Flags: unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_NODAD})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("set address %s: %w", six, err)
	}
	index, gateway := link.Attrs().Index, n.gatewayOf(layer6)
	err = h.NeighSet(&netlink.Neigh{
		LinkIndex: index, Family: unix.AF_INET6, State: netlink.NUD_PERMANENT, IP: gateway.AsSlice(), HardwareAddr: hardwareAddress(n.cfg.Bridge),
	})
	if err != nil {
		return fmt.Errorf("note hardware address of %s: %w", gateway, err)
	}
	everywhere := &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 8*net.IPv6len)}
	for _, route := range []*netlink.Route{
		{LinkIndex: index, Dst: ipNet(gateway, gateway.BitLen()), Scope: netlink.SCOPE_LINK},
		{LinkIndex: index, Dst: everywhere, Gw: gateway.AsSlice()},
	} {
		if err := h.RouteReplace(route); err != nil {
			return fmt.Errorf("set route through %s: %w", gateway, err)
		}
	}
	return nil
}

// deconfigure6 is the opposite of configure6, for an address of whatever network: with a route
// left, a program would wait for answers that nobody gives.
func deconfigure6(h *netlink.Handle, link netlink.Link, had *net.IPNet) error {
	index := link.Attrs().Index
	errs := []error{h.AddrDel(link, &netlink.Addr{IPNet: had})}
	if first, ok := netip.AddrFromSlice(had.IP.Mask(had.Mask)); ok {
		gateway := first.Next()
		errs = append(errs,
			h.RouteDel(&netlink.Route{LinkIndex: index, Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 8*net.IPv6len)}, Gw: gateway.AsSlice()}),
			h.RouteDel(&netlink.Route{LinkIndex: index, Dst: ipNet(gateway, gateway.BitLen())}),
			h.NeighDel(&netlink.Neigh{LinkIndex: index, Family: unix.AF_INET6, IP: gateway.AsSlice()}))
	}
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { // it is not there
		return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EADDRNOTAVAIL)
	})...)
}
