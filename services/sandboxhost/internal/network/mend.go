package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

// Mend looks whether bridge, forwarding and rules are as Open made them, and addresses and
// routes within the sandboxes as Attach did, and makes them so again: whoever loads a firewall
// anew or tidies interfaces up takes them away from under sandboxes that run. Nothing is written while nothing has changed.
// It returns the sandboxes that are not attached, for whoever owns them to attach
// again.
func (n *Network) Mend(ctx context.Context) ([]id.Sandbox, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	broken, err := n.broken()
	if err != nil {
		return nil, err
	}
	if broken != "" {
		n.log.Warn("network mended", logging.Reason(broken))
		if err := n.substrate(); err != nil {
			return nil, err
		}
	}
	within := n.mendWithin(ctx)
	off, err := n.unattached()
	return off, errors.Join(within, err)
}

// broken says what is not as it should be, "" if nothing.
func (n *Network) broken() (string, error) {
	n.mu.Lock()
	index, mtu, ipv6Off, noRedirects, localNet := n.bridge, n.mtu, n.ipv6Off, n.noRedirects, n.localNet
	n.mu.Unlock()
	bridge, err := netlink.LinkByName(n.cfg.Bridge)
	if isGone(err) {
		return "bridge " + n.cfg.Bridge + " is gone", nil
	}
	if err != nil {
		return "", fmt.Errorf("find bridge %s: %w", n.cfg.Bridge, err)
	}
	if a := bridge.Attrs(); a.Index != index || a.Flags&net.FlagUp == 0 {
		return "bridge " + n.cfg.Bridge + " is another, or down", nil
	}
	if uplink, err := uplinkMTU(); err != nil || uplink != mtu || bridge.Attrs().MTU != mtu {
		return fmt.Sprintf("packets of the uplink have at most %d bytes, those of bridge %s %d", uplink, n.cfg.Bridge, bridge.Attrs().MTU), err
	}
	if has, err := hasAddress(bridge, netip.PrefixFrom(n.gateway(), n.cfg.Subnet.Bits())); err != nil || !has {
		return "bridge " + n.cfg.Bridge + " has lost its address", err
	}
	if n.cfg.Subnet6.IsValid() {
		if broken, err := n.broken6(bridge); err != nil || broken != "" {
			return broken, err
		}
	}
	if on, err := forwards(); err != nil || !on {
		return "ip_forward was switched off", err
	}
	if off, err := n.ipv6IsOff(); ipv6Off && (err != nil || !off) {
		return "bridge " + n.cfg.Bridge + " was given IPv6", err
	}
	if sends, err := n.sendsRedirects(); noRedirects && (err != nil || sends) {
		return "send_redirects was switched on", err
	}
	if localNet != "" {
		if same, err := says(n.localNetFile(), localNet); err != nil || !same {
			return "route_localnet of bridge " + n.cfg.Bridge + " was changed", err
		}
	}
	if broken, err := n.forgotten(); err != nil || broken != "" {
		return broken, err
	}
	return n.rulesChanged()
}

// rulesChanged says whether the rules are not as they were made, or ports do not lead
// where they should.
func (n *Network) rulesChanged() (string, error) {
	n.writing.Lock()
	defer n.writing.Unlock()
	n.mu.Lock()
	made := maps.Clone(n.made) // what is in it changes under n.writing alone
	n.mu.Unlock()
	for _, table := range n.tables() {
		now, err := n.listRules(table)
		if err != nil {
			return "", err
		}
		if !maps.Equal(now, made[table.Family]) {
			return "the rules of table " + tableText(table) + " were changed", nil
		}
	}
	kernel, err := n.listPublished()
	if err != nil {
		return "", err
	}
	if want := n.published(); !slices.Equal(kernel, want) {
		return fmt.Sprintf("%d published ports should be in table %s, and others are", len(want), n.tableName()), nil
	}
	return n.membersChanged()
}

// unattached lists the sandboxes with an address whose interface is not in place.
func (n *Network) unattached() ([]id.Sandbox, error) {
	links, err := listLinks()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	whole := map[string]bool{}
	for _, l := range links {
		if a := l.Attrs(); a.Flags&net.FlagUp != 0 && a.MasterIndex == n.bridge {
			whole[a.Name] = true
		}
	}
	var off []id.Sandbox
	for uid := range n.byUID {
		if !whole[hostInterface(uid)] {
			off = append(off, uid)
		}
	}
	return off, nil
}
