package machine

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"testing"
)

// role is what a graph can make a component meet. What it cannot meet tells no
// nodes apart.
type role struct {
	blockable bool // it needs, or is ordered after, another
	waits     bool // another comes before it, which it may say it waits for
	past      bool // somebody looks at whether it was ever ready
}

func roles() []role {
	var out []role
	for i := range 8 {
		r := role{blockable: i&1 != 0, waits: i&2 != 0, past: i&4 != 0}
		if r.waits || !r.blockable { // who has somebody to need has somebody to wait for
			out = append(out, r)
		}
	}
	return out
}

// looks is what others see of a node: absent, present, or ready, and whether it ever
// was. The machine's views are made of it.
type looks int

const (
	absent looks = iota
	present
	absentServed
	presentServed
	readyServed
	allLooks
)

func (n node) looks() looks {
	switch {
	case n.m.State == Ready:
		return readyServed
	case n.m.alive() && n.m.wasReady:
		return presentServed
	case n.m.wasReady:
		return absentServed
	case n.m.alive():
		return present
	}
	return absent
}

// traits are what the search over graphs asks of a node at rest; it keeps apart what
// differs in them.
type traits struct {
	state                                              State
	live, asked, served, stopping, timer, waits, outer bool
}

func (n node) traits(r role) traits {
	if n.stopping { // nobody waits any more, and no word counts
		t := traits{live: n.g.live, asked: n.g.asked, stopping: true}
		if n.m.State == Stopping {
			t.state = Stopping
		}
		return t
	}
	starting := n.m.State == Starting
	return traits{
		n.m.State, n.g.live, n.g.asked, n.g.served && (r.past || r.blockable), n.stopping, !n.m.due().IsZero(),
		n.waits(), starting && n.m.external,
	}
}

// waits reports whether it matters for whom a component says it waits.
func (n node) waits() bool {
	return n.m.State == Starting && !n.m.external && len(n.m.waitingFor) > 0
}

// midTraits are the same for a node in the middle of a step.
type midTraits struct {
	looks           looks
	alive           bool
	waits, stopping bool
}

func (n node) midTraits(r role) midTraits {
	if n.stopping {
		return midTraits{alive: n.g.live || n.g.asked, stopping: true}
	}
	looks := n.looks()
	if !r.past && looks != readyServed { // nobody can see it
		looks = absent
		if n.m.alive() {
			looks = present
		}
	}
	return midTraits{looks, n.g.live || n.g.asked, n.waits(), n.stopping}
}

// classes put together what no event and no view can tell apart: a bisimulation of
// the nodes that one role can come to.
type classes struct {
	*lab
	role     role
	of       []int32 // of each node at rest; less than zero if the role cannot come to it
	ofMid    []int32
	nodes    []int32 // one of each class
	midNodes []int32
}

// meets reports whether the role can meet an input or a view.
func (r role) meets(in input) bool { return r.waits || len(in.event.WaitingFor) == 0 }
func (r role) sees(v view) bool    { return (r.waits || !v.heldUp) && (r.blockable || !v.blocked) }

// ways calls f for each way on from a node at rest that the role can meet.
func (l *lab) ways(n int32, r role, f func(way int, e edge)) {
	for m := range modes {
		for i, in := range l.inputs {
			for due := range 2 {
				way := l.way(m, i, due == 1)
				if e := l.happen[n][way]; e.to >= 0 && r.meets(in) {
					f(way, e)
				}
			}
		}
	}
}

// sights calls f for each way on from a node in the middle of a step.
func (l *lab) sights(n int32, r role, f func(view int, e edge)) {
	for i, v := range views() {
		if e := l.goOn[n][i]; e.to >= 0 && r.sees(v) {
			f(i, e)
		}
	}
}

// classify finds the largest bisimulation: it begins with what differs at sight, and
// takes apart what leads to different classes until nothing does any more.
func (l *lab) classify(r role) *classes {
	c := &classes{lab: l, role: r, of: filled(len(l.rest)), ofMid: filled(len(l.mids))}
	rest, mids := l.reach(r)
	c.nodes = split(c.of, rest, func(n int32) any { return l.rest[n].traits(r) })
	c.midNodes = split(c.ofMid, mids, func(n int32) any { return l.mids[n].midTraits(r) })
	for {
		before := len(c.nodes) + len(c.midNodes)
		restSign := signs(rest, c.of, func(n int32, f func(int, edge)) { l.ways(n, r, f) }, c.ofMid)
		midSign := signs(mids, c.ofMid, func(n int32, f func(int, edge)) { l.sights(n, r, f) }, c.of)
		c.nodes = split(c.of, rest, func(n int32) any { return restSign[n] })
		c.midNodes = split(c.ofMid, mids, func(n int32) any { return midSign[n] })
		if len(c.nodes)+len(c.midNodes) == before {
			return c
		}
	}
}

