package machine

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
)

// codes is a state of a whole graph: the code of each component, in order.
type codes [maxSize]int32

// product is the search through all states of one plan. Everything that happens in
// it is read from tables of one component and of its views.
type product struct {
	plan   Plan
	size   int
	tables [maxSize]*table
	// views of each component, by how all look, and by whom it says it waits for.
	views            [maxSize][]uint8
	needs, orderOnly [maxSize]uint8
	radix            [maxSize]uint64

	// coincide has timers end at the very moment of an event, or of another timer.
	coincide bool
	// each is called with each new state; nil for nobody.
	each func(codes) error

	seen, settled bitset
	from          map[uint64]uint64 // only if how a state was come to is to be told
	queue         []uint64
	states, steps int
}

type bitset []uint64

func (b bitset) has(i uint64) bool { return b[i/64]>>(i%64)&1 != 0 }
func (b bitset) set(i uint64)      { b[i/64] |= 1 << (i % 64) }

func newProduct(s shape, failFast bool) (*product, error) {
	p := &product{plan: searchPlan(s.components()...), size: s.size, coincide: true}
	p.plan.FailFast = failFast
	total := uint64(1)
	for i := range s.size {
		r := role{waits: i > 0, past: failFast}
		for other := range s.size {
			switch s.edge(i, other) {
			case need:
				p.needs[i] |= 1 << other
			case orderOnly:
				p.orderOnly[i] |= 1 << other
			}
			r.past = r.past || s.edge(other, i) == orderOnly
		}
		r.blockable = p.needs[i]|p.orderOnly[i] != 0
		var err error
		if p.tables[i], err = tableOf(place{r, i}); err != nil {
			return nil, err
		}
		p.radix[i] = total
		total *= uint64(len(p.tables[i].codes))
		p.views[i] = p.tabulate(i)
	}
	p.seen, p.settled = make(bitset, total/64+1), make(bitset, total/64+1)
	return p, nil
}

// tabulate asks the machine what one component sees, however all look and for
// whomever it says it waits.
func (p *product) tabulate(i int) []uint8 {
	total := 1
	for range p.size {
		total *= int(allLooks)
	}
	out := make([]uint8, total*8)
	for at := range total {
		t := Table{Members: map[string]*Member{}}
		rest := at
		for _, c := range p.plan.Components {
			t.Members[c.Name] = memberThat(looks(rest % int(allLooks)))
			rest /= int(allLooks)
		}
		own := t.Members[p.plan.Components[i].Name]
		for mask := range uint8(1) << i {
			own.waitingFor = p.names(mask)
			out[at*8+int(mask)] = uint8(p.plan.look(t, i).index())
		}
	}
	return out
}

// memberThat is a member that looks so.
func memberThat(l looks) *Member {
	switch l {
	case present:
		return &Member{State: Starting, PID: ownPID}
	case absentServed:
		return &Member{State: BackingOff, wasReady: true}
	case presentServed:
		return &Member{State: NotReady, PID: ownPID, wasReady: true}
	case readyServed:
		return &Member{State: Ready, PID: ownPID, wasReady: true}
	}
	return &Member{State: Waiting}
}

func (p *product) names(mask uint8) []string {
	var out []string
	for i, c := range p.plan.Components {
		if mask>>i&1 != 0 {
			out = append(out, c.Name)
		}
	}
	return out
}

func (p *product) number(c codes) (n uint64) {
	for i := range p.size {
		n += uint64(c[i]) * p.radix[i]
	}
	return n
}

func (p *product) codes(n uint64) (c codes) {
	for i := range p.size {
		c[i] = int32(n / p.radix[i] % uint64(len(p.tables[i].codes)))
	}
	return c
}

func (p *product) code(c codes, i int) *code { return &p.tables[i].codes[c[i]] }

// mode is what all components are told in a state.
func (p *product) mode(c codes) mode {
	if p.code(c, 0).stopping {
		return halt
	}
	booted := true
	for i := range p.size {
		booted = booted && p.code(c, i).served
	}
	if p.plan.FailFast && !booted {
		return armed
	}
	return calm
}

// run visits every state that the plan can come to, once, by everything that can
// happen in every order.
func (p *product) run() error {
	start := &move{event: "time passes"}
	if err := p.try(0, start, p.still(codes{}, p.mode(codes{}), 0)); err != nil {
		return err
	}
	for len(p.queue) > 0 {
		n := p.queue[len(p.queue)-1]
		p.queue = p.queue[:len(p.queue)-1]
		c := p.codes(n)
		if p.each != nil {
			if err := p.each(c); err != nil {
				return fmt.Errorf("%w\nin %s", err, p.describe(c))
			}
		}
		if err := errors.Join(p.checkState(c), p.settle(c), p.happenings(n, c)); err != nil {
			return fmt.Errorf("%w\nin %s%s", err, p.describe(c), p.story(n))
		}
	}
	return nil
}

