package machine

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// stops is the event that is about no component.
const stops = -1

// expected is where the tables say that a step leads, component by component: the
// nodes of one component, the codes of the search, and what is to be done.
type expected struct {
	nodes [maxSize]int32
	codes codes
	acts  [maxSize]acts
}

// expect follows a step through the tables of one component. nodes are where the
// components are; input is what happens to who, with the mask of whom it says that it
// waits for, or stops.
func (p *product) expect(nodes [maxSize]int32, c codes, who, input int, said, due uint8) (expected, error) {
	m := p.mode(c)
	if input == stops {
		m, who = halt, -1
	}
	var x expected
	var mids [maxSize]int32 // nodes
	var midCodes codes
	order := []int{0, 1, 2, 3}[:p.size]
	if who >= 0 { // its failure may stop the others
		order[0], order[who] = order[who], order[0]
	}
	for _, i := range order {
		t, in, mask := p.tables[i], nothing, p.code(c, i).mask
		if i == who {
			in, mask = input, said
		}
		e := t.classes.happen[nodes[i]][t.classes.way(m, in, due>>i&1 != 0)]
		if e.to < 0 {
			return x, fmt.Errorf("%s cannot happen to %s", t.classes.inputs[in].name, t.classes.rest[nodes[i]])
		}
		if e.failed {
			m = halt
		}
		mids[i], midCodes[i], x.acts[i] = e.to, t.mid(t.classes.ofMid[e.to], mask), e.acts
	}
	all := p.all(midCodes)
	for i := range p.size {
		t := p.tables[i]
		v := p.views[i][all*8+int(t.mids[midCodes[i]].mask)]
		e := t.classes.goOn[mids[i]][v]
		if e.to < 0 {
			return x, fmt.Errorf("%s sees %+v, which it cannot", t.classes.mids[mids[i]], views()[v])
		}
		x.nodes[i], x.codes[i] = e.to, t.mids[midCodes[i]].goOn[v].code
		x.acts[i] |= e.acts
	}
	return x, nil
}

// compare checks that the machine went where the tables say.
func (p *product) compare(x expected, t Table, actions []Action) error {
	var got [maxSize]acts
	for _, a := range actions {
		got[slices.IndexFunc(p.plan.Components, func(c Component) bool { return c.Name == a.Name })] |= 1 << a.Kind
	}
	over, booted := true, true
	for i, c := range p.plan.Components {
		l := p.tables[i].classes
		want := l.rest[x.nodes[i]]
		m := *t.Members[c.Name]
		m.waitingFor = slices.DeleteFunc(slices.Clone(m.waitingFor), func(name string) bool { return !slices.Contains(p.names(p.tables[i].masks), name) })
		is := l.normal(node{m: m, g: want.g, stopping: t.Stopping})
		over, booted = over && !m.alive(), booted && m.wasReady
		switch one := p.code(x.codes, i); {
		case is.key() != want.key():
			return fmt.Errorf("%s is %s, want %s", c.Name, is, want)
		case l.of[x.nodes[i]] != one.class:
			return fmt.Errorf("%s is of class %d, want %d", c.Name, l.of[x.nodes[i]], one.class)
		case one.mask != 0 && !reflect.DeepEqual(p.names(one.mask), slices.Sorted(slices.Values(is.m.waitingFor))):
			return fmt.Errorf("%s waits for %v, want %v", c.Name, is.m.waitingFor, p.names(one.mask))
		case got[i] != x.acts[i]:
			return fmt.Errorf("got actions %b of %s, want %b", got[i], c.Name, x.acts[i])
		}
	}
	if t.Over != (t.Stopping && over) || booted && !t.Booted {
		return fmt.Errorf("got over %v and booted %v of %+v", t.Over, t.Booted, x.codes)
	}
	if failed := t.Failure != ""; failed && (!p.plan.FailFast || !t.Stopping) {
		return fmt.Errorf("got failure %q, want none", t.Failure)
	}
	return nil
}

// agree checks that the machine itself does in a state what the tables say, whatever
// happens.
func (p *product) agree(c codes) error {
	running, m := p.running(c), p.mode(c)
	due := uint8(0)
	for {
		if m != halt {
			if err := p.agreeOn(c, 0, stops, 0, due); err != nil {
				return err
			}
		}
		for i := range p.size {
			for _, w := range p.tables[i].ways[m][c[i]] {
				if w.mid[due>>i&1] < 0 || p.tables[i].classes.inputs[w.input].ripen {
					continue
				}
				if err := p.agreeOn(c, i, w.input, w.mask, due); err != nil {
					return fmt.Errorf("%s: %w", p.tell(&move{who: i, input: w.input, due: due}), err)
				}
			}
		}
		if due = (due - running) & running; due == 0 { // the next subset
			return nil
		}
	}
}

