package machine

import (
	"fmt"
	"slices"
	"time"

	"staddle.internal/kit/backoff"
)

// detail says how much of what can happen to one component is tried.
type detail int

const (
	// outline is all that others can see of a component: it comes, is ready, and is
	// gone. Its process is made at once, as the loop does it.
	outline detail = iota
	// plain is everything but the history of its failures.
	plain
	// full has the history as well.
	full
)

// maxStreak is the number of failures after which the back-off of a search grows no
// more: 1 s, 2 s, 4 s.
const maxStreak = 3

// space is one search: a plan, and how closely each component is looked at.
type space struct {
	plan    Plan
	details [maxSize]detail
	// past says of which components it matters that they were ready once.
	past [maxSize]bool
}

const maxSize = 4

func newSpace(s shape, failFast bool, details ...detail) space {
	plan := testPlan(s.components()...)
	plan.FailFast = failFast
	plan.Backoff = backoff.Policy{Initial: time.Second, Cap: 4 * time.Second, Stable: time.Minute}
	sp := space{plan: plan}
	copy(sp.details[:], details)
	for i, c := range sp.plan.Components {
		sp.past[i] = sp.past[i] || failFast || len(c.Needs)+len(c.OrderOnly) > 0
		for _, before := range c.OrderOnly {
			sp.past[sp.index(before)] = true
		}
	}
	return sp
}

// ghost is what is true of a component, whatever the machine thinks.
type ghost struct {
	live, asked bool // has a process; was asked to start one, and did not answer
	held        bool // an operator wants it stopped
	stable      bool // has run for the stable time
	streak      uint8
}

// world is what the machine acts on. Time in it is abstract: a timer that runs may
// fire at any moment, in any order with all else, so that the durations do not
// matter and there are finitely many worlds.
type world struct {
	table  Table
	ghosts [maxSize]ghost
}

// key is all of a world that matters for what can come.
type key struct {
	members [maxSize]uint32
	ghosts  [maxSize]ghost
	all     uint8
}

func bits(flags ...bool) (out uint32) {
	for _, f := range flags {
		out <<= 1
		if f {
			out |= 1
		}
	}
	return out
}

func (sp space) key(w world) key {
	k := key{ghosts: w.ghosts, all: uint8(bits(w.table.Stopping, w.table.Booted && sp.plan.FailFast, w.table.Over))}
	for i, c := range sp.plan.Components {
		m := w.table.Members[c.Name]
		k.members[i] = uint32(m.State)<<16 | uint32(m.failures)<<12 | bits(m.spawning, m.PID != 0, m.external, len(m.waitingFor) > 0,
			!m.clock.IsZero(), m.wasReady && sp.past[i], m.again, m.held, m.cause != "", m.killed)
	}
	return k
}

// settleDown takes out of a table what matters no more: how long it is until
// something is due, and what is not looked at in the present state.
func (sp space) settleDown(w *world) {
	for i, c := range sp.plan.Components {
		m := w.table.Members[c.Name]
		m.Since, m.silent, m.Reason, m.Starts, m.Attempt = epoch, false, "", 0, 0
		m.startedAt = epoch
		if w.ghosts[i].stable {
			m.startedAt = epoch.Add(-sp.plan.Backoff.Stable)
		}
		if m.State != Starting {
			m.external, m.waitingFor, m.clock, m.left = false, nil, time.Time{}, 0
		} else if !m.clock.IsZero() {
			m.clock, m.left = epoch, c.StartTimeout
		}
		if m.State == BackingOff {
			m.NextStart = epoch.Add(time.Hour)
		}
		if m.State == Stopping {
			m.deadline = epoch.Add(time.Hour)
		}
		m.failures = min(m.failures, maxStreak)
		if sp.details[i] != full {
			m.failures, w.ghosts[i].streak = 0, 0
		}
	}
}

// expire ends the timer of one component in its state now, and returns how to undo
// that: the table is the one of other worlds as well.
func expire(m *Member) (undo func()) {
	was := *m
	switch m.State {
	case BackingOff:
		m.NextStart = epoch
	case Starting:
		m.left = 0
	case Stopping:
		m.deadline = epoch
	}
	return func() { *m = was }
}

// move is one thing that can happen.
type move struct {
	event Event
	fire  string // the timer of this component ends
	age   int    // this component, counted from 1, has been stable
}

