package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/nft"
)

// Names in the table of the bridge.
const (
	setPorts    = "ports"   // the host's ends of our interfaces
	setSources  = "sources" // each with the addresses that it may send from; sources6 for IPv6
	chainSource = "source"
)

// Places in the headers of Ethernet and of ARP for IPv4 over it, in bytes.
const (
	etherDestination = 0
	etherSource      = 6
	etherType        = 12
	arpSenderEther   = 8
	arpSenderIP      = 14
	arpTargetIP      = 24

	etherLen = 6
)

// hardwareOf is the hardware address of the sandbox with an address: locally administered,
// and nobody else's on this bridge.
func hardwareOf(addr netip.Addr) net.HardwareAddr {
	return slices.Concat(hardwarePrefix, addr.AsSlice())
}

var hardwarePrefix = net.HardwareAddr{0x02, 0x53}

// wireTable is the table for what passes the bridge. It has the name of the table of rules.
func (n *Network) wireTable() *nftables.Table {
	return &nftables.Table{Name: n.tableName(), Family: n.wireFamily}
}

// writeWire replaces the table of the bridge in one transaction:
//
//	set ports { type ifname }
//	set sources { type ifname . ether_addr . ipv4_addr }, and sources6 where there is IPv6
//	chain prerouting { hook prerouting: from one of @ports: goto source }
//	chain source {
//		ip to the gateway's hardware address, from one of @sources: return
//		arp about the gateway, from one of @sources: return
//		ip6 to the gateway's hardware address, from one of @sources6: return
//		drop
//	}
//	chain forward { hook forward: between @ports, and no ip: drop }
//
// So no sandbox has the address of another, and what one sends to another comes to the
// rules, which ask what is routed and not what is switched. br_netfilter, where it is there, leads packets of ip to
// another port only after those rules.
// A kernel without nftables for bridges is noted: nothing can be kept apart on it.
func (n *Network) writeWire() error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	table := n.wireTable()
	c.AddTable(table) // so that the deletion finds one
	c.DelTable(table)
	table = c.AddTable(table)
	ports, members := portSet(table), n.members()
	if err := c.AddSet(ports, nil); err != nil {
		return fmt.Errorf("make set of ports: %w", err)
	}
	for _, l := range n.layers() {
		var places []nftables.SetElement
		for _, m := range members {
			if m.at(l).IsValid() {
				places = append(places, m.sourceIn(l))
			}
		}
		set := sourceSet(table, l)
		if err := errors.Join(c.AddSet(set, nil), nft.Send(set, places, c.SetAddElements)); err != nil {
			return fmt.Errorf("make set of sources: %w", err)
		}
	}
	addChains(c, table, n.wireChains(ports))
	var names []nftables.SetElement
	for _, m := range members {
		names = append(names, m.onWire())
	}
	if err := nft.Send(ports, names, c.SetAddElements); err != nil {
		return err
	}
	return n.judgeWire(c.Flush())
}

// judgeWire notes whether the kernel has nftables for bridges.
func (n *Network) judgeWire(err error) error {
	why := ""
	switch {
	case noFamily(err), errors.Is(err, unix.ENOENT):
		why = "the kernel of this node has no nftables for bridges (nf_tables, CONFIG_NF_TABLES_BRIDGE): " + err.Error()
	case err != nil:
		return fmt.Errorf("apply rules of table bridge %s: %w", n.tableName(), err)
	}
	n.mu.Lock()
	news := why != n.noWire
	n.noWire = why
	n.mu.Unlock()
	if news && why != "" {
		n.log.Warn("sandboxes with a network group are refused", logging.Reason(why))
	}
	return nil
}

// hasWire says whether there is a table of the bridge.
func (n *Network) hasWire() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.noWire == ""
}

