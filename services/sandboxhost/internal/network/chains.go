package network

import (
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// chain is one chain of our table with its rules; without a hook it is one that others go to.
type chain struct {
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    [][]expr.Any
}

// chains are all of the table of a version of IP, beside those of groups. Those that others
// go to come first.
func (n *Network) chains(l layer, sandboxes *nftables.Set, maps map[string]*nftables.Set) []chain {
	toBridge := n.over(expr.MetaKeyOIFNAME, expr.CmpOpEq)
	all := []chain{
		{
			name: "metadata", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityMangle,
			rules: n.metadataRules(l),
		},
		{
			name: "node", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookInput, priority: nftables.ChainPriorityFilter,
			rules: n.nodeRules(l),
		},
		{
			name: "groups", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, priority: nftables.ChainPriorityFilter,
			rules: [][]expr.Any{n.sortOut(l)},
		},
		{ // a sandbox must not be told to look for another among its neighbours
			name: "redirects", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookOutput, priority: nftables.ChainPriorityFilter,
			rules: [][]expr.Any{join(toBridge, l.message(l.redirect), verdict(expr.VerdictDrop))},
		},
		{
			name: "forward", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, priority: nftables.ChainPriorityFilter,
			rules: [][]expr.Any{join(toBridge, n.over(expr.MetaKeyIIFNAME, expr.CmpOpNeq), unknown(), led(expr.CmpOpEq), verdict(expr.VerdictDrop))},
		},
	}
	outside := join(l.from(sandboxes, false), l.to(sandboxes, true), n.over(expr.MetaKeyOIFNAME, expr.CmpOpNeq))
	out := chain{
		name: "postrouting", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPostrouting, priority: nftables.ChainPriorityNATSource,
		rules: append(n.keepSource(l, outside), join(outside, masquerade())),
	}
	if l.family == nftables.TableFamilyIPv6 { // nothing is published, and nobody led anywhere
		return append(all, out)
	}
	out.rules = append(out.rules,
		// The answer to oneself would not come back through the node; that of a neighbour does.
		join(toBridge, led(expr.CmpOpNeq), toItself(), masquerade()),
		join(toBridge, loopback(l.source), masquerade()))
	return append(append(n.publishing(maps), all...), out)
}

// keepSource lets what goes to a network that knows the way back go as it is.
func (n *Network) keepSource(l layer, outside []expr.Any) (rules [][]expr.Any) {
	for _, p := range n.cfg.Routable {
		if p.Addr().Is4() == (l.family == nftables.TableFamilyIPv4) {
			rules = append(rules, join(outside, l.within(p), verdict(expr.VerdictReturn)))
		}
	}
	return rules
}

// publishing are the chains that lead connections to published ports.
func (n *Network) publishing(maps map[string]*nftables.Set) []chain {
	own := [][]expr.Any{join(toTheNode(), goTo(chainPublished))}
	if n.cfg.NoLocalNet {
		own = append([][]expr.Any{join(loopback(layer4.destination), verdict(expr.VerdictReturn))}, own...)
	}
	return []chain{
		{name: chainPublished, rules: [][]expr.Any{lead(maps[mapPortsAt]), lead(maps[mapPorts])}},
		{
			name: "guard", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityRaw,
			rules: [][]expr.Any{join(n.over(expr.MetaKeyIIFNAME, expr.CmpOpEq), loopback(layer4.destination), verdict(expr.VerdictDrop))},
		},
		{
			name: "prerouting", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityNATDest,
			rules: [][]expr.Any{
				join(loopback(layer4.destination), named(expr.MetaKeyIIFNAME, expr.CmpOpNeq, "lo"), verdict(expr.VerdictReturn)),
				join(toTheNode(), goTo(chainPublished)),
			},
		},
		{
			name: "output", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookOutput, priority: nftables.ChainPriorityNATDest,
			rules: own,
		},
	}
}

// chainPublished leads connections to sandboxes.
const chainPublished = "published"

// Registers of 32 bits for what is looked up: the first of them, each word in the next.
const firstWord = unix.NFT_REG32_00

func join(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

func goTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }

// over demands that the packet comes or leaves over the bridge, or over another interface.
func (n *Network) over(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	return named(key, op, n.cfg.Bridge)
}

func named(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: op, Register: 1, Data: interfaceName(name)},
	}
}

// loopback demands that an address begins with 127.
func loopback(at uint32) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{127}},
	}
}

// toTheNode demands that the destination is an address of the node.
func toTheNode() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// lead sends a connection where a map says; without an entry nothing happens.
func lead(ports *nftables.Set) []expr.Any {
	var exprs []expr.Any
	next := uint32(firstWord)
	if ports.Name == mapPortsAt {
		exprs = append(exprs, &expr.Payload{DestRegister: next, Base: expr.PayloadBaseNetworkHeader, Offset: layer4.destination, Len: word})
		next++
	}
	const portAt, portSize = 2, 2 // in the headers of TCP and UDP
	return append(exprs,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		&expr.Payload{DestRegister: next + 1, Base: expr.PayloadBaseTransportHeader, Offset: portAt, Len: portSize},
		&expr.Lookup{SourceRegister: firstWord, DestRegister: firstWord, IsDestRegSet: true, SetName: ports.Name, SetID: ports.ID},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: firstWord, RegProtoMin: firstWord + 1},
	)
}

// led demands that a connection was led to where it goes (CmpOpNeq), or was not.
func led(op expr.CmpOp) []expr.Any {
	const destinationNAT = 1 << 5 // IPS_DST_NAT
	return masked(expr.CtKeySTATUS, destinationNAT, op)
}

// unknown demands that a packet belongs to no connection that was let through.
func unknown() []expr.Any {
	return masked(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED, expr.CmpOpEq)
}

// masked compares bits of a connection with none.
func masked(key expr.CtKey, bits uint32, op expr.CmpOp) []expr.Any {
	none := binaryutil.NativeEndian.PutUint32(0)
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: word, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: none},
		&expr.Cmp{Op: op, Register: 1, Data: none},
	}
}

// interfaceName is a name as nftables compares it: with its end.
func interfaceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