func filled(n int) []int32 { return slices.Repeat([]int32{-1}, n) }

// reach lists the nodes that a role can come to.
func (l *lab) reach(r role) (rest, mids []int32) {
	seen, seenMid := make([]bool, len(l.rest)), make([]bool, len(l.mids))
	rest, seen[0] = []int32{0}, true
	for i := 0; i < len(rest); i++ {
		l.ways(rest[i], r, func(_ int, first edge) {
			if seenMid[first.to] {
				return
			}
			seenMid[first.to] = true
			mids = append(mids, first.to)
			l.sights(first.to, r, func(_ int, second edge) {
				if !seen[second.to] {
					seen[second.to] = true
					rest = append(rest, second.to)
				}
			})
		})
	}
	return rest, mids
}

// signs writes down the class of each node and of all that it leads to.
func signs(nodes, own []int32, ways func(int32, func(int, edge)), of []int32) map[int32]string {
	out := make(map[int32]string, len(nodes))
	for _, n := range nodes {
		sign := binary.AppendVarint(nil, int64(own[n]))
		ways(n, func(way int, e edge) {
			sign = binary.AppendVarint(binary.AppendVarint(sign, int64(way)), int64(of[e.to]))
			sign = strconv.AppendBool(append(sign, byte(e.acts)), e.failed)
		})
		out[n] = string(sign)
	}
	return out
}

// split numbers the classes of nodes with the same sign, and returns one of each.
func split(of, nodes []int32, sign func(int32) any) []int32 {
	numbers := map[any]int32{}
	var first []int32
	for _, n := range nodes {
		s := sign(n)
		i, known := numbers[s]
		if !known {
			i = int32(len(first))
			numbers[s] = i
			first = append(first, n)
		}
		of[n] = i
	}
	return first
}

// check proves that it is a bisimulation: from two members of a class, every event
// leads to the same class with the same actions, or cannot happen to either; and the
// same for every view.
func (c *classes) check() error {
	for n, class := range c.of {
		if class < 0 {
			continue
		}
		one := c.nodes[class]
		if c.rest[n].traits(c.role) != c.rest[one].traits(c.role) {
			return fmt.Errorf("%s and %s look different", c.rest[n], c.rest[one])
		}
		for way, e := range c.happen[n] {
			if other := c.happen[one][way]; !c.role.meets(c.inputs[way/2%len(c.inputs)]) || alike(c.ofMid, e, other) {
				continue
			}
			return fmt.Errorf("%s and %s differ in %s", c.rest[n], c.rest[one], c.inputs[way/2%len(c.inputs)].name)
		}
	}
	for n, class := range c.ofMid {
		if class < 0 {
			continue
		}
		one := c.midNodes[class]
		if c.mids[n].midTraits(c.role) != c.mids[one].midTraits(c.role) {
			return fmt.Errorf("%s and %s look different", c.mids[n], c.mids[one])
		}
		for i, v := range views() {
			if c.role.sees(v) && !alike(c.of, c.goOn[n][i], c.goOn[one][i]) {
				return fmt.Errorf("%s and %s differ when they see %+v", c.mids[n], c.mids[one], v)
			}
		}
	}
	return nil
}

func alike(of []int32, a, b edge) bool {
	if a.to < 0 || b.to < 0 {
		return a.to < 0 && b.to < 0
	}
	return of[a.to] >= 0 && of[a.to] == of[b.to] && a.acts == b.acts && a.failed == b.failed
}

// TestClasses_CannotBeToldApart shows that the search over graphs may take one node
// for all of its class.
func TestClasses_CannotBeToldApart(t *testing.T) {
	l, err := explore()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range roles() {
		c := l.classify(r)
		if err := c.check(); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
		t.Logf("%+v: %d classes at rest, %d in the middle of a step", r, len(c.nodes), len(c.midNodes))
	}
}