func (n *Network) wireChains(ports *nftables.Set) []chain {
	pass := verdict(expr.VerdictReturn)
	drop := []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}
	toGateway := same(expr.PayloadBaseLLHeader, etherDestination, hardwareAddress(n.cfg.Bridge))
	source := [][]expr.Any{
		join(kind(expr.CmpOpEq, unix.ETH_P_IP), toGateway, from(layer4, expr.PayloadBaseLLHeader, etherSource, layer4.source), pass),
		join(kind(expr.CmpOpEq, unix.ETH_P_ARP), same(expr.PayloadBaseNetworkHeader, arpTargetIP, n.gateway().AsSlice()),
			from(layer4, expr.PayloadBaseLLHeader, etherSource, arpSenderIP),
			from(layer4, expr.PayloadBaseNetworkHeader, arpSenderEther, arpSenderIP), pass),
	}
	if n.cfg.Subnet6.IsValid() {
		source = append(source, join(kind(expr.CmpOpEq, unix.ETH_P_IPV6), toGateway, from(layer6, expr.PayloadBaseLLHeader, etherSource, layer6.source), pass))
	}
	return []chain{
		{name: chainSource, rules: append(source, drop)},
		{
			name: "prerouting", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityRaw,
			rules: [][]expr.Any{join(onPort(expr.MetaKeyIIFNAME, ports), goTo(chainSource))},
		},
		{
			name: "forward", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, priority: nftables.ChainPriorityFilter,
			rules: [][]expr.Any{join(onPort(expr.MetaKeyIIFNAME, ports), onPort(expr.MetaKeyOIFNAME, ports), kind(expr.CmpOpNeq, unix.ETH_P_IP), drop)},
		},
	}
}

// kind demands a kind of frame, or another one.
func kind(op expr.CmpOp, ethernet uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: etherType, Len: 2},
		&expr.Cmp{Op: op, Register: 1, Data: bigEndian(ethernet)},
	}
}

func same(base expr.PayloadBase, at uint32, what []byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: base, Offset: at, Len: uint32(len(what))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: what},
	}
}

func onPort(key expr.MetaKey, ports *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: ports.Name, SetID: ports.ID}}
}

// from demands that port, hardware address and address belong together.
func from(l layer, base expr.PayloadBase, etherAt, addressAt uint32) []expr.Any {
	const nameWords, etherWords = unix.IFNAMSIZ / word, 2
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstWord},
		&expr.Payload{DestRegister: firstWord + nameWords, Base: base, Offset: etherAt, Len: etherLen},
		&expr.Payload{DestRegister: firstWord + nameWords + etherWords, Base: expr.PayloadBaseNetworkHeader, Offset: addressAt, Len: l.size},
		&expr.Lookup{SourceRegister: firstWord, SetName: sourcesOf(l)},
	}
}

func portSet(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: setPorts, KeyType: nftables.TypeIFName}
}

func sourcesOf(l layer) string {
	if l.family == nftables.TableFamilyIPv6 {
		return setSources + "6"
	}
	return setSources
}

func sourceSet(table *nftables.Table, l layer) *nftables.Set {
	return &nftables.Set{
		Table: table, Name: sourcesOf(l), Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr, l.key),
	}
}

func (m member) onWire() nftables.SetElement { return nftables.SetElement{Key: interfaceName(m.port)} }

func (m member) sourceIn(l layer) nftables.SetElement {
	key := append(interfaceName(m.port), hardwareOf(m.addr)...)
	key = append(key, 0, 0) // words of 4 bytes
	return nftables.SetElement{Key: append(key, m.at(l).AsSlice()...)}
}

// changeWire changes what a member is in the table of the bridge.
func (n *Network) changeWire(m member, change func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) error {
	if !n.hasWire() {
		return nil
	}
	c, err := nft.Open()
	if err != nil {
		return err
	}
	table := n.wireTable()
	if err := change(c, portSet(table), []nftables.SetElement{m.onWire()}); err != nil {
		return err
	}
	for _, l := range n.layers() {
		if !m.at(l).IsValid() {
			continue
		}
		if err := change(c, sourceSet(table, l), []nftables.SetElement{m.sourceIn(l)}); err != nil {
			return err
		}
	}
	return c.Flush()
}
