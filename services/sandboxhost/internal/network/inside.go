package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

// localName is the name of the interface of a namespace that leads to itself.
const localName = "lo"

// within is what a sandbox's namespace has of what configure sets.
type within struct {
	loopback, up bool
	addrs        map[netip.Addr]bool
	// gateways are those that are reached without another, defaults the versions of IP that
	// have a default route, whoever made it.
	gateways map[netip.Addr]bool
	defaults map[int]bool
}

// lacks says what a namespace needs and does not have, "" if nothing. What it has beside that,
// and a default route of its own, are its own affair.
func (w within) lacks(addr, gateway, six, gateway6 netip.Addr) string {
	switch {
	case !w.loopback:
		return localName + " is down"
	case !w.up:
		return inside + " is down"
	case !w.addrs[addr]:
		return inside + " has lost its address " + addr.String()
	case !w.gateways[gateway] || !w.defaults[netlink.FAMILY_V4]:
		return "the route through " + gateway.String() + " is gone"
	case !six.IsValid():
		return ""
	case !w.addrs[six]:
		return inside + " has lost its address " + six.String()
	case !w.gateways[gateway6] || !w.defaults[netlink.FAMILY_V6]:
		return "the route through " + gateway6.String() + " is gone"
	}
	return ""
}

// mendWithin makes addresses and routes of sandboxes that are attached be as they were made. One
// that cannot be looked into holds up nobody else.
func (n *Network) mendWithin(ctx context.Context) error {
	placed, err := n.placed()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range placed {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if assignable(n.cfg.Subnet, p.addr) {
			errs = append(errs, n.mendOne(p.uid, p.addr))
		}
	}
	return errors.Join(errs...)
}

func (n *Network) mendOne(uid id.Sandbox, addr netip.Addr) error {
	ns, err := n.pins.OpenNet(uid)
	if errors.Is(err, fault.NotFound) { // it leaves
		return nil
	}
	if err != nil {
		return err
	}
	lacks, err := n.lookAt(netns.NsHandle(ns.Fd()), addr)
	if err == nil && lacks != "" {
		n.log.Warn("network of sandbox mended", uid.Attr(), logging.Reason(lacks))
		err = n.configure(ns, addr)
	}
	if err := errors.Join(err, ns.Close()); err != nil && !isGone(err) {
		return fmt.Errorf("mend network of sandbox %s: %w", uid, err)
	}
	return nil
}

// lookAt says what a namespace lacks, "" if nothing.
func (n *Network) lookAt(ns netns.NsHandle, addr netip.Addr) (string, error) {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return "", fmt.Errorf("ask network namespace: %w", err)
	}
	defer h.Close()
	seen, err := lookWith(h)
	if err != nil {
		return "", err
	}
	return seen.lacks(addr, n.gateway(), n.six(addr), n.gatewayOf(layer6)), nil
}

func lookWith(h *netlink.Handle) (within, error) {
	w := within{addrs: map[netip.Addr]bool{}, gateways: map[netip.Addr]bool{}, defaults: map[int]bool{}}
	lo, loErr := h.LinkByName(localName)
	link, err := h.LinkByName(inside)
	if err := errors.Join(loErr, err); err != nil {
		return w, fmt.Errorf("find interfaces within: %w", err)
	}
	w.loopback, w.up = lo.Attrs().Flags&net.FlagUp != 0, link.Attrs().Flags&net.FlagUp != 0
	addrs, err := h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return w, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if at, ok := netip.AddrFromSlice(a.IP); ok {
			w.addrs[at.Unmap()] = true
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.RouteList(nil, family)
		if err != nil {
			return w, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			w.note(r, family, link.Attrs().Index)
		}
	}
	return w, nil
}

// note takes one route to account.
func (w within) note(r netlink.Route, family, link int) {
	if r.Dst == nil || r.Dst.IP.IsUnspecified() {
		w.defaults[family] = true
		return
	}
	ones, bits := r.Dst.Mask.Size()
	if to, ok := netip.AddrFromSlice(r.Dst.IP); ok && ones == bits && r.LinkIndex == link {
		w.gateways[to.Unmap()] = true
	}
}
