package machine

import "sync"

// maxSize is the number of components of the largest graphs that are searched.
const maxSize = 4

// code is a class of nodes at rest, and for whom a member says that it waits, if
// that matters: one bit for each component that comes before.
type code struct {
	class int32
	mask  uint8
	traits
	weight int
}

// way is one of the different things that can come of an input, without and with the
// end of its own timer.
type way struct {
	input int
	mask  uint8 // for whom it says that it waits
	mid   [2]int32
	acts  [2]acts
	fails [2]bool
}

// midCode is the same for the middle of a step, with where each view leads.
type midCode struct {
	class int32
	mask  uint8
	looks int
	alive bool
	goOn  [8]struct {
		code int32
		acts acts
	}
}

// table is one component in one place of a graph, as numbers. It is made of classes,
// and those by the machine's own code.
type table struct {
	classes *classes
	masks   uint8 // one bit for each component before it
	codes   []code
	mids    []midCode
	ways    [modes][][]way // of each code; the first is nothing

	// good leads from each code to where it should, if nothing goes wrong.
	good [modes][]goodWay

	codeIndex, midIndex map[[2]int32]int32
}

// goodWay is the next good thing that can happen; mid is less than zero if none can.
type goodWay struct {
	mid   int32
	fails bool
}

// tables makes each table once.
var tables = struct {
	sync.Mutex
	lab  *lab
	made map[place]*table
}{made: map[place]*table{}}

// place of a component: what it can meet, and how many come before it.
type place struct {
	role
	before int
}

func tableOf(p place) (*table, error) {
	tables.Lock()
	defer tables.Unlock()
	if t := tables.made[p]; t != nil {
		return t, nil
	}
	if tables.lab == nil {
		l, err := explore()
		if err != nil {
			return nil, err
		}
		tables.lab = l
	}
	c := tables.lab.classify(p.role)
	if err := c.check(); err != nil {
		return nil, err
	}
	t := newTable(c, p.before)
	tables.made[p] = t
	return t, nil
}

func newTable(c *classes, before int) *table {
	t := &table{classes: c, masks: 1<<before - 1, codeIndex: map[[2]int32]int32{}, midIndex: map[[2]int32]int32{}}
	t.code(c.of[0], 0)
	for i := 0; i < len(t.codes); i++ {
		for m := range modes {
			t.ways[m] = append(t.ways[m], t.waysOf(t.codes[i], m))
			t.good[m] = append(t.good[m], t.goodOf(t.codes[i], m))
		}
	}
	return t
}

// code returns the number of a class and of whom it waits for.
func (t *table) code(class int32, mask uint8) int32 {
	n := t.classes.rest[t.classes.nodes[class]]
	if n.stopping || !n.waits() {
		mask = 0
	}
	k := [2]int32{class, int32(mask)}
	i, known := t.codeIndex[k]
	if !known {
		i = int32(len(t.codes))
		t.codeIndex[k] = i
		t.codes = append(t.codes, code{class, mask, n.traits(t.classes.role), n.weight()})
	}
	return i
}

func (t *table) mid(class int32, mask uint8) int32 {
	one := t.classes.midNodes[class]
	n := t.classes.mids[one]
	if n.stopping || !n.waits() {
		mask = 0
	}
	k := [2]int32{class, int32(mask)}
	if i, known := t.midIndex[k]; known {
		return i
	}
	i := int32(len(t.mids))
	t.midIndex[k] = i
	m := midCode{class: class, mask: mask, looks: int(n.looks()), alive: n.g.live || n.g.asked}
	for v := range m.goOn {
		m.goOn[v].code = -1
	}
	t.classes.sights(one, t.classes.role, func(v int, e edge) {
		m.goOn[v].code, m.goOn[v].acts = t.code(t.classes.of[e.to], mask), e.acts
	})
	t.mids = append(t.mids, m)
	return i
}

// waysOf lists what can come of a code; nothing first, and nothing twice.
func (t *table) waysOf(from code, m mode) []way {
	type outcome struct {
		mid   [2]int32
		acts  [2]acts
		fails [2]bool
	}
	seen := map[outcome]bool{}
	var out []way
	for i, in := range t.classes.inputs {
		if !t.classes.role.meets(in) {
			continue
		}
		for _, said := range t.masksOf(in, from.mask) {
			w := way{input: i, mask: said, mid: [2]int32{-1, -1}}
			for due := range 2 {
				e := t.classes.happen[t.classes.nodes[from.class]][t.classes.way(m, i, due == 1)]
				if e.to >= 0 {
					w.mid[due], w.acts[due], w.fails[due] = t.mid(t.classes.ofMid[e.to], said), e.acts, e.failed
				}
			}
			o := outcome{w.mid, w.acts, w.fails}
			if w.mid[0] >= 0 && !seen[o] {
				seen[o] = true
				out = append(out, w)
			}
		}
	}
	return out
}

// goodOf is what a good process and a good operator do.
func (t *table) goodOf(c code, m mode) goodWay {
	in, due := nothing, false
	switch {
	case c.asked:
		in = isMade
	case c.live && c.state == Stopping: // it may take a kill
		in = ends
	case c.live && (c.state == Starting || c.state == NotReady):
		in = serves
	case c.state == Stopped:
		in = isToStart
	case c.state == BackingOff:
		due = true
	default:
		return goodWay{mid: -1}
	}
	e := t.classes.happen[t.classes.nodes[c.class]][t.classes.way(m, in, due)]
	if e.to < 0 {
		return goodWay{mid: -1}
	}
	return goodWay{t.mid(t.classes.ofMid[e.to], c.mask), e.failed}
}

// masksOf lists for whom a component can say that it waits; for whom it waited stays
// while it says nothing new.
func (t *table) masksOf(in input, now uint8) []uint8 {
	if in.event.Kind != NotServing || in.stray {
		return []uint8{now}
	}
	if len(in.event.WaitingFor) == 0 {
		return []uint8{0}
	}
	var out []uint8
	for mask := uint8(1); mask <= t.masks; mask++ {
		out = append(out, mask)
	}
	return out
}