func (m move) String() string {
	switch {
	case m.fire != "":
		return "timer of " + m.fire
	case m.age > 0:
		return fmt.Sprintf("component %d is stable", m.age)
	}
	return fmt.Sprintf("event %d of %s %s", m.event.Kind, m.event.Name, m.event.Reason)
}

// moves appends everything that can happen next to out.
func (sp space) moves(w world, out []move) []move {
	out = append(out, move{event: Event{Kind: StopAsked}})
	for i, c := range sp.plan.Components {
		m, g := w.table.Members[c.Name], w.ghosts[i]
		about := func(kinds ...EventKind) {
			for _, k := range kinds {
				out = append(out, move{event: Event{Kind: k, Name: c.Name, PID: i + 1}})
			}
		}
		if !m.due().IsZero() && (sp.details[i] != outline || m.State != Starting) {
			out = append(out, move{fire: c.Name})
		}
		if g.asked {
			about(Spawned, SpawnFailed)
		}
		if g.live {
			about(Exited, Serving)
		}
		if sp.details[i] == outline {
			continue
		}
		if g.live {
			about(NotServing, Hung)
			out = append(out, move{event: Event{Kind: NotServing, Name: c.Name, PID: i + 1, WaitingFor: c.Needs}})
		}
		if g.live && len(sp.plan.Components) < 3 { // what depends on nobody else, and what should change nothing
			about(Silent, Answering)
			out = append(out, move{event: Event{Kind: NotServing, Name: c.Name, PID: i + 1, External: true}},
				move{event: Event{Kind: Exited, Name: c.Name, PID: i + 100}}, // of an earlier process
				move{event: Event{Kind: RestartAsked, Name: c.Name, PID: i + 100}},
				move{event: Event{Kind: Tick}}) // and nothing is due
		}
		if sp.details[i] == full && g.live && !g.stable {
			out = append(out, move{age: i + 1})
		}
		about(StopOneAsked, StartOneAsked)
		out = append(out, move{event: Event{Kind: RestartAsked, Name: c.Name}})
	}
	return out
}

// happen makes one thing happen and checks that what the machine does is allowed.
func (sp space) happen(w world, m move) (world, error) {
	if m.age > 0 {
		w.ghosts[m.age-1].stable = true
		w.table = w.table.clone()
		sp.settleDown(&w)
		return w, nil
	}
	before := w
	e := m.event
	if m.fire != "" {
		defer expire(w.table.Members[m.fire])()
		e = Event{Kind: Tick}
	}
	todo := []Event{e}
	for len(todo) > 0 {
		e, todo = todo[0], todo[1:]
		e.At = epoch
		sp.witness(&w, e)
		table, actions := sp.plan.Step(w.table, e)
		old := w
		w.table = table
		if err := sp.checkStep(old, &w, e, actions); err != nil {
			return w, fmt.Errorf("%s: %w", m, err)
		}
		for _, a := range actions {
			if i := sp.index(a.Name); a.Kind == Start {
				w.ghosts[i].asked, w.ghosts[i].stable = true, false
				if sp.details[i] == outline {
					todo = append(todo, Event{Kind: Spawned, Name: a.Name, PID: i + 1})
				}
			}
		}
	}
	if err := sp.checkRest(before, w, m); err != nil {
		return w, fmt.Errorf("%s: %w", m, err)
	}
	sp.settleDown(&w)
	return w, nil
}

func (sp space) index(name string) int {
	return slices.IndexFunc(sp.plan.Components, func(c Component) bool { return c.Name == name })
}

// witness notes what an event makes true.
func (sp space) witness(w *world, e Event) {
	i := sp.index(e.Name)
	if i < 0 {
		return
	}
	g := &w.ghosts[i]
	switch e.Kind {
	case Spawned:
		g.live, g.asked = true, false
	case SpawnFailed:
		g.asked = false
	case Exited:
		g.live = g.live && e.PID != i+1
	case StopOneAsked:
		g.held = g.held || !w.table.Stopping
	case StartOneAsked:
		g.held = g.held && w.table.CanStart(e.Name) != nil
	case RestartAsked:
		g.held = g.held && (e.PID != 0 || w.table.CanRestart(e.Name) != nil)
	}
}