func (p *product) agreeOn(c codes, who, input int, said, due uint8) error {
	t := Table{Members: map[string]*Member{}}
	var nodes [maxSize]int32
	booted := true
	for i, component := range p.plan.Components {
		one := p.tables[i].classes
		nodes[i] = one.nodes[p.code(c, i).class]
		n := one.rest[nodes[i]]
		m := n.m
		if mask := p.code(c, i).mask; n.waits() && mask != 0 {
			m.waitingFor = p.names(mask)
		} else if len(m.waitingFor) > 0 { // and it does not matter for whom: no clock runs while all are stopped
			m.waitingFor = p.names(p.tables[i].masks)
		}
		if due>>i&1 != 0 {
			m.expire()
		}
		t.Members[component.Name], t.Stopping = &m, n.stopping
		booted = booted && m.wasReady
	}
	t.Booted = booted
	e := Event{Kind: StopAsked}
	if input != stops {
		e = p.tables[who].classes.inputs[input].event
		e.Name = p.plan.Components[who].Name
		if len(e.WaitingFor) > 0 {
			e.WaitingFor = p.names(said)
		}
	}
	e.At = epoch
	x, err := p.expect(nodes, c, who, input, said, due)
	if err != nil {
		return err
	}
	after, actions := p.plan.Step(t, e)
	return p.compare(x, after, actions)
}

// walker lets a machine live through chance, in real durations, and follows it in the
// tables.
type walker struct {
	*product
	rng     *rand.Rand
	table   Table
	nodes   [maxSize]int32
	codes   codes
	now     time.Time
	started [maxSize]time.Time
	pids    [maxSize]int
	lastPID int
}

func (w *walker) node(i int) node { return w.tables[i].classes.rest[w.nodes[i]] }

// begin is the first step of all.
func (w *walker) begin() error {
	w.now, w.codes, w.nodes = epoch, codes{}, [maxSize]int32{}
	w.table = w.plan.Start(w.now)
	return w.step(0, nothing, Event{Kind: Tick}, 0)
}

// wander has one thing happen.
func (w *walker) wander() error {
	deadline := w.table.Deadline()
	switch n := w.rng.IntN(100); {
	case n < 30 && !deadline.IsZero():
		w.now = deadline
	case n < 35:
		w.now = w.now.Add(time.Duration(w.rng.IntN(90_000)) * time.Millisecond)
	default:
		w.now = w.now.Add(time.Duration(w.rng.IntN(50)) * time.Millisecond)
	}
	if err := w.ripen(); err != nil {
		return err
	}
	if w.rng.IntN(300) == 0 && !w.table.Stopping {
		return w.step(0, stops, Event{Kind: StopAsked}, 0)
	}
	i := w.rng.IntN(w.size)
	in := w.rng.IntN(len(w.tables[i].classes.inputs))
	if w.rng.IntN(3) == 0 { // or nothing would ever be ready
		in = []int{isMade, serves}[w.rng.IntN(2)]
	}
	input := w.tables[i].classes.inputs[in]
	if input.ripen || !input.needs(w.node(i).g) || !w.role(i).meets(input) {
		return w.step(0, nothing, Event{Kind: Tick}, 0)
	}
	e, said := w.event(i, input)
	if e.Kind == NotServing && len(input.event.WaitingFor) > 0 && said == 0 { // it waits for nobody that counts
		for n, other := range w.tables[i].classes.inputs {
			if other.event.Kind == NotServing && !other.stray && len(other.event.WaitingFor) == 0 && other.event.External == e.External {
				in = n
			}
		}
	}
	return w.step(i, in, e, said)
}

func (w *walker) role(i int) role { return w.tables[i].classes.role }

// event fills in an input what this life has in place of the table's.
func (w *walker) event(i int, in input) (Event, uint8) {
	e, said := in.event, w.code(w.codes, i).mask
	e.Name = w.plan.Components[i].Name
	switch {
	case e.Kind == Spawned && !in.stray:
		w.lastPID++
		w.pids[i] = w.lastPID
		e.PID = w.pids[i]
	case e.PID == ownPID:
		e.PID = w.pids[i]
	case e.PID == otherPID:
		e.PID = -1
	}
	if e.Kind == NotServing && !in.stray {
		said = 0
	}
	if len(e.WaitingFor) > 0 {
		e.WaitingFor = nil
		for j, name := range []string{"a", "b", "c", "d", "nobody"} {
			if w.rng.IntN(2) == 0 {
				e.WaitingFor = append(e.WaitingFor, name)
				if j < i {
					said |= 1 << j
				}
			}
		}
	}
	return e, said
}

