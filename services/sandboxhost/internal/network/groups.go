package network

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/nft"
)

// GroupRule lets the members of a group open connections to those of another.
type GroupRule struct {
	// From and To are names of groups, or AnyGroup.
	From, To string
	// Ports of the sandboxes in To. None means everything.
	Ports []PortRange
}

// DefaultGroup has the sandboxes that name no group.
const DefaultGroup = "default"

// AnyGroup stands for every group in a GroupRule.
const AnyGroup = "*"

// reasonNoGroups is why a sandbox with a group cannot be on a node.
const reasonNoGroups = "NETWORK_GROUPS_UNSUPPORTED"

// Names in the table. Behind the prefixes comes the name of a group.
const (
	mapSenders    = "senders" // address of a member: chain of its group
	prefixMembers = "members" // addresses of the members
	prefixFrom    = "from"    // what they reach
	chainApart    = "apart"   // refuses
)

func ofGroup(prefix, group string) string {
	return prefix + "_" + strings.ReplaceAll(group, "-", "_") // a name of a group has no underscore
}

// member is a sandbox that may send.
type member struct {
	uid         id.Sandbox
	group, port string // port is the host's end of its interface
	addr, six   netip.Addr
}

// at is its address in a version of IP; the zero Addr if it has none.
func (m member) at(l layer) netip.Addr {
	if l.family == nftables.TableFamilyIPv6 {
		return m.six
	}
	return m.addr
}

// standing are the groups that are in the table without any member.
func (p Policy) standing() map[string]bool {
	all := map[string]bool{DefaultGroup: true}
	for _, r := range p.Groups {
		all[r.From], all[r.To] = true, true
	}
	delete(all, AnyGroup)
	return all
}

// members are the sandboxes that have joined, in order.
func (n *Network) members() []member {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]member, 0, len(n.joined))
	for uid, group := range n.joined {
		if addr, ok := n.byUID[uid]; ok {
			all = append(all, n.memberOf(uid, group, addr))
		}
	}
	slices.SortFunc(all, func(a, b member) int { return a.addr.Compare(b.addr) })
	return all
}

func (n *Network) memberOf(uid id.Sandbox, group string, addr netip.Addr) member {
	return member{uid: uid, group: group, port: hostInterface(uid), addr: addr, six: n.six(addr)}
}

// mayJoin says whether this node can keep a group apart.
func (n *Network) mayJoin(uid id.Sandbox, group string) error {
	n.mu.Lock()
	missing := n.noWire
	n.mu.Unlock()
	if group == DefaultGroup || missing == "" {
		return nil
	}
	return fault.WithReason(fault.New(fault.Denied,
		"put sandbox %s into network group %s: %s; leave the group out, or choose another node", uid, group, missing), reasonNoGroups)
}

// join lets a sandbox send, and be reached as one of its group. Safe to repeat.
func (n *Network) join(uid id.Sandbox, group string) error {
	n.writing.Lock()
	defer n.writing.Unlock()
	n.mu.Lock()
	was, again := n.joined[uid]
	n.joined[uid] = group
	m := n.memberOf(uid, group, n.byUID[uid])
	_, stands := n.made[nftables.TableFamilyIPv4][ofGroup(prefixFrom, group)]
	n.mu.Unlock()
	var err error
	if again && was != group {
		err = n.writeTableLocked()
	} else {
		err = n.enter(m, !stands)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) { // somebody took the tables away, or changed them
		err = n.writeTableLocked()
	}
	if err != nil {
		return fmt.Errorf("join sandbox %s to its network group: %w", uid, err)
	}
	return nil
}

// enter adds a member to all tables, and its group to those of rules if it is the first.
func (n *Network) enter(m member, first bool) error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	for _, l := range n.layers() {
		if first {
			if err := n.addGroup(c, l, m.group); err != nil {
				return err
			}
		}
		if err := n.eachElement(l, m, c.SetAddElements); err != nil {
			return err
		}
	}
	if err := c.Flush(); err != nil {
		return err
	}
	if first {
		if err := n.noteChains(ofGroup(prefixFrom, m.group)); err != nil {
			return err
		}
	}
	return n.changeWire(m, (*nftables.Conn).SetAddElements)
}

