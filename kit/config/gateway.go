package config

import (
	"net"
	"net/netip"
)

// GatewayAddress is host:port at which the cluster is told that the gateway of this
// node is reached, and empty where there is none to tell of. It is AdvertiseAddress;
// without one it is ListenAddress; and where that stands for all addresses of the
// machine, the first of own, which are the machine's, of the same family if one is.
func (n *Node) GatewayAddress(own []string) string {
	if n.ListenAddress == "" || n.AdvertiseAddress != "" {
		return n.AdvertiseAddress
	}
	host, port, err := net.SplitHostPort(n.ListenAddress)
	all, perr := netip.ParseAddr(host)
	if err != nil || perr != nil || !all.IsUnspecified() {
		return n.ListenAddress
	}
	first := ""
	for _, text := range own {
		a, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		if a.Is4() == all.Is4() {
			return net.JoinHostPort(text, port)
		}
		if first == "" && all.Is6() { // which takes calls of both families
			first = net.JoinHostPort(text, port)
		}
	}
	return first
}

// gateway checks where the gateway listens and what is told of it.
func (c *checks) gateway(listen, advertise string) {
	if listen != "" {
		c.address("listen_address", listen)
	}
	if advertise == "" {
		return
	}
	c.address("advertise_address", advertise)
	c.must(listen != "", "advertise_address", "there is no gateway to tell of", "write a listen_address too, or remove this")
	host, _, err := net.SplitHostPort(advertise)
	a, perr := netip.ParseAddr(host)
	c.must(err != nil || perr != nil || !a.IsUnspecified(), "advertise_address", "nobody can call all addresses",
		"write the host name or address by which others reach this machine")
}
