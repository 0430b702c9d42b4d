package balance

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// routeProtocol marks our routes. The kernel's list of names has nobody there
// (linux/rtnetlink.h).
const routeProtocol = 0x53

// route makes the node itself find virtual addresses, and says what was missing. Without a
// route the kernel refuses before any rule is asked. It leads to loopback: whatever leads
// nowhere would otherwise leave by the interface that it came in by, and the kernel would
// tell the sandbox to look for the address among its neighbours.
func (b *Balancer) route() (string, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return "", fmt.Errorf("find loopback: %w", err)
	}
	missing := ""
	for _, p := range b.cfg.Prefixes {
		want := netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: ipNet(p), Src: net.IP(b.cfg.Gateway.AsSlice()), Protocol: routeProtocol, Scope: netlink.SCOPE_LINK,
		}
		err := netlink.RouteAdd(&want)
		switch {
		case err == nil:
			missing = "the route to services " + p.String()
		case !errors.Is(err, unix.EEXIST):
			return "", fmt.Errorf("add route to services %s: %w", p, err)
		default:
			if err := b.routeIsOurs(p); err != nil {
				return "", err
			}
		}
	}
	return missing, nil
}

func (b *Balancer) routeIsOurs(p netip.Prefix) error {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: ipNet(p)}, netlink.RT_FILTER_DST)
	if err != nil {
		return fmt.Errorf("list routes to services %s: %w", p, err)
	}
	for _, r := range routes {
		if r.Protocol == routeProtocol && r.Src.Equal(net.IP(b.cfg.Gateway.AsSlice())) {
			return nil
		}
	}
	return fault.New(fault.Conflict, "route to services %s: this machine reaches that network another way; choose another with network.service_prefixes", p)
}

// unroute removes our routes.
func (b *Balancer) unroute() error {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes to services: %w", err)
	}
	for _, r := range routes {
		if !r.Src.Equal(net.IP(b.cfg.Gateway.AsSlice())) {
			continue // of another node of this machine
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route to services %s: %w", r.Dst, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: net.IP(p.Masked().Addr().AsSlice()), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