// leave is the opposite of join. Safe to repeat.
func (n *Network) leave(uid id.Sandbox) error {
	n.writing.Lock()
	defer n.writing.Unlock()
	n.mu.Lock()
	group, was := n.joined[uid]
	m := n.memberOf(uid, group, n.byUID[uid])
	delete(n.joined, uid)
	last := !n.cfg.Policy.standing()[group] && !slices.Contains(slices.Collect(maps.Values(n.joined)), group)
	n.mu.Unlock()
	if !was {
		return nil
	}
	err := n.exit(m, last)
	if errors.Is(err, unix.ENOENT) { // not all was there: what is left is written as a whole
		err = n.writeTableLocked()
	}
	if err != nil {
		n.mu.Lock()
		n.joined[uid] = group
		n.mu.Unlock()
		return fmt.Errorf("take sandbox %s out of its network group: %w", uid, err)
	}
	return nil
}

// exit takes a member out of all tables, and its group if it was the last.
func (n *Network) exit(m member, last bool) error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	chain := ofGroup(prefixFrom, m.group)
	for _, l := range n.layers() {
		if err := n.eachElement(l, m, c.SetDeleteElements); err != nil {
			return err
		}
		if last {
			table := n.tableOf(l)
			c.FlushChain(&nftables.Chain{Table: table, Name: chain})
			c.DelChain(&nftables.Chain{Table: table, Name: chain})
			c.DelSet(l.memberSet(table, m.group))
		}
	}
	if err := c.Flush(); err != nil {
		return err
	}
	if last {
		n.mu.Lock()
		for _, l := range n.layers() {
			delete(n.made[l.family], chain)
		}
		n.mu.Unlock()
	}
	return n.changeWire(m, (*nftables.Conn).SetDeleteElements)
}

// eachElement changes what a member is in a table of rules.
func (n *Network) eachElement(l layer, m member, change func(*nftables.Set, []nftables.SetElement) error) error {
	table := n.tableOf(l)
	if !m.at(l).IsValid() { // of another subnet than the node has now
		return nil
	}
	var err error
	if l.family == nftables.TableFamilyIPv4 {
		err = change(selfSet(table), []nftables.SetElement{m.self()})
	}
	return errors.Join(err,
		change(l.memberSet(table, m.group), []nftables.SetElement{{Key: m.at(l).AsSlice()}}),
		change(l.senderMap(table), []nftables.SetElement{m.sender(l)}))
}

func (m member) sender(l layer) nftables.SetElement {
	return nftables.SetElement{Key: m.at(l).AsSlice(), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: ofGroup(prefixFrom, m.group)}}
}

func (l layer) memberSet(table *nftables.Table, group string) *nftables.Set {
	return &nftables.Set{Table: table, Name: ofGroup(prefixMembers, group), KeyType: l.key}
}

func (l layer) senderMap(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: mapSenders, IsMap: true, KeyType: l.key, DataType: nftables.TypeVerdict}
}

// addGroup adds what a group has in a table of rules.
func (n *Network) addGroup(c *nftables.Conn, l layer, group string) error {
	table := n.tableOf(l)
	if err := c.AddSet(l.memberSet(table, group), nil); err != nil {
		return fmt.Errorf("make set of members: %w", err)
	}
	addRules(c, c.AddChain(&nftables.Chain{Table: table, Name: ofGroup(prefixFrom, group)}), n.groupRules(l, group))
	return nil
}

