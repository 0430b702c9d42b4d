package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

// adopt compares the ledger with what the namespaces use and what the kernel leads to
// them, and makes it say that. One sandbox whose address another has, or whose namespace
// cannot be looked into, holds up nobody else: the first loses its interface, and is attached
// again with an address of its own by whoever keeps it.
func (n *Network) adopt(ctx context.Context, kernel []element) error {
	uids, err := n.pins.Sandboxes()
	if err != nil {
		return err
	}
	inUse, err := n.lookWithin(ctx, uids)
	if err != nil {
		return err
	}
	bridge, err := n.knownToBridge(uids)
	if err != nil {
		return err
	}
	want, lost := reconcile(remembered(n.notes(), bridge), inUse)
	for uid, other := range lost {
		n.log.Warn("sandbox has lost its address", uid.Attr(), logging.Reason(
			fmt.Sprintf("sandbox %s has %s as well, and was first; this one is given another", other, inUse[uid])))
	}
	if err := n.rewrite(want); err != nil {
		return err
	}
	if err := errors.Join(n.adoptPorts(want, kernel), n.adoptGroups(want)); err != nil {
		return err
	}
	n.modernize(want, inUse)
	if err := errors.Join(n.fastenAll(), n.meetAll()); err != nil {
		return err
	}
	if err := n.writeTable(); err != nil {
		return err
	}
	return n.sweep(want)
}

// lookWithin is what the namespaces of sandboxes use. Of one that cannot be asked nothing is
// known: its note counts.
func (n *Network) lookWithin(ctx context.Context, uids []id.Sandbox) (found, error) {
	inUse := found{}
	for _, uid := range uids {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		addr, ok, err := n.addressWithin(uid)
		if err != nil {
			n.log.Warn("network of sandbox not looked into; start it anew", uid.Attr(), logging.Err(err))
			continue
		}
		if !ok {
			continue
		}
		inUse[uid] = addr
		if !assignable(n.cfg.Subnet, addr) { // it stays: processes use it
			n.log.Warn("sandbox outside the network", uid.Attr(), logging.Reason(
				fmt.Sprintf("it uses %s, which is no address of %s any more; replace it", addr, n.cfg.Subnet)))
		}
	}
	return inUse, nil
}

// notes is what the ledger says, without addresses that cannot be had any more: they are
// claimed anew after the subnet was changed.
func (n *Network) notes() found {
	n.mu.Lock()
	defer n.mu.Unlock()
	notes := found{}
	for uid, addr := range n.byUID {
		if assignable(n.cfg.Subnet, addr) {
			notes[uid] = addr
		}
	}
	return notes
}

// knownToBridge is what fasten has told the bridge of those sandboxes.
func (n *Network) knownToBridge(uids []id.Sandbox) (found, error) {
	links, err := n.hostEnds()
	if err != nil {
		return nil, err
	}
	owners, ports := map[string]id.Sandbox{}, map[int]id.Sandbox{}
	for _, uid := range uids {
		owners[hostInterface(uid)] = uid
	}
	for _, l := range links {
		if uid, ours := owners[l.Attrs().Name]; ours {
			ports[l.Attrs().Index] = uid
		}
	}
	entries, err := netlink.NeighList(0, unix.AF_BRIDGE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // then it is less that is known
		return nil, fmt.Errorf("list what bridge %s knows: %w", n.cfg.Bridge, err)
	}
	known := found{}
	for _, e := range entries {
		uid, ours := ports[e.LinkIndex]
		digits, fastened := bytes.CutPrefix(e.HardwareAddr, hardwarePrefix)
		addr, whole := netip.AddrFromSlice(digits)
		if ours && fastened && whole && e.State&netlink.NUD_NOARP != 0 && assignable(n.cfg.Subnet, addr) {
			known[uid] = addr
		}
	}
	return known, nil
}
