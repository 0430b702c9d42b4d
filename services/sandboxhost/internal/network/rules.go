package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
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

func (n *Network) table() *nftables.Table {
	return &nftables.Table{Name: n.tableName(), Family: nftables.TableFamilyIPv4}
}

// writeTable replaces the whole table and remembers what it looks like.
func (n *Network) writeTable() error {
	n.writing.Lock()
	defer n.writing.Unlock()
	return n.writeTableLocked()
}

func (n *Network) writeTableLocked() error {
	if err := n.applyRules(); err != nil {
		return err
	}
	rules, err := n.listRules()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules = rules
	return err
}

// applyRules replaces the whole table in one transaction of the kernel, so that
// there is no moment without rules and repeating it adds nothing:
//
//	set sandboxes { type ipv4_addr; flags interval; elements = { <subnet> } }
//	map ports { type inet_proto . inet_service : ipv4_addr . inet_service }
//	map ports_at { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//	chain guard { hook prerouting, before all else: from the bridge to loopback: drop }
//	chain metadata { hook prerouting, before destinations are changed: new from the bridge to link-local addresses: reject }
//	chain node { hook input: new from the bridge, but to the resolver, by ping, or to an allowed port: reject }
//	chain prerouting { to loopback, not over lo: return; to an address of the node: goto published }
//	chain output { to an address of the node: goto published }
//	chain published { dnat to what map ports_at says, or map ports }
//	chain postrouting {
//		from @sandboxes, to others, not over the bridge: masquerade
//		over the bridge, led there, from @sandboxes: masquerade
//		over the bridge, from loopback: masquerade
//	}
//	chain forward { new connections from elsewhere into the bridge that were not led there: drop }
//
// A change of what is published changes elements of the maps and nothing else.
func (n *Network) applyRules() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := n.table()
	c.AddTable(table) // so that the deletion finds one
	c.DelTable(table)
	table = c.AddTable(table)
	set, err := n.addSubnetSet(c, table)
	if err != nil {
		return fmt.Errorf("make set of subnets: %w", err)
	}
	maps, err := n.addPortMaps(c, table)
	if err != nil {
		return fmt.Errorf("make maps of ports: %w", err)
	}
	for _, chain := range n.chains(set, maps) {
		made := c.AddChain(&nftables.Chain{Name: chain.name, Table: table, Type: chain.kind, Hooknum: chain.hook, Priority: chain.priority})
		for _, exprs := range chain.rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: made, Exprs: exprs})
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("apply rules of table %s: %w", n.tableName(), err)
	}
	return nil
}

// addPortMaps adds the maps with all that is published.
func (n *Network) addPortMaps(c *nftables.Conn, table *nftables.Table) (map[string]*nftables.Set, error) {
	maps, elements := map[string]*nftables.Set{}, byMap(n.published())
	for _, name := range []string{mapPorts, mapPortsAt} {
		maps[name] = portMap(table, name)
		if err := c.AddSet(maps[name], elements[name]); err != nil {
			return nil, err
		}
	}
	return maps, nil
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

// removeRules removes the table; one that is not there is none to remove.
func (n *Network) removeRules() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	c.DelTable(n.table())
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