// addGroups adds all groups with their members, and the chains that lead to them.
func (n *Network) addGroups(c *nftables.Conn, table *nftables.Table, l layer) error {
	if err := c.AddSet(l.senderMap(table), nil); err != nil {
		return fmt.Errorf("make map of senders: %w", err)
	}
	groups, members := n.cfg.Policy.standing(), map[string][]nftables.SetElement{}
	var senders, selves []nftables.SetElement
	for _, m := range n.members() {
		groups[m.group] = true
		if m.at(l).IsValid() {
			members[m.group] = append(members[m.group], nftables.SetElement{Key: m.at(l).AsSlice()})
			senders, selves = append(senders, m.sender(l)), append(selves, m.self())
		}
	}
	if l.family == nftables.TableFamilyIPv4 {
		if err := errors.Join(c.AddSet(selfSet(table), nil), nft.Send(selfSet(table), selves, c.SetAddElements)); err != nil {
			return fmt.Errorf("make set of those who reach themselves: %w", err)
		}
	}
	addRules(c, c.AddChain(&nftables.Chain{Table: table, Name: chainApart}), keepApart(l))
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		if err := c.AddSet(l.memberSet(table, group), nil); err != nil { // all before the rules, which name each other's
			return fmt.Errorf("make set of members: %w", err)
		}
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		addRules(c, c.AddChain(&nftables.Chain{Table: table, Name: ofGroup(prefixFrom, group)}), n.groupRules(l, group))
		if err := nft.Send(l.memberSet(table, group), members[group], c.SetAddElements); err != nil {
			return err
		}
	}
	return nft.Send(l.senderMap(table), senders, c.SetAddElements)
}

// groupRules are what the members of a group reach of other sandboxes.
func (n *Network) groupRules(l layer, group string) [][]expr.Any {
	pass := verdict(expr.VerdictReturn)
	rules := [][]expr.Any{join(l.inGroup(group), pass)}
	for _, r := range n.cfg.Policy.Groups {
		if r.From != group && r.From != AnyGroup {
			continue
		}
		var to []expr.Any
		if r.To != AnyGroup {
			to = l.inGroup(r.To)
		}
		if len(r.Ports) == 0 {
			rules = append(rules, join(to, pass))
		}
		for _, p := range r.Ports {
			rules = append(rules, join(to, protocol(protocolNumbers[p.Protocol]), ports(p.First, p.Last), pass))
		}
	}
	return append(rules, goTo(chainApart))
}

// keepApart refuses what one group sends to another. A connection that was led here is refused
// by a message: with br_netfilter a reset would come from the sandbox behind it, whom the client
// does not know (nf_send_reset of the kernel sends it past the translation of addresses).
func keepApart(l layer) [][]expr.Any {
	return append([][]expr.Any{join(led(expr.CmpOpNeq), []expr.Any{&expr.Counter{}}, l.prohibit())}, l.refuse(nil)...)
}

// inGroup demands that the destination is a member of a group.
func (l layer) inGroup(group string) []expr.Any {
	return l.to(&nftables.Set{Name: ofGroup(prefixMembers, group)}, false)
}

// sortOut sends new connections between sandboxes to the chain of the sender's group.
func (n *Network) sortOut(l layer) []expr.Any {
	return join(n.fromBridge(), n.over(expr.MetaKeyOIFNAME, expr.CmpOpEq), unknown(), []expr.Any{
		l.load(l.source),
		&expr.Lookup{SourceRegister: 1, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: mapSenders},
	})
}

// aliasOfGroup begins the alias of the host's end of an interface whose sandbox has named a
// group: so it is known for as long as that is there, whatever becomes of ledgers and tables.
const aliasOfGroup = "staddle group "

// noteGroup writes the group down at the interface.
func noteGroup(link netlink.Link, group string) error {
	if group == DefaultGroup {
		return nil
	}
	if err := netlink.LinkSetAlias(link, aliasOfGroup+group); err != nil {
		return fmt.Errorf("note group at interface %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// adoptGroups finds the groups of sandboxes that have an address.
func (n *Network) adoptGroups(want found) error {
	links, err := listLinks()
	if err != nil {
		return err
	}
	noted := map[string]string{}
	for _, l := range links {
		if group, ok := strings.CutPrefix(l.Attrs().Alias, aliasOfGroup); ok {
			noted[l.Attrs().Name] = group
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.joined = map[id.Sandbox]string{}
	for uid := range want {
		n.joined[uid] = cmp.Or(noted[hostInterface(uid)], DefaultGroup)
	}
	return nil
}
