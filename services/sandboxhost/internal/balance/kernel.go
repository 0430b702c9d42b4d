package balance

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"staddle.internal/services/sandboxhost/internal/nft"
)

// table is the one of this node, named after the bridge as that of package network is.
func (b *Balancer) table() *nftables.Table {
	clean := strings.NewReplacer("-", "_", ".", "_", "@", "_").Replace(b.cfg.Bridge)
	return &nftables.Table{Name: "staddle_" + clean + "_services", Family: nftables.TableFamilyIPv4}
}

// apply makes a change in one transaction of the kernel. The order is that of what uses
// what: nothing is taken away while something refers to it.
func apply(table *nftables.Table, d change) error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	if d.whole {
		c.AddTable(table) // so that the deletion finds one
		c.DelTable(table)
		c.AddTable(table)
	}
	for _, name := range d.newSets {
		if err := c.AddSet(setOf(table, name), nil); err != nil {
			return fmt.Errorf("add map %s: %w", name, err)
		}
	}
	chains := map[string]*nftables.Chain{}
	for name, ch := range d.newChains {
		chains[name] = &nftables.Chain{Table: table, Name: name, Type: ch.kind, Hooknum: ch.hook, Priority: ch.priority}
		if !slices.Contains(d.emptied, name) {
			c.AddChain(chains[name])
		}
	}
	if err := send(c, table, d.take, c.SetDeleteElements); err != nil {
		return err
	}
	for _, name := range append(slices.Clone(d.emptied), d.oldChains...) {
		c.FlushChain(&nftables.Chain{Table: table, Name: name})
	}
	for name, ch := range d.newChains {
		for _, exprs := range ch.rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: chains[name], Exprs: exprs, UserData: comment(exprs)})
		}
	}
	if err := send(c, table, d.add, c.SetAddElements); err != nil {
		return err
	}
	for _, name := range d.oldChains {
		c.DelChain(&nftables.Chain{Table: table, Name: name})
	}
	for _, name := range d.oldSets {
		c.DelSet(setOf(table, name))
	}
	return c.Flush()
}

// send hands over elements, map by map.
func send(c *nftables.Conn, table *nftables.Table, all map[string]elements, how func(*nftables.Set, []nftables.SetElement) error) error {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := nft.Send(setOf(table, name), setElements(name, all[name]), how); err != nil {
			return err
		}
	}
	return nil
}

// read is what the kernel has; nothing if there is no such table.
func read(table *nftables.Table) (objects, error) {
	o := objects{chains: map[string]chain{}, sets: map[string]elements{}}
	c, err := nft.Open()
	if err != nil {
		return o, err
	}
	all, err := c.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return o, fmt.Errorf("list chains: %w", err)
	}
	for _, ch := range all {
		if ch.Table.Name != table.Name {
			continue
		}
		rules, err := c.GetRules(table, ch)
		if err != nil {
			return o, fmt.Errorf("list rules of chain %s: %w", ch.Name, err)
		}
		marks := make([]string, len(rules))
		for i, r := range rules {
			marks[i], _ = userdata.GetString(r.UserData, userdata.TypeComment)
		}
		o.chains[ch.Name] = chain{marks: strings.Join(marks, " ")}
	}
	if len(o.chains) == 0 {
		return o, nil
	}
	sets, err := c.GetSets(table)
	if err != nil {
		return o, fmt.Errorf("list maps of table %s: %w", table.Name, err)
	}
	for _, s := range sets {
		if o.sets[s.Name], err = listElements(c, s); err != nil {
			return o, err
		}
	}
	return o, nil
}

func listElements(c *nftables.Conn, s *nftables.Set) (elements, error) {
	all := elements{}
	if strings.HasPrefix(s.Name, prefixClients) {
		return all, nil
	}
	found, err := c.GetSetElements(s)
	if err != nil {
		return nil, fmt.Errorf("list map %s: %w", s.Name, err)
	}
	for _, e := range found {
		value := string(e.Val)
		if leads(s.Name) {
			value = nft.ChainOf(e.Val)
		}
		all[string(e.Key)] = value
	}
	return all, nil
}

// removeTable removes the table; one that is not there is none to remove.
func removeTable(table *nftables.Table) error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	c.DelTable(table)
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove table %s: %w", table.Name, err)
	}
	return nil
}
