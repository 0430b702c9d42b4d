package balance

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/services/sandboxhost/internal/hostport"
	"staddle.internal/services/sandboxhost/internal/nft"
)

// settle makes the kernel forget what leads to backends that fronts do not have any more:
// clients that are remembered, and packets of udp, which would go there for as long as they
// come. What leads where is right also after an error.
func (b *Balancer) settle(changed []Front) error {
	backends := map[Front][]netip.AddrPort{}
	udp := false
	for _, front := range changed {
		backends[front] = b.parts[front].Backends
		udp = udp || protocols[front.Protocol] == unix.IPPROTO_UDP
		if err := b.forgetClients(front); err != nil {
			return err
		}
	}
	if !udp {
		return nil
	}
	local, err := hostport.Addresses()
	if err != nil {
		return err
	}
	_, err = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, stale{backends: backends, local: local})
	if err != nil && !errors.Is(err, unix.ENOENT) { // one has ended meanwhile
		return fmt.Errorf("forget connections to services: %w", err)
	}
	return nil
}

// forgetClients drops the clients whose backend is gone.
func (b *Balancer) forgetClients(front Front) error {
	s := b.parts[front]
	if s.Affinity == 0 || len(s.Backends) == 0 {
		return nil
	}
	c, err := nft.Open()
	if err != nil {
		return err
	}
	set := setOf(b.table(), prefixClients+front.name())
	clients, err := c.GetSetElements(set)
	if err != nil {
		return fmt.Errorf("list clients of %s: %w", front, err)
	}
	stays := map[string]bool{}
	for _, backend := range s.Backends {
		stays[backendValue(backend)] = true
	}
	gone := slices.DeleteFunc(clients, func(e nftables.SetElement) bool { return stays[string(e.Val)] })
	for _, e := range gone { // one by one: it may end meanwhile, and would take the others along
		if err := c.SetDeleteElements(set, []nftables.SetElement{{Key: e.Key, Val: e.Val}}); err != nil {
			return fmt.Errorf("forget client of %s: %w", front, err)
		}
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("forget client of %s: %w", front, err)
		}
	}
	return nil
}

// stale matches connections of udp to one of the fronts with somebody who is not behind it.
type stale struct {
	backends map[Front][]netip.AddrPort
	local    map[netip.Addr]bool // addresses of the node
}

// MatchConntrackFlow makes it a filter of netlink.
func (s stale) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, ok1 := netip.AddrFromSlice(f.Forward.DstIP)
	by, ok2 := netip.AddrFromSlice(f.Reverse.SrcIP)
	if !ok1 || !ok2 {
		return false
	}
	to = to.Unmap()
	fronts := []Front{{Address: to}, {Address: to, Node: true}}
	if s.local[to] || to.IsLoopback() {
		fronts = append(fronts, Front{Node: true})
	}
	for _, front := range fronts {
		front.Protocol, front.Port = hostport.UDP, f.Forward.DstPort
		if backends, ours := s.backends[front]; ours {
			return !slices.Contains(backends, netip.AddrPortFrom(by.Unmap(), f.Reverse.SrcPort))
		}
	}
	return false
}
