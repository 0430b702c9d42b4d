package balance

import (
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers of 32 bits: the client or the number of a place, and the backend in the two
// behind it.
const (
	regKey     = unix.NFT_REG32_00
	regBackend = unix.NFT_REG32_01
)

// Places in the headers of IPv4, and of TCP and UDP, in bytes.
const (
	sourceAt      = 12
	destinationAt = 16
	portAt        = 2
	word          = 4
)

// base are the chains that connections come in by:
//
//	chain prerouting {
//		from the bridge: goto what map services says
//		to loopback, not over lo: return
//		to an address of the node: goto what map node_at says, or map node
//	}
//	chain output {
//		goto what map services says
//		to loopback, without local net: return
//		to an address of the node: goto what map node_at says, or map node
//	}
//	chain forward { from the bridge, to a prefix: reject }
//	chain own { to a prefix: reject }
//	chain input { new, to an address of the node and a port in set held_at or held: reject }
//
// The last three come after the first two, so that what still has a virtual address or a
// held port there leads nowhere. Only new connections are refused in input: a program of
// the node may have such a port as its own end of one.
func (b *Balancer) base() map[string]chain {
	fromBridge := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(b.cfg.Bridge)},
	}
	toLoopback := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destinationAt, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{127}},
	}
	leave := []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	toOthers := join(toLoopback, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: interfaceName("lo")},
	}, leave)
	own := [][]expr.Any{find(mapServices)}
	if b.cfg.NoLocalNet {
		own = append(own, join(toLoopback, leave))
	}
	toNode := [][]expr.Any{join(toTheNode(), find(mapNodeAt)), join(toTheNode(), find(mapNode))}
	nat := func(hook *nftables.ChainHook, rules ...[]expr.Any) chain {
		return chain{kind: nftables.ChainTypeNAT, hook: hook, priority: nftables.ChainPriorityNATDest}.with(append(rules, toNode...)...)
	}
	filter := func(hook *nftables.ChainHook, also []expr.Any) chain {
		var rules [][]expr.Any
		for _, p := range b.cfg.Prefixes {
			rules = append(rules, join(also, tcp(), within(p), reject(unix.NFT_REJECT_TCP_RST, 0)),
				join(also, within(p), reject(unix.NFT_REJECT_ICMP_UNREACH, icmpPort)))
		}
		return chain{kind: nftables.ChainTypeFilter, hook: hook, priority: nftables.ChainPriorityFilter}.with(rules...)
	}
	return map[string]chain{
		"prerouting": nat(nftables.ChainHookPrerouting, join(fromBridge, find(mapServices)), toOthers),
		"output":     nat(nftables.ChainHookOutput, own...),
		"forward":    filter(nftables.ChainHookForward, fromBridge),
		"own":        filter(nftables.ChainHookOutput, nil),
		"input":      chain{kind: nftables.ChainTypeFilter, hook: nftables.ChainHookInput, priority: nftables.ChainPriorityFilter}.with(refuseHeld()...),
	}
}

// refuseHeld refuses what comes to a held port of the node and was led nowhere.
func refuseHeld() [][]expr.Any {
	var rules [][]expr.Any
	for _, set := range []string{setHeldAt, setHeld} {
		held := join(begins(), toTheNode(), frontOf(set), []expr.Any{&expr.Lookup{SourceRegister: regKey, SetName: set}})
		rules = append(rules, join(tcp(), held, reject(unix.NFT_REJECT_TCP_RST, 0)), join(held, reject(unix.NFT_REJECT_ICMP_UNREACH, icmpPort)))
	}
	return rules
}

// icmpPort is "port unreachable" (RFC 792).
const icmpPort = 3

// frontRules lead a connection to a backend: to the one that the client had last if it
// came not long ago, else to any. When no more clients can be remembered the last rule is
// left.
func frontRules(name string, s Service) [][]expr.Any {
	random := join(pick(name, len(s.Backends)), lead())
	if s.Affinity == 0 {
		return [][]expr.Any{random}
	}
	again := join(client(), []expr.Any{&expr.Lookup{
		SourceRegister: regKey, DestRegister: regBackend, IsDestRegSet: true, SetName: prefixClients + name,
	}}, remember(name, s.Affinity), lead())
	first := join(pick(name, len(s.Backends)), client(), remember(name, s.Affinity), lead())
	return [][]expr.Any{again, first, random}
}

// find goes to the chain of a front, if there is one in a map.
func find(name string) []expr.Any {
	return append(frontOf(name), &expr.Lookup{SourceRegister: regKey, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: name})
}

// frontOf takes the front that a packet goes to, as a map or set has it.
func frontOf(name string) []expr.Any {
	var exprs []expr.Any
	next := uint32(regKey)
	if name != mapNode && name != setHeld {
		exprs = append(exprs, &expr.Payload{DestRegister: next, Base: expr.PayloadBaseNetworkHeader, Offset: destinationAt, Len: word})
		next++
	}
	return append(exprs, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		&expr.Payload{DestRegister: next + 1, Base: expr.PayloadBaseTransportHeader, Offset: portAt, Len: 2})
}

// toTheNode demands that the destination is an address of the node.
func toTheNode() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// begins demands that a packet is the first of a connection.
func begins() []expr.Any {
	none := binaryutil.NativeEndian.PutUint32(0)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: word, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW), Xor: none},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: none},
	}
}

// pick takes the backend of any place.
func pick(name string, places int) []expr.Any {
	return []expr.Any{
		&expr.Numgen{Register: regKey, Modulus: uint32(places), Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: regKey, DestRegister: regBackend, IsDestRegSet: true, SetName: prefixPlaces + name},
	}
}

func client() []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: regKey, Base: expr.PayloadBaseNetworkHeader, Offset: sourceAt, Len: word}}
}

// remember notes the backend of a client, from now on for a time.
func remember(name string, timeout time.Duration) []expr.Any {
	return []expr.Any{&expr.Dynset{
		SrcRegKey: regKey, SrcRegData: regBackend, SetName: prefixClients + name,
		Operation: uint32(unix.NFT_DYNSET_OP_UPDATE), Timeout: timeout,
	}}
}

func lead() []expr.Any {
	return []expr.Any{&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: regBackend, RegProtoMin: regBackend + 1}}
}

func tcp() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
	}
}

// within demands that the destination is in a network.
func within(p netip.Prefix) []expr.Any {
	mask := make([]byte, word)
	for bit := range p.Bits() {
		mask[bit/8] |= 1 << (7 - bit%8)
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destinationAt, Len: word},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: word, Mask: mask, Xor: make([]byte, word)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

func reject(kind uint32, code uint8) []expr.Any {
	return []expr.Any{&expr.Reject{Type: kind, Code: code}}
}

func join(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// interfaceName is a name as nftables compares it: with its end.
func interfaceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
