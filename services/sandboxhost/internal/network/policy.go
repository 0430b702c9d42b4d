package network

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Policy says what of the node itself, and of what is behind it, sandboxes reach. The zero
// Policy is the strictest.
type Policy struct {
	// Metadata lets them reach link-local addresses, where clouds serve metadata.
	Metadata bool
	// Ports of the node that they reach, at every address of it.
	Ports []PortRange
	// AnyResolver lets them ask name servers at every address of the node and at link-local
	// ones, not only at the gateway: for a node that has no resolver of ours.
	AnyResolver bool
	// Groups are what sandboxes of different groups reach of each other.
	Groups []GroupRule
}

// PortRange is some ports of one protocol.
type PortRange struct {
	// Protocol is hostport.TCP or hostport.UDP.
	Protocol string
	// First and Last of the ports.
	First, Last uint16
}

// linkLocal has the metadata of clouds (RFC 3927).
var linkLocal = netip.PrefixFrom(netip.AddrFrom4([4]byte{169, 254, 0, 0}), 16)

const (
	portOfNames  = 53
	icmpEcho     = 8 // RFC 792
	icmpRedirect = 5
	icmpBarred   = 13 // of destination unreachable: administratively prohibited (RFC 1812)
)

// metadataRules refuse new connections to link-local addresses. They are asked before
// anybody leads such a connection elsewhere.
func (n *Network) metadataRules() [][]expr.Any {
	if n.cfg.Policy.Metadata {
		return nil
	}
	there := join(n.fromBridge(), unknown(), within(destinationAt, linkLocal))
	var rules [][]expr.Any
	if n.cfg.Policy.AnyResolver {
		rules = toResolver(there)
	}
	return append(rules, refuse(there)...)
}

// nodeRules refuse new connections to the node itself, but to what is allowed. What is
// published, and services, are no connections to the node: they have been led away before.
func (n *Network) nodeRules() [][]expr.Any {
	toGateway := is(destinationAt, n.gateway())
	rules := [][]expr.Any{
		join(n.fromBridge(), known(), verdict(expr.VerdictReturn)),
		join(n.fromBridge(), toGateway, protocol(unix.IPPROTO_ICMP), typeOfICMP(icmpEcho), verdict(expr.VerdictReturn)),
	}
	resolver := toGateway
	if n.cfg.Policy.AnyResolver {
		resolver = nil
	}
	rules = append(rules, toResolver(join(n.fromBridge(), resolver))...)
	for _, p := range n.cfg.Policy.Ports {
		rules = append(rules, join(n.fromBridge(), protocol(protocolNumbers[p.Protocol]), ports(p.First, p.Last), verdict(expr.VerdictReturn)))
	}
	return append(rules, refuse(n.fromBridge())...)
}

// toResolver lets questions about names pass.
func toResolver(which []expr.Any) (rules [][]expr.Any) {
	for _, number := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		rules = append(rules, join(which, protocol(number), ports(portOfNames, portOfNames), verdict(expr.VerdictReturn)))
	}
	return rules
}

// refuse counts and refuses a packet in the way that its sender sees at once.
func refuse(all []expr.Any) [][]expr.Any {
	counted := []expr.Any{&expr.Counter{}}
	return [][]expr.Any{
		join(all, protocol(unix.IPPROTO_TCP), counted, []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}),
		join(all, counted, barred()),
	}
}

func barred() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpBarred}}
}

func (n *Network) fromBridge() []expr.Any { return n.over(expr.MetaKeyIIFNAME, expr.CmpOpEq) }

// known demands that a packet belongs to a connection that was let through.
func known() []expr.Any {
	return masked(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED, expr.CmpOpNeq)
}

func protocol(number byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{number}},
	}
}

// ports demands that the destination is one of a range of ports.
func ports(first, last uint16) []expr.Any {
	const portAt, portSize = 2, 2 // in the headers of TCP and UDP
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: portAt, Len: portSize},
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: bigEndian(first), ToData: bigEndian(last)},
	}
}

func bigEndian(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }

func typeOfICMP(kind byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{kind}},
	}
}

// is demands an address.
func is(at uint32, a netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: word},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
	}
}

// within demands an address of a network whose size is whole bytes.
func within(at uint32, p netip.Prefix) []expr.Any {
	size := p.Bits() / 8
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: uint32(size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()[:size]},
	}
}

// withoutIPv6 takes the node's own IPv6 address off the bridge, and says whether it has
// none. The network of sandboxes has no IPv6, and no rule is asked about it.
func (n *Network) withoutIPv6() (bool, error) {
	err := set(n.ipv6File(), "1")
	if errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		err = nil
	}
	return err == nil, err
}

func (n *Network) ipv6IsOff() (bool, error) {
	off, err := says(n.ipv6File(), "1")
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	return off, err
}

func (n *Network) ipv6File() string {
	return filepath.Join("/proc/sys/net/ipv6/conf", n.cfg.Bridge, "disable_ipv6")
}
