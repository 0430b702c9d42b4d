package machine

import (
	"flag"
	"fmt"
	"slices"
	"testing"
)

// How far to search. The race detector finds nothing in a search, and makes it many
// times slower: plans of four are searched without it.
var far = flag.String("search", "three", `how far to search: plans of up to "three" components, of up to "four", or "everything"`)

// sweep is the search through plans of one size: all of them, or one part of so many.
type sweep struct {
	size, kinds int
	failFast    bool
	part, of    int
	// agree asks the machine itself for each step of each state.
	agree bool
	// plans is how many there are, and states how many are found at least.
	plans, states int
}

func (s sweep) String() string {
	text := fmt.Sprintf("%d components", s.size)
	if s.kinds == orderOnly {
		text += ", both kinds of edges"
	}
	if s.failFast {
		text += ", fail fast"
	}
	if s.of > 1 {
		text += fmt.Sprintf(", part %d of %d", s.part+1, s.of)
	}
	return text
}

// TestStep_EveryReachableState visits every state that all plans of up to four
// components can come to, by every event of every component in every order, with
// timers that end at any moment: at one of their own, at that of an event, and
// several at once. It checks each step and each state on the way: no component is
// started without what it needs, nor stopped before what comes after it; each that is
// not where it should be is on its way or has a reason to wait; and from each state
// good will leads to all ready, or, once all is to stop, every answer and end leads
// towards its end.
//
// Graphs are not taken for the same when they differ only in names, as the order of
// the stop differs. Of nodes that cannot be told apart (TestClasses_CannotBeToldApart)
// one is taken for all; what holds for one component in any environment is checked
// there (TestStep_OneComponentInAnyEnvironment). That the tables searched are the
// machine is checked too: with up to two components at every step of every state,
// with more by chance (TestStep_AgreesWithTheTables).
//
// By itself it searches plans of up to three components; with -search four, as make
// test has it, also those of four that have no order-only edges; with -search
// everything, as make explore has it, those too, and those of four that fail fast, and
// it asks the machine for each step of three.
func TestStep_EveryReachableState(t *testing.T) {
	if !slices.Contains([]string{"three", "four", "everything"}, *far) {
		t.Fatalf("got -search %s, want three, four or everything", *far)
	}
	for _, s := range sweeps(*far) {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			s.run(t)
		})
	}
}

func sweeps(far string) []sweep {
	all := far == "everything"
	out := []sweep{
		{size: 1, kinds: orderOnly, agree: true, plans: 1, states: 16},
		{size: 1, kinds: orderOnly, failFast: true, agree: true, plans: 1, states: 26},
		{size: 2, kinds: orderOnly, agree: true, plans: 3, states: 996},
		{size: 2, kinds: orderOnly, failFast: true, agree: true, plans: 3, states: 1_367},
		{size: 3, kinds: orderOnly, agree: all, plans: 27, states: 200_722},
		{size: 3, kinds: orderOnly, failFast: true, agree: all, plans: 27, states: 224_974},
	}
	switch far {
	case "four":
		out = append(out,
			sweep{size: 4, kinds: need, part: 0, of: 2, plans: 32, states: 5_516_503},
			sweep{size: 4, kinds: need, part: 1, of: 2, plans: 32, states: 6_717_752})
	case "everything":
		for part := range 2 {
			out = append(out,
				sweep{size: 4, kinds: orderOnly, part: part, of: 2, plans: 365 - part, states: 20_000_000},
				sweep{size: 4, kinds: orderOnly, failFast: true, part: part, of: 2, plans: 365 - part, states: 20_000_000})
		}
	}
	return out
}

// run searches each plan.
func (s sweep) run(t *testing.T) {
	plans, states, steps := 0, 0, 0
	for n, sh := range plansOf(s.size, s.kinds) {
		if s.of > 1 && n%s.of != s.part {
			continue
		}
		p, err := search(sh, s.failFast, s.agree)
		if err != nil {
			t.Fatalf("%s: %v", sh, err)
		}
		plans, states, steps = plans+1, states+p.states, steps+p.steps
	}
	t.Logf("%d plans, %d states, %d steps", plans, states, steps)
	if plans != s.plans || states < s.states {
		t.Errorf("got %d plans and %d states, want %d and at least %d", plans, states, s.plans, s.states)
	}
}

// search goes through one plan, and once more to tell how it came to a fault.
func search(s shape, failFast, agree bool) (*product, error) {
	p, err := newProduct(s, failFast)
	if err != nil {
		return nil, err
	}
	if agree {
		p.each = p.agree
	}
	if err = p.run(); err == nil {
		return p, nil
	}
	told, newErr := newProduct(s, failFast)
	if newErr != nil {
		return nil, newErr
	}
	told.each, told.from = p.each, map[uint64]uint64{}
	if toldErr := told.run(); toldErr != nil {
		err = toldErr
	}
	return nil, err
}
