package network

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// meet tells the node where the addresses of sandboxes are, for good: nobody is asked, nobody
// can say that he has the address of another, and no first packet waits for an answer. That
// would not come to a program which sends from another address of the node than the gateway:
// sandboxes are heard about the gateway alone.
func (n *Network) meet(addrs ...netip.Addr) error {
	bridge := n.bridgeIndex()
	for _, addr := range addrs {
		for _, l := range n.layers() {
			at := n.addressIn(l, addr)
			if !at.IsValid() {
				continue
			}
			err := netlink.NeighSet(&netlink.Neigh{
				LinkIndex: bridge, Family: int(l.family), State: netlink.NUD_PERMANENT, IP: at.AsSlice(), HardwareAddr: hardwareOf(addr),
			})
			if err != nil {
				return fmt.Errorf("note hardware address of %s: %w", at, err)
			}
		}
	}
	return nil
}

// meetAll does so for all, and forgets whoever is none of them, also of the IPv6 that there
// is no more.
func (n *Network) meetAll() error {
	var all []netip.Addr
	known := map[netip.Addr]bool{}
	for _, addr := range n.Addresses() {
		all = append(all, addr)
		known[addr], known[n.six(addr)] = true, true
	}
	bridge := n.bridgeIndex()
	for _, l := range []layer{layer4, layer6} {
		met, err := netlink.NeighList(bridge, int(l.family))
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
		}
		for _, m := range met {
			if at, ok := netip.AddrFromSlice(m.IP); ok && m.State&netlink.NUD_PERMANENT != 0 && !known[at] {
				if err := unmeet(bridge, l, at); err != nil {
					return err
				}
			}
		}
	}
	return n.meet(all...)
}

// part is the opposite of meet.
func (n *Network) part(addr netip.Addr) error {
	bridge := n.bridgeIndex()
	for _, l := range n.layers() {
		if at := n.addressIn(l, addr); at.IsValid() {
			if err := unmeet(bridge, l, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func unmeet(bridge int, l layer, at netip.Addr) error {
	err := netlink.NeighDel(&netlink.Neigh{LinkIndex: bridge, Family: int(l.family), IP: at.AsSlice()})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("forget hardware address of %s: %w", at, err)
	}
	return nil
}

// addressIn is the address in a version of IP of the sandbox with an address of the subnet; the
// zero Addr if it has none.
func (n *Network) addressIn(l layer, addr netip.Addr) netip.Addr {
	if !n.cfg.Subnet.Contains(addr) { // it was of a subnet that the node had before
		return netip.Addr{}
	}
	return member{addr: addr, six: n.six(addr)}.at(l)
}

func (n *Network) bridgeIndex() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.bridge
}
