package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"staddle.internal/services/sandboxhost/internal/nft"
)

// setSandboxes has the network of the sandboxes.
const setSandboxes = "sandboxes"

// tableName is that of the tables of this node. Bridge names are unique within a
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

func (n *Network) table() *nftables.Table { return n.tableOf(layer4) }

func (n *Network) tableOf(l layer) *nftables.Table {
	return &nftables.Table{Name: n.tableName(), Family: l.family}
}

// tables are all of this node.
func (n *Network) tables() []*nftables.Table {
	var all []*nftables.Table
	for _, l := range n.layers() {
		all = append(all, n.tableOf(l))
	}
	return append(all, n.wireTable())
}

// writeTable replaces all tables and remembers what they look like.
func (n *Network) writeTable() error {
	n.writing.Lock()
	defer n.writing.Unlock()
	return n.writeTableLocked()
}

func (n *Network) writeTableLocked() error {
	if err := n.applyRules(); err != nil {
		return err
	}
	if err := n.writeWire(); err != nil {
		return err
	}
	made := map[nftables.TableFamily]map[string]string{}
	for _, table := range n.tables() {
		rules, err := n.listRules(table)
		if err != nil {
			return err
		}
		made[table.Family] = rules
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made = made
	return nil
}

// applyRules replaces the tables of rules in one transaction of the kernel, so that
// there is no moment without rules and repeating it adds nothing. That of IPv6 has the
// same but what is published; that of IPv4:
//
//	set sandboxes { type ipv4_addr; flags interval; elements = { <subnet> } }
//	map ports { type inet_proto . inet_service : ipv4_addr . inet_service }
//	map ports_at { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//	chain guard { hook prerouting, before all else: from the bridge to loopback: drop }
//	chain metadata { hook prerouting, before destinations are changed: new from the bridge to link-local addresses: reject }
//	chain node { hook input: new from the bridge, but to the resolver, by ping, or to an allowed port: reject }
//	chain prerouting { to loopback, not over lo: return; to an address of the node: goto published }
//	chain output { to loopback, without local net: return; to an address of the node: goto published }
//	chain published { dnat to what map ports_at says, or map ports }
//	chain postrouting {
//		from @sandboxes, to others, not over the bridge: return if it is to a routable network, masquerade
//		over the bridge, led there, to itself (from and to in set selves): masquerade
//		over the bridge, from loopback: masquerade
//	}
//	chain forward { new connections from elsewhere into the bridge that were not led there: drop }
//	set selves { type ipv4_addr . ipv4_addr }, each sandbox to itself
//	map senders { type ipv4_addr : verdict }, the group of each sandbox
//	set members_<group> { type ipv4_addr }
//	chain from_<group> { to @members_<group>: return; to what a rule allows: return; goto apart }
//	chain apart { reject; what was led there, by a message }
//	chain groups { hook forward: new from the bridge to the bridge: where map senders says }
//	chain redirects { hook output: redirects to the bridge: drop }
//
// A change of what is published changes elements of the maps and nothing else, and so does a
// sandbox more or less, unless it is the first or the last of its group.
func (n *Network) applyRules() error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	for _, l := range n.layers() {
		if err := n.addTable(c, l); err != nil {
			return err
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("apply rules of table %s: %w", n.tableName(), err)
	}
	if !n.cfg.Subnet6.IsValid() { // it may have been there before
		return removeTable(n.tableOf(layer6))
	}
	return nil
}

// addTable adds the table of one version of IP in the place of the one that is there.
func (n *Network) addTable(c *nftables.Conn, l layer) error {
	table := n.tableOf(l)
	c.AddTable(table) // so that the deletion finds one
	c.DelTable(table)
	table = c.AddTable(table)
	set, err := n.addSubnetSet(c, table, l)
	if err != nil {
		return fmt.Errorf("make set of subnets: %w", err)
	}
	var maps map[string]*nftables.Set
	if l.family == nftables.TableFamilyIPv4 {
		if maps, err = n.addPortMaps(c, table); err != nil {
			return fmt.Errorf("make maps of ports: %w", err)
		}
	}
	if err := n.addGroups(c, table, l); err != nil {
		return fmt.Errorf("make network groups: %w", err)
	}
	addChains(c, table, n.chains(l, set, maps))
	return nil
}

func addChains(c *nftables.Conn, table *nftables.Table, chains []chain) {
	for _, chain := range chains {
		made := c.AddChain(&nftables.Chain{Name: chain.name, Table: table, Type: chain.kind, Hooknum: chain.hook, Priority: chain.priority})
		addRules(c, made, chain.rules)
	}
}

func addRules(c *nftables.Conn, chain *nftables.Chain, rules [][]expr.Any) {
	for _, exprs := range rules {
		c.AddRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: exprs})
	}
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

func (n *Network) addSubnetSet(c *nftables.Conn, table *nftables.Table, l layer) (*nftables.Set, error) {
	set := &nftables.Set{Table: table, Name: setSandboxes, KeyType: l.key, Interval: true}
	subnet := n.subnetOf(l)
	first, end := subnet.Masked().Addr(), lastOf(subnet).Next()
	if !end.IsValid() {
		return nil, errors.New("the subnet reaches the end of all addresses")
	}
	return set, c.AddSet(set, []nftables.SetElement{
		{Key: first.AsSlice()}, {Key: end.AsSlice(), IntervalEnd: true},
	})
}

// removeRules removes all tables; one that is not there is none to remove.
func (n *Network) removeRules() error {
	return errors.Join(removeTable(n.table()), removeTable(n.tableOf(layer6)), removeTable(n.wireTable()))
}

func removeTable(table *nftables.Table) error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	c.DelTable(table)
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) && !noFamily(err) {
		return fmt.Errorf("remove table %s: %w", tableText(table), err)
	}
	return nil
}

// noFamily says that the kernel has no nftables for a family.
func noFamily(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
}

// lastOf is the last address of a subnet.
func lastOf(subnet netip.Prefix) netip.Addr {
	b := subnet.Masked().Addr().AsSlice()
	for bit := subnet.Bits(); bit < 8*len(b); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}
