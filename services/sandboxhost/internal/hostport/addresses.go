package hostport

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Addresses are the IPv4 addresses of the node. All of 127.0.0.0/8 are its own besides.
func Addresses() (map[netip.Addr]bool, error) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list addresses of the node: %w", err)
	}
	local := map[netip.Addr]bool{}
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP.To4()); ok {
			local[addr] = true
		}
	}
	return local, nil
}
