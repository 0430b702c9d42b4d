package network

import (
	"encoding/binary"
	"errors"
	"os"

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

const portOfNames = 53

// metadataRules refuse new connections to where clouds serve metadata. They are asked before
// anybody leads such a connection elsewhere.
func (n *Network) metadataRules(l layer) (rules [][]expr.Any) {
	if n.cfg.Policy.Metadata {
		return nil
	}
	for _, p := range l.metadata {
		there := join(n.fromBridge(), unknown(), l.within(p))
		if n.cfg.Policy.AnyResolver {
			rules = append(rules, toResolver(there)...)
		}
		rules = append(rules, l.refuse(there)...)
	}
	return rules
}

// nodeRules refuse new connections to the node itself, but to what is allowed. What is
// published, and services, are no connections to the node: they have been led away before.
func (n *Network) nodeRules(l layer) [][]expr.Any {
	toGateway := l.is(n.gatewayOf(l))
	rules := [][]expr.Any{
		join(n.fromBridge(), known(), verdict(expr.VerdictReturn)),
		join(n.fromBridge(), toGateway, l.message(l.echo), verdict(expr.VerdictReturn)),
	}
	resolver := toGateway
	if n.cfg.Policy.AnyResolver {
		resolver = nil
	}
	rules = append(rules, toResolver(join(n.fromBridge(), resolver))...)
	for _, p := range n.cfg.Policy.Ports {
		rules = append(rules, join(n.fromBridge(), protocol(protocolNumbers[p.Protocol]), ports(p.First, p.Last), verdict(expr.VerdictReturn)))
	}
	return append(rules, l.refuse(n.fromBridge())...)
}

// toResolver lets questions about names pass.
func toResolver(which []expr.Any) (rules [][]expr.Any) {
	for _, number := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		rules = append(rules, join(which, protocol(number), ports(portOfNames, portOfNames), verdict(expr.VerdictReturn)))
	}
	return rules
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

// withoutIPv6 takes the node's own IPv6 address off the bridge, and says whether it has
// none. It is for a network without IPv6: no rule is asked about it.
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

func (n *Network) ipv6File() string { return setting6(n.cfg.Bridge, "disable_ipv6") }
