package network

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"staddle.internal/services/sandboxhost/internal/nft"
)

// tableText is a table as people name it to nft.
func tableText(table *nftables.Table) string {
	switch table.Family {
	case nftables.TableFamilyIPv4:
		return table.Name
	case nftables.TableFamilyIPv6:
		return "ip6 " + table.Name
	}
	return "bridge " + table.Name
}

// listRules is what each chain of a table holds, in a form to be compared, and what the set of
// networks holds; nothing if the table is not there.
func (n *Network) listRules(table *nftables.Table) (map[string]string, error) {
	c, err := nft.Open()
	if err != nil {
		return nil, err
	}
	chains, err := c.ListChainsOfTableFamily(table.Family)
	if noFamily(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	all := map[string]string{}
	for _, chain := range chains {
		if chain.Table.Name != table.Name {
			continue
		}
		if all[chain.Name], err = sumOfChain(c, chain); err != nil {
			return nil, err
		}
	}
	if len(all) > 0 && isOfIP(table) {
		all["@"+setSandboxes], err = sumOfSet(c, &nftables.Set{Table: table, Name: setSandboxes})
	}
	return all, err
}

// isOfIP says whether a table is about what is routed.
func isOfIP(table *nftables.Table) bool {
	return table.Family == nftables.TableFamilyIPv4 || table.Family == nftables.TableFamilyIPv6
}

// noteChains remembers the chains of a name as they were made.
func (n *Network) noteChains(name string) error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	for _, l := range n.layers() {
		sum, err := sumOfChain(c, &nftables.Chain{Table: n.tableOf(l), Name: name})
		if err != nil {
			return err
		}
		n.mu.Lock()
		n.made[l.family][name] = sum
		n.mu.Unlock()
	}
	return nil
}

func sumOfChain(c *nftables.Conn, chain *nftables.Chain) (string, error) {
	rules, err := c.GetRules(chain.Table, chain)
	if err != nil {
		return "", fmt.Errorf("list rules of chain %s: %w", chain.Name, err)
	}
	sum := sha256.New()
	for _, rule := range rules {
		for _, e := range rule.Exprs {
			if _, counts := e.(*expr.Counter); counts { // its number changes by itself
				continue
			}
			raw, err := expr.Marshal(byte(chain.Table.Family), e)
			if err != nil {
				return "", fmt.Errorf("read rule of chain %s: %w", chain.Name, err)
			}
			fmt.Fprintf(sum, "%x\n", raw)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func sumOfSet(c *nftables.Conn, set *nftables.Set) (string, error) {
	elements, err := c.GetSetElements(set)
	if err != nil {
		return "", fmt.Errorf("list set %s: %w", set.Name, err)
	}
	sum := sha256.New()
	for _, e := range elements {
		fmt.Fprintf(sum, "%x %t\n", e.Key, e.IntervalEnd)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// membersChanged says whether other sandboxes are in the tables than should be.
func (n *Network) membersChanged() (string, error) {
	all, wire := n.members(), n.hasWire()
	for _, table := range n.tables() {
		if !wire && !isOfIP(table) {
			continue
		}
		have, err := listMembers(table)
		if err != nil {
			return "", err
		}
		if !slices.Equal(have, n.wantedMembers(table, all)) {
			return fmt.Sprintf("table %s should be about %d sandboxes, and is about others", tableText(table), len(all)), nil
		}
	}
	return "", nil
}

// listMembers lists what the sandboxes have in the sets and maps of a table, in order.
func listMembers(table *nftables.Table) ([]string, error) {
	c, err := nft.Open()
	if err != nil {
		return nil, err
	}
	sets, err := c.GetSets(table)
	if err != nil {
		return nil, fmt.Errorf("list sets of table %s: %w", tableText(table), err)
	}
	var all []string
	for _, set := range sets {
		if !isOfMembers(table, set.Name) {
			continue
		}
		elements, err := c.GetSetElements(set)
		if err != nil {
			return nil, fmt.Errorf("list set %s: %w", set.Name, err)
		}
		for _, e := range elements {
			all = append(all, elementText(set.Name, e.Key, nft.ChainOf(e.Val)))
		}
	}
	slices.Sort(all)
	return all, nil
}

// isOfMembers says whether a set or map changes with the sandboxes.
func isOfMembers(table *nftables.Table, name string) bool {
	if !isOfIP(table) {
		return true
	}
	return name == mapSenders || name == setSelves || strings.HasPrefix(name, prefixMembers+"_")
}

// wantedMembers is what listMembers should list.
func (n *Network) wantedMembers(table *nftables.Table, members []member) []string {
	var all []string
	for _, m := range members {
		if !isOfIP(table) {
			all = append(all, elementText(setPorts, m.onWire().Key, ""))
		}
		for _, l := range n.layers() {
			switch {
			case !m.at(l).IsValid():
			case !isOfIP(table):
				all = append(all, elementText(sourcesOf(l), m.sourceIn(l).Key, ""))
			case table.Family == l.family:
				if l.family == nftables.TableFamilyIPv4 {
					all = append(all, elementText(setSelves, m.self().Key, ""))
				}
				all = append(all, elementText(ofGroup(prefixMembers, m.group), m.at(l).AsSlice(), ""),
					elementText(mapSenders, m.at(l).AsSlice(), ofGroup(prefixFrom, m.group)))
			}
		}
	}
	slices.Sort(all)
	return all
}

func elementText(set string, key []byte, chain string) string {
	return fmt.Sprintf("%s %x %s", set, key, chain)
}
