package machine

import (
	"fmt"
	"slices"
	"strings"
)

// Step is the whole machine: it returns the table after the event, and what to do.
//
// It takes three turns. The component that the event is about takes it in; each
// component does what is due; each looks at the others and goes on. In a turn every
// component decides by its own state alone (type life), and what it sees of the
// others (type view) is none of what they do in that turn, so that the order within
// a turn does not matter.
func (p Plan) Step(t Table, e Event) (Table, []Action) {
	t = t.clone()
	now := &moment{plan: p, at: e.At, jitter: e.Jitter, stopping: t.Stopping || e.Kind == StopAsked}
	now.failFast = p.FailFast && !t.Booted
	lives := make([]life, len(p.Components))
	for i, c := range p.Components {
		lives[i] = life{moment: now, component: c, m: t.Members[c.Name]}
	}
	for _, l := range lives {
		if l.component.Name == e.Name {
			l.take(e)
		}
	}
	for _, l := range lives {
		l.doDue()
	}
	views := make([]view, len(lives))
	for i := range lives {
		views[i] = p.look(t, i)
	}
	for i, l := range lives {
		l.goOn(views[i])
	}
	p.sum(&t, now)
	return t, now.actions
}

// view is all that a component sees of the others. It is made of three things about
// each: whether it is ready, whether it ever was, and whether it has a process.
type view struct {
	// blocked: another holds up its first start.
	blocked bool
	// heldUp: another that it says it waits for is not ready.
	heldUp bool
	// last: none that comes after it has a process.
	last bool
}

func (p Plan) look(t Table, i int) view {
	c := p.Components[i]
	return view{
		blocked: len(p.blockers(t, c)) > 0,
		heldUp:  p.heldUp(t, i),
		last: !slices.ContainsFunc(p.Components[i+1:], func(later Component) bool {
			return t.Members[later.Name].alive()
		}),
	}
}

// blockers lists what holds up the first start of a component.
func (p Plan) blockers(t Table, c Component) []string {
	if t.Members[c.Name].wasReady {
		return nil
	}
	var names []string
	for _, need := range c.Needs {
		if t.Members[need].State != Ready {
			names = append(names, need)
		}
	}
	for _, before := range c.OrderOnly {
		if !t.Members[before].wasReady && !slices.Contains(names, before) {
			names = append(names, before)
		}
	}
	return names
}

// heldUp believes a component only that it waits for one that comes before it: two
// that wait for each other would never run out of time.
func (p Plan) heldUp(t Table, i int) bool {
	waitingFor := t.Members[p.Components[i].Name].waitingFor
	return slices.ContainsFunc(p.Components[:i], func(before Component) bool {
		return t.Members[before.Name].State != Ready && slices.Contains(waitingFor, before.Name)
	})
}

// sum brings what is true of all up to date.
func (p Plan) sum(t *Table, now *moment) {
	booted, over := true, now.stopping
	for _, m := range t.Members {
		booted = booted && m.wasReady
		over = over && !m.alive()
	}
	t.Booted = t.Booted || booted
	t.Stopping, t.Over = now.stopping, over
	if now.failure != "" {
		t.Failure = now.failure
	}
	p.explain(t)
}

// explain tells those that wait what they wait for. Words decide nothing.
func (p Plan) explain(t *Table) {
	for _, c := range p.Components {
		if m := t.Members[c.Name]; m.State == Waiting {
			m.Reason = "waiting for " + strings.Join(t.described(p.blockers(*t, c)), ", ")
		}
	}
}

// described adds to each name why it is not ready.
func (t Table) described(names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		m := t.Members[name]
		out[i] = name
		switch m.State {
		case BackingOff, NotReady, Stopped:
			out[i] = fmt.Sprintf("%s (%s: %s)", name, m.State, m.Reason)
		case Starting, Stopping:
			out[i] = fmt.Sprintf("%s (%s)", name, m.Reason)
		}
	}
	return out
}
