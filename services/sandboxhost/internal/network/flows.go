package network

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// flow is a connection that the kernel remembers: from whom to whom, and who answers.
type flow struct {
	protocol         uint8
	from, to, answer netip.Addr
	port             uint16 // that it was sent to
}

// with says whether somebody is at one end of it.
func (f flow) with(addr netip.Addr) bool { return f.from == addr || f.to == addr || f.answer == addr }

// misses says whether it was sent to a port that is published now, and answered by
// somebody else.
func (f flow) misses(e element) bool {
	here := !e.port.Address.IsValid() || e.port.Address == f.to
	return here && f.port == e.port.Host && f.protocol == protocolNumbers[e.port.Protocol] && f.to == f.answer
}

// MatchConntrackFlow makes a condition a filter of netlink.
func (c condition) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	from, ok1 := netip.AddrFromSlice(f.Forward.SrcIP)
	to, ok2 := netip.AddrFromSlice(f.Forward.DstIP)
	answer, ok3 := netip.AddrFromSlice(f.Reverse.SrcIP)
	return ok1 && ok2 && ok3 && c(flow{
		protocol: f.Forward.Protocol, from: from.Unmap(), to: to.Unmap(), answer: answer.Unmap(), port: f.Forward.DstPort,
	})
}

type condition func(flow) bool

// dropFlows forgets the connections of which a condition is true.
func dropFlows(which condition) error {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, which)
		if err != nil && !errors.Is(err, unix.ENOENT) { // one has ended meanwhile
			return fmt.Errorf("forget connections: %w", err)
		}
	}
	return nil
}
