package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// tableName is the one table of this node. Bridge names are unique within a
// network namespace, so two nodes never share a table.
func (n *Network) tableName() string {
	clean := strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || r == '@' {
			return '_'
		}
		return r
	}, n.cfg.Bridge)
	return "staddle_" + clean
}

// applyRules replaces the whole table in one transaction of the kernel, so that
// there is no moment without rules and repeating it adds nothing:
//
//	set sandboxes { type ipv4_addr; flags interval; elements = { <subnet> } }
//	chain postrouting { from @sandboxes, to others, not over the bridge: masquerade }
//	chain forward { new connections from elsewhere into the bridge: drop }
//
// What is published to the outside gets its own rules before the drop.
func (n *Network) applyRules() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := &nftables.Table{Name: n.tableName(), Family: nftables.TableFamilyIPv4}
	c.AddTable(table) // so that the deletion finds one
	c.DelTable(table)
	table = c.AddTable(table)
	set, err := n.addSubnetSet(c, table)
	if err != nil {
		return fmt.Errorf("make set of subnets: %w", err)
	}
	post := c.AddChain(&nftables.Chain{
		Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: n.masquerade(set)})
	forward := c.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: n.dropStrangers()})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("apply rules of table %s: %w", n.tableName(), err)
	}
	return nil
}

func (n *Network) addSubnetSet(c *nftables.Conn, table *nftables.Table) (*nftables.Set, error) {
	set := &nftables.Set{Table: table, Name: "sandboxes", KeyType: nftables.TypeIPAddr, Interval: true}
	first := n.cfg.Subnet.Masked().Addr()
	end := lastOf(n.cfg.Subnet).Next()
	if !end.IsValid() {
		return nil, errors.New("the subnet reaches the end of all addresses")
	}
	return set, c.AddSet(set, []nftables.SetElement{
		{Key: first.AsSlice()}, {Key: end.AsSlice(), IntervalEnd: true},
	})
}

// masquerade: packets of sandboxes that leave the node carry its address.
func (n *Network) masquerade(set *nftables.Set) []expr.Any {
	const sourceAt, destinationAt, size = 12, 16, 4 // in the IPv4 header
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: sourceAt, Len: size},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destinationAt, Len: size},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID, Invert: true},
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: interfaceName(n.cfg.Bridge)},
		&expr.Masq{},
	}
}

// dropStrangers: a connection into the bridge that was not opened from it, and
// does not come from this node itself, is dropped.
func (n *Network) dropStrangers() []expr.Any {
	const word = 4
	known := expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(n.cfg.Bridge)},
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: interfaceName(n.cfg.Bridge)},
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: word,
			Mask: binaryutil.NativeEndian.PutUint32(known), Xor: binaryutil.NativeEndian.PutUint32(0),
		},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// removeRules removes the table; one that is not there is none to remove.
func (n *Network) removeRules() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	c.DelTable(&nftables.Table{Name: n.tableName(), Family: nftables.TableFamilyIPv4})
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove table %s: %w", n.tableName(), err)
	}
	return nil
}

// lastOf is the last address of a subnet.
func lastOf(subnet netip.Prefix) netip.Addr {
	b := subnet.Masked().Addr().As4()
	for bit := subnet.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(b)
}

// interfaceName is a name as nftables compares it: with its end.
func interfaceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
