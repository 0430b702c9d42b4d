package network

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// layer is how one version of IP looks to the rules.
type layer struct {
	family              nftables.TableFamily
	key                 nftables.SetDatatype // of addresses
	source, destination uint32               // places in the header, in bytes
	size                uint32               // of an address, in bytes
	icmp                byte                 // protocol of messages
	echo, redirect      byte                 // kinds of messages
	barred              byte                 // of unreachable: administratively prohibited
	metadata            []netip.Prefix       // where clouds tell machines who they are
}

// layer4 has its numbers from RFC 791, 792, 1812 and 3927.
var layer4 = layer{
	family: nftables.TableFamilyIPv4, key: nftables.TypeIPAddr, source: 12, destination: 16, size: 4,
	icmp: unix.IPPROTO_ICMP, echo: 8, redirect: 5, barred: 13,
	metadata: []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16")},
}

// layer6 has its numbers from RFC 8200, 4443 and 4861. Beside link-local addresses clouds
// use addresses of their own for metadata: Amazon fd00:ec2::254, Google fd20:ce::254.
var layer6 = layer{
	family: nftables.TableFamilyIPv6, key: nftables.TypeIP6Addr, source: 8, destination: 24, size: 16,
	icmp: unix.IPPROTO_ICMPV6, echo: 128, redirect: 137, barred: 1,
	metadata: []netip.Prefix{netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("fd00:ec2::/32"), netip.MustParsePrefix("fd20:ce::/32")},
}

// layers are the versions of IP that this network has.
func (n *Network) layers() []layer {
	if n.cfg.Subnet6.IsValid() {
		return []layer{layer4, layer6}
	}
	return []layer{layer4}
}

// subnetOf and gatewayOf are what the network has in a version of IP.
func (n *Network) subnetOf(l layer) netip.Prefix {
	if l.family == nftables.TableFamilyIPv6 {
		return n.cfg.Subnet6
	}
	return n.cfg.Subnet
}

func (n *Network) gatewayOf(l layer) netip.Addr { return n.subnetOf(l).Masked().Addr().Next() }

// six is the IPv6 address that belongs to an address of the subnet: as far behind the
// beginning of its own. So there is one ledger, and nothing to keep beside it. It is the
// zero Addr where there is no IPv6, and for an address of another network.
func (n *Network) six(addr netip.Addr) netip.Addr {
	if !n.cfg.Subnet6.IsValid() || !n.cfg.Subnet.Contains(addr) {
		return netip.Addr{}
	}
	first, a := n.cfg.Subnet.Masked().Addr().As4(), addr.As4()
	b := n.cfg.Subnet6.Masked().Addr().As16()
	low := b[len(b)-4:]
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)+binary.BigEndian.Uint32(a[:])-binary.BigEndian.Uint32(first[:]))
	return netip.AddrFrom16(b)
}

// from and to demand that source or destination is in a set, or not.
func (l layer) from(set *nftables.Set, not bool) []expr.Any { return l.address(l.source, set, not) }
func (l layer) to(set *nftables.Set, not bool) []expr.Any   { return l.address(l.destination, set, not) }

func (l layer) address(at uint32, set *nftables.Set, not bool) []expr.Any {
	return []expr.Any{l.load(at), &expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID, Invert: not}}
}

func (l layer) load(at uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: l.size}
}

// is demands a destination.
func (l layer) is(a netip.Addr) []expr.Any {
	return []expr.Any{l.load(l.destination), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()}}
}

// within demands a destination in a network.
func (l layer) within(p netip.Prefix) []expr.Any {
	mask := make([]byte, l.size)
	for bit := range p.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return []expr.Any{
		l.load(l.destination),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: l.size, Mask: mask, Xor: make([]byte, l.size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// message demands a kind of message.
func (l layer) message(kind byte) []expr.Any {
	return join(protocol(l.icmp), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{kind}},
	})
}

// refuse counts and refuses a packet in the way that its sender sees at once.
func (l layer) refuse(all []expr.Any) [][]expr.Any {
	counted := []expr.Any{&expr.Counter{}}
	return [][]expr.Any{
		join(all, protocol(unix.IPPROTO_TCP), counted, []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}),
		join(all, counted, l.prohibit()),
	}
}

func (l layer) prohibit() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: l.barred}}
}
