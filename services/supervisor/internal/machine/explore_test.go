package machine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// world is what the machine acts on: which components have a process.
type world struct {
	table Table
	now   time.Time
	live  map[string]int  // process ids
	asked map[string]bool // to start, and not answered yet
	next  int
}

func (w world) clone() world {
	w.live, w.asked = maps.Clone(w.live), maps.Clone(w.asked)
	return w
}

// key is all of a world that matters for what can come, which leaves out time,
// counters and texts.
func (w world) key(p Plan) string {
	var b strings.Builder
	for _, c := range p.Components {
		m := w.table.Members[c.Name]
		fmt.Fprintf(&b, "%d%v%v%v%v%v%v%v%v|", m.State, m.spawning, m.PID != 0, m.silent, m.wasReady, m.again,
			m.cause != "", m.killed, m.clock.IsZero())
	}
	fmt.Fprintf(&b, "%v%v%v", w.table.Stopping, w.table.Booted, w.table.Over)
	return b.String()
}

// moves lists everything that can happen next.
func (w world) moves(p Plan) []Event {
	events := []Event{{Kind: Tick}, {Kind: StopAsked}}
	for _, c := range p.Components {
		if w.asked[c.Name] {
			events = append(events, Event{Kind: Spawned, Name: c.Name, PID: w.next}, Event{Kind: SpawnFailed, Name: c.Name})
		}
		if pid := w.live[c.Name]; pid != 0 {
			for _, kind := range []EventKind{Exited, Serving, NotServing, Silent, Hung} {
				events = append(events, Event{Kind: kind, Name: c.Name, PID: pid})
			}
		}
		if w.table.CanRestart(c.Name) == nil {
			events = append(events, Event{Kind: RestartAsked, Name: c.Name})
		}
	}
	return events
}

// move makes one thing happen and checks that what the machine does is allowed.
func (w world) move(p Plan, e Event) (world, error) {
	w = w.clone()
	if due := w.table.Deadline(); e.Kind == Tick && due.After(w.now) {
		w.now = due
	}
	switch e.Kind {
	case Spawned:
		w.live[e.Name], w.next = e.PID, w.next+1
		delete(w.asked, e.Name)
	case SpawnFailed:
		delete(w.asked, e.Name)
	case Exited:
		delete(w.live, e.Name)
	}
	e.At = w.now
	before := w.table
	var actions []Action
	w.table, actions = p.Step(before, e)
	for _, a := range actions {
		if err := w.check(p, before, a); err != nil {
			return w, fmt.Errorf("%+v after %+v: %w", a, e, err)
		}
		if a.Kind == Start {
			w.asked[a.Name] = true
		}
	}
	if w.table.Over && len(w.live)+len(w.asked) > 0 {
		return w, fmt.Errorf("over while %v live", w.live)
	}
	return w, nil
}

func (w world) check(p Plan, before Table, a Action) error {
	i := slices.IndexFunc(p.Components, func(c Component) bool { return c.Name == a.Name })
	c := p.Components[i]
	if a.Kind != Start {
		if w.live[a.Name] != a.PID {
			return fmt.Errorf("signals process %d, the living is %d", a.PID, w.live[a.Name])
		}
		if a.Kind == Terminate && w.table.Stopping && before.Members[a.Name].State != Stopping {
			for _, later := range p.Components[i+1:] {
				if w.live[later.Name] != 0 || w.asked[later.Name] {
					return fmt.Errorf("stopped before %s", later.Name)
				}
			}
		}
		return nil
	}
	if w.live[a.Name] != 0 || w.asked[a.Name] {
		return fmt.Errorf("a second process")
	}
	if w.table.Stopping {
		return fmt.Errorf("a start while stopping")
	}
	if before.Members[a.Name].wasReady {
		return nil
	}
	for _, need := range c.Needs {
		if w.table.Members[need].State != Ready {
			return fmt.Errorf("need %s is %s", need, w.table.Members[need].State)
		}
	}
	for _, need := range c.OrderOnly {
		if !w.table.Members[need].wasReady {
			return fmt.Errorf("order-only %s was never ready", need)
		}
	}
	return nil
}

// settle lets a world of good will run on: what is asked for happens, what runs
// serves, what is told to end ends.
func (w world) settle(p Plan, stop bool) error {
	if stop {
		w, _ = w.move(p, Event{Kind: StopAsked})
	}
	for range 40 * len(p.Components) {
		if w.table.Over || !w.table.Stopping && len(p.Unready(w.table)) == 0 {
			return nil
		}
		var err error
		if w, err = w.move(p, w.goodMove(p)); err != nil {
			return err
		}
	}
	return fmt.Errorf("no rest: %s", w.key(p))
}

func (w world) goodMove(p Plan) Event {
	for _, c := range p.Components {
		m := w.table.Members[c.Name]
		switch {
		case w.asked[c.Name]:
			return Event{Kind: Spawned, Name: c.Name, PID: w.next}
		case m.State == Stopping && w.live[c.Name] != 0:
			return Event{Kind: Exited, Name: c.Name, PID: w.live[c.Name]}
		case (m.State == Starting || m.State == NotReady) && w.live[c.Name] != 0:
			return Event{Kind: Serving, Name: c.Name, PID: w.live[c.Name]}
		}
	}
	return Event{Kind: Tick}
}

// TestStep_EveryReachableState visits every state that two components, joined in
// every way, can come to, checks each action on the way, and that from each state
// good will leads to all ready, and a stop to all gone.
func TestStep_EveryReachableState(t *testing.T) {
	graphs := map[string]Component{
		"apart":      {Name: "b"},
		"needs":      {Name: "b", Needs: []string{"a"}},
		"order only": {Name: "b", OrderOnly: []string{"a"}},
	}
	for name, second := range graphs {
		for _, failFast := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, fail fast %v", name, failFast), func(t *testing.T) {
				plan := testPlan(Component{Name: "a"}, second)
				plan.FailFast = failFast
				explore(t, plan)
			})
		}
	}
}

func explore(t *testing.T, plan Plan) {
	first := world{table: plan.Start(epoch), now: epoch, live: map[string]int{}, asked: map[string]bool{}, next: 1}
	seen := map[string]bool{first.key(plan): true}
	queue := []world{first}
	for len(queue) > 0 {
		w := queue[0]
		queue = queue[1:]
		for _, stop := range []bool{false, true} {
			if err := w.settle(plan, stop); err != nil {
				t.Fatalf("from %s: %v", w.key(plan), err)
			}
		}
		for _, e := range w.moves(plan) {
			next, err := w.move(plan, e)
			if err != nil {
				t.Fatalf("from %s: %v", w.key(plan), err)
			}
			if key := next.key(plan); !seen[key] {
				seen[key] = true
				queue = append(queue, next)
			}
		}
	}
	t.Logf("%d states", len(seen))
	if len(seen) < 100 {
		t.Errorf("got %d states, want the search to reach more", len(seen))
	}
}
