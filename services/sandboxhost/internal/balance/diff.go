package balance

import (
	"fmt"
	"maps"
	"slices"
)

// change is what makes a table what it should be.
type change struct {
	whole      bool // the table is made anew
	newSets    []string
	oldSets    []string
	newChains  map[string]chain // with all their rules
	emptied    []string         // chains whose rules come anew
	oldChains  []string
	add, take  map[string]elements
	difference int // how many objects differ
}

// diff says what changes a table that has some objects into one with others.
func diff(have, want objects) change {
	c := change{newChains: map[string]chain{}, add: map[string]elements{}, take: map[string]elements{}}
	for name, w := range want.chains {
		h, ok := have.chains[name]
		if ok && h.marks == w.marks {
			continue
		}
		c.newChains[name] = w
		if ok {
			c.emptied = append(c.emptied, name)
		}
	}
	for name := range have.chains {
		if _, ok := want.chains[name]; !ok {
			c.oldChains = append(c.oldChains, name)
		}
	}
	for name, w := range want.sets {
		h, ok := have.sets[name]
		if !ok {
			c.newSets = append(c.newSets, name)
		}
		c.elements(name, h, w)
	}
	for name, h := range have.sets {
		if _, ok := want.sets[name]; ok {
			continue
		}
		c.oldSets = append(c.oldSets, name)
		if leads(name) {
			c.elements(name, h, nil) // its elements use chains
		}
	}
	c.difference = len(c.newChains) + len(c.oldChains) + len(c.newSets) + len(c.oldSets) + size(c.add) + size(c.take)
	return c
}

func (c *change) elements(name string, have, want elements) {
	add, take := elements{}, elements{}
	for key, value := range want {
		if old, ok := have[key]; !ok || old != value {
			add[key] = value
		}
	}
	for key, value := range have {
		if now, ok := want[key]; !ok || now != value {
			take[key] = value
		}
	}
	if len(add) > 0 {
		c.add[name] = add
	}
	if len(take) > 0 {
		c.take[name] = take
	}
}

func size(all map[string]elements) int {
	n := 0
	for _, some := range all {
		n += len(some)
	}
	return n
}

func (c change) empty() bool { return c.difference == 0 }

// String is how much differs.
func (c change) String() string { return fmt.Sprintf("%d chains, maps and elements", c.difference) }

// baseKept says whether the chains with a hook are there, and the map of services: else
// the table is made as a whole.
func (c change) baseKept(have objects) bool {
	for _, name := range slices.Sorted(maps.Keys(c.newChains)) {
		if c.newChains[name].kind != "" {
			return false
		}
	}
	_, ok := have.sets[mapServices]
	return ok
}