// ripen notes who has run for the stable time.
func (w *walker) ripen() error {
	for i := range w.size {
		one := w.tables[i].classes
		if n := w.node(i); !n.g.live || n.g.stable || w.now.Sub(w.started[i]) < w.plan.Backoff.Stable {
			continue
		}
		in := slices.IndexFunc(one.inputs, func(in input) bool { return in.ripen })
		x, err := w.expect(w.nodes, w.codes, i, in, w.code(w.codes, i).mask, 0)
		if err != nil {
			return err
		}
		if x.codes != w.codes {
			return fmt.Errorf("that %s is stable changes %s", w.plan.Components[i].Name, w.describe(w.codes))
		}
		w.nodes = x.nodes
	}
	return nil
}

// step has the machine and the tables do the same.
func (w *walker) step(who, input int, e Event, said uint8) error {
	due := uint8(0)
	for i, c := range w.plan.Components {
		at := w.table.Members[c.Name].due()
		if at.IsZero() == w.code(w.codes, i).timer && !w.table.Stopping {
			return fmt.Errorf("timer of %s runs: %v, want %v", c.Name, !at.IsZero(), w.code(w.codes, i).timer)
		}
		if !at.IsZero() && !at.After(w.now) {
			due |= 1 << i
		}
	}
	e.At = w.now
	if input == nothing {
		said = w.code(w.codes, who).mask
	}
	x, err := w.expect(w.nodes, w.codes, who, input, said, due)
	if err != nil {
		return err
	}
	var actions []Action
	w.table, actions = w.plan.Step(w.table, e)
	w.nodes, w.codes = x.nodes, x.codes
	if e.Kind == Spawned && e.PID == w.pids[who] {
		w.started[who] = w.now
	}
	return w.compare(x, w.table, actions)
}

// TestStep_AgreesWithTheTables has the machine go by chance through graphs with three
// and four components, in real durations with whatever falls together, and finds it
// at each step where the tables of the search say; and asks it for every step of
// every state of the graphs with up to two.
func TestStep_AgreesWithTheTables(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	steps := 0
	for size := 3; size <= maxSize; size++ {
		plans := plansOf(size, orderOnly)
		for range 40 {
			sh := plans[rng.IntN(len(plans))]
			p, err := newProduct(sh, rng.IntN(4) == 0)
			if err != nil {
				t.Fatal(err)
			}
			w := &walker{product: p, rng: rng}
			for range 5 {
				if err := w.begin(); err != nil {
					t.Fatalf("%s: %v", sh, err)
				}
				for n := 0; n < 500 && !w.table.Over; n++ {
					before := w.codes
					if err := w.wander(); err != nil {
						t.Fatalf("%s, fail fast %v: %v\nafter %s", sh, p.plan.FailFast, err, p.describe(before))
					}
					steps++
				}
			}
		}
	}
	t.Logf("%d steps by chance", steps)
}

// TestLook_SeesOnlyLooks shows that a component sees nothing of another but how it
// looks: in the search one member may stand for all that look so.
func TestLook_SeesOnlyLooks(t *testing.T) {
	l, err := explore()
	if err != nil {
		t.Fatal(err)
	}
	plans := []Plan{
		searchPlan(Component{Name: "a"}, Component{Name: "b"}),
		searchPlan(Component{Name: "a"}, Component{Name: "b", Needs: []string{"a"}}),
		searchPlan(Component{Name: "a"}, Component{Name: "b", OrderOnly: []string{"a"}}),
	}
	for _, plan := range plans {
		for own := range 2 {
			for _, waitingFor := range [][]string{nil, {"a"}, {"b"}, {"a", "b"}} {
				for _, other := range l.mids {
					me := Member{State: Starting, PID: ownPID, waitingFor: waitingFor}
					see := func(m *Member) view {
						members := map[string]*Member{plan.Components[own].Name: &me, plan.Components[1-own].Name: m}
						return plan.look(Table{Members: members}, own)
					}
					if got, want := see(&other.m), see(memberThat(other.looks())); got != want {
						t.Fatalf("sees %+v of %s, want %+v as of any that looks so", got, other, want)
					}
				}
			}
		}
	}
}