func (p *product) visit(from, n uint64) {
	if p.seen.has(n) {
		return
	}
	p.seen.set(n)
	p.states++
	p.queue = append(p.queue, n)
	if p.from != nil {
		p.from[n] = from
	}
}

// running lists the components whose timer runs, one bit each.
func (p *product) running(c codes) (set uint8) {
	for i := range p.size {
		if p.code(c, i).timer {
			set |= 1 << i
		}
	}
	return set
}

// still is the middle of a step in which nothing happens but that timers end.
func (p *product) still(c codes, m mode, due uint8) (mids codes) {
	for i := range p.size {
		mids[i] = p.tables[i].ways[m][c[i]][nothing].mid[due>>i&1]
	}
	return mids
}

// happenings has everything happen in a state that can, and have timers end at the
// same moment in every combination.
func (p *product) happenings(n uint64, c codes) error {
	running, m := p.running(c), p.mode(c)
	due := uint8(0)
	for {
		if p.coincide || bits.OnesCount8(due) < 2 {
			if err := p.withDue(n, c, m, due); err != nil {
				return err
			}
		}
		if due = (due - running) & running; due == 0 { // the next subset
			return nil
		}
	}
}

// withDue has everything happen while the timers of some end.
func (p *product) withDue(n uint64, c codes, m mode, due uint8) error {
	s := move{from: c, event: "time passes", due: due, quiet: due == 0}
	halted := c
	if m != halt {
		halted = p.still(c, halt, due)
		stop := move{from: c, event: "everything is to stop", due: due}
		if err := p.try(n, &stop, halted); err != nil {
			return err
		}
	}
	idle := p.still(c, m, due)
	if err := p.try(n, &s, idle); err != nil {
		return err
	}
	if !p.coincide && due != 0 {
		return nil
	}
	base, all := s.to, p.all(idle)
	number := p.number(base)
	for i := range p.size {
		t, d := p.tables[i], due>>i&1
		own := t.mids[idle[i]].looks
		for k := range t.ways[m][c[i]][1:] {
			w := &t.ways[m][c[i]][k+1]
			if w.mid[d] < 0 {
				continue // it cannot be at that moment
			}
			if mid := &t.mids[w.mid[d]]; mid.looks == own && !w.fails[d] { // the others see no difference
				if on := mid.goOn[p.views[i][all*8+int(mid.mask)]]; on.code >= 0 && on.acts == 0 {
					p.steps++
					p.visit(n, number+uint64(on.code)*p.radix[i]-uint64(base[i])*p.radix[i])
					continue
				}
			}
			mids := idle
			if w.fails[d] {
				mids = halted
			}
			mids[i] = w.mid[d]
			if err := p.try(n, &move{from: c, due: due, who: i, input: w.input}, mids); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *product) try(n uint64, s *move, mids codes) error {
	if err := p.land(s, mids); err != nil {
		return fmt.Errorf("%s: %w", p.tell(s), err)
	}
	p.visit(n, p.number(s.to))
	return nil
}

// all is how all look in the middle of a step, as one number.
func (p *product) all(mids codes) (all int) {
	for i := p.size - 1; i >= 0; i-- {
		all = all*int(allLooks) + p.tables[i].mids[mids[i]].looks
	}
	return all
}

// land is the last turn of a step: each sees the others and goes on.
func (p *product) land(s *move, mids codes) error {
	p.steps++
	all := p.all(mids)
	var acted acts
	for i := range p.size {
		mid := &p.tables[i].mids[mids[i]]
		on := mid.goOn[p.views[i][all*8+int(mid.mask)]]
		if on.code < 0 {
			return fmt.Errorf("%s sees what it cannot", p.plan.Components[i].Name)
		}
		s.to[i], s.acts[i] = on.code, on.acts
		acted |= on.acts
	}
	if s.quiet && s.to != s.from {
		return errors.New("something happens by itself")
	}
	if acted == 0 {
		return nil
	}
	return p.checkActs(s, mids)
}

// describe lists the components and where they are.
func (p *product) describe(c codes) string {
	var words []string
	for i := range p.size {
		one := p.tables[i].classes
		words = append(words, fmt.Sprintf("%s%v for %v", p.plan.Components[i].Name, one.rest[one.nodes[p.code(c, i).class]], p.names(p.code(c, i).mask)))
	}
	return strings.Join(words, ", ")
}

// story lists what led to a state.
func (p *product) story(n uint64) string {
	if p.from == nil {
		return ""
	}
	var text strings.Builder
	for at := p.from[n]; at != 0; at = p.from[at] {
		fmt.Fprintf(&text, "\nafter %s", p.describe(p.codes(at)))
	}
	return text.String()
}
