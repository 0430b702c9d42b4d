package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/logging"
)

// fasten tells the bridge behind which port a sandbox is, for good. The bridge learns nothing
// of that port: frames to the addresses of protocols of bridges (IEEE 802.1Q, 8.6.3) are
// learnt from and come by no rule (br_handle_frame of the kernel), so a sandbox could draw to
// itself what is sent to another. And it gets nothing that is for an address that the bridge
// does not know: that would be what is sent to others.
func (n *Network) fasten(link netlink.Link, addr netip.Addr) error {
	entry := &netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER,
		State: netlink.NUD_NOARP, HardwareAddr: hardwareOf(addr),
	}
	err := netlink.NeighSet(entry)
	if err == nil {
		err = errors.Join(netlink.LinkSetLearning(link, false), netlink.LinkSetFlood(link, false))
	}
	if err != nil {
		return fmt.Errorf("tell bridge %s where %s is: %w", n.cfg.Bridge, addr, err)
	}
	return nil
}

// fastenAll does so for all whose interface is in place.
func (n *Network) fastenAll() error {
	placed, err := n.placed()
	if err != nil {
		return err
	}
	for _, p := range placed {
		if err := n.fasten(p.link, p.addr); err != nil && !isGone(err) {
			return err
		}
	}
	return nil
}

// placed are the members whose interface is up and on our bridge.
func (n *Network) placed() ([]placedMember, error) {
	links, err := listLinks()
	if err != nil {
		return nil, err
	}
	members := map[string]member{}
	for _, m := range n.members() {
		members[m.port] = m
	}
	n.mu.Lock()
	bridge := n.bridge
	n.mu.Unlock()
	var all []placedMember
	for _, l := range links {
		m, ours := members[l.Attrs().Name]
		if ours && l.Attrs().Flags&net.FlagUp != 0 && l.Attrs().MasterIndex == bridge {
			all = append(all, placedMember{m, l})
		}
	}
	return all, nil
}

type placedMember struct {
	member

	link netlink.Link
}

// forgotten says which sandbox the kernel does not know the place of any more, "" if it knows
// all. Whoever comes meanwhile is missing once, and not again.
func (n *Network) forgotten() (string, error) {
	first, err := n.missing()
	if err != nil || len(first) == 0 {
		return "", err
	}
	again, err := n.missing()
	for port := range again {
		if first[port] {
			return "the place of interface " + port + " was forgotten", err
		}
	}
	return "", err
}

// missing are the interfaces of those that the kernel does not know.
func (n *Network) missing() (map[string]bool, error) {
	known := map[string]bool{}
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		entries, err := netlink.NeighList(0, family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // then some are missing, once
			return nil, fmt.Errorf("list neighbours: %w", err)
		}
		for _, e := range entries {
			if e.State&(netlink.NUD_NOARP|netlink.NUD_PERMANENT) != 0 {
				known[placeText(e.LinkIndex, e.IP, e.HardwareAddr)] = true
			}
		}
	}
	placed, err := n.placed() // after them: whoever leaves loses his interface first
	if err != nil {
		return nil, err
	}
	bridge := n.bridgeIndex()
	missing := map[string]bool{}
	for _, p := range placed {
		hardware := hardwareOf(p.addr)
		if !known[placeText(p.link.Attrs().Index, nil, hardware)] {
			missing[p.port] = true
		}
		for _, l := range n.layers() {
			if at := n.addressIn(l, p.addr); at.IsValid() && !known[placeText(bridge, at.AsSlice(), hardware)] {
				missing[p.port] = true
			}
		}
	}
	return missing, nil
}

func placeText(link int, at net.IP, hardware net.HardwareAddr) string {
	return fmt.Sprintf("%d %s %s", link, at, hardware)
}

// modernize makes the interfaces of sandboxes that run be as this version makes them. One that
// cannot be, for who may change his network has made it so, holds up nobody else.
func (n *Network) modernize(want, inUse found) {
	for uid, used := range inUse {
		addr, noted := want[uid]
		if !noted {
			continue
		}
		if used != addr {
			n.log.Warn("sandbox has changed its address", uid.Attr(), logging.Reason(fmt.Sprintf("it uses %s and may send from %s alone", used, addr)))
		}
		if !assignable(n.cfg.Subnet, addr) {
			continue
		}
		ns, err := n.pins.OpenNet(uid)
		if err == nil {
			err = errors.Join(n.configure(ns, addr), ns.Close())
		}
		if err != nil {
			n.log.Warn("network of sandbox left as it is; start it anew", uid.Attr(), logging.Err(err))
		}
	}
}
