package machine

import (
	"fmt"
	"slices"
	"time"

	"staddle.internal/kit/backoff"
)

// ownPID is the process of the component that is looked at, otherPID an earlier one.
const (
	ownPID   = 7
	otherPID = 6
)

// maxStreak is the number of failures after which the back-off of a search grows no
// more: 1 s, 2 s, 4 s.
const maxStreak = 3

// ghost is what is true of a component, whatever the machine thinks.
type ghost struct {
	live, asked bool  // has a process; was asked to start one, and did not answer
	served      bool  // a process of it has said once that it serves
	mute        bool  // its process did not answer when it was asked last
	held        bool  // an operator wants it stopped
	again       bool  // was wanted anew while its process lived
	stable      bool  // has run for the stable time
	streak      uint8 // failures in a row
}

// node is one component on its own, at rest or in the middle of a step. Time in it
// is abstract: a timer that runs may end at any moment, so that the durations do not
// matter and there are finitely many nodes.
type node struct {
	m        Member
	g        ghost
	stopping bool // everything is
}

// key is all of a node that matters for what can come.
type key struct {
	state    State
	failures int
	flags    [11]bool
	ghost    ghost
	stopping bool
}

func (n node) key() key {
	m := n.m
	return key{m.State, m.failures, [...]bool{
		m.spawning, m.PID != 0, m.external, len(m.waitingFor) > 0, !m.clock.IsZero(), m.silent, m.wasReady, m.again, m.held, m.cause != "", m.killed,
	}, n.g, n.stopping}
}

// normal takes out of a node what decides nothing: how long it is until something is
// due, words, and what is not looked at in the present state.
func (l *lab) normal(n node) node {
	m := n.m
	m.Since, m.Reason, m.why, m.Starts, m.Attempt, m.LastExit = epoch, "", "", 0, 0, Exit{}
	m.startedAt = time.Time{}
	if n.g.live {
		m.startedAt = epoch
	}
	if n.g.stable {
		m.startedAt = epoch.Add(-l.plan.Backoff.Stable)
	}
	if m.cause != "" {
		m.cause = "cause"
	}
	if m.State != Starting {
		m.external, m.waitingFor, m.clock, m.left = false, nil, time.Time{}, 0
	} else {
		m.left = l.component().StartTimeout
		if !m.clock.IsZero() {
			m.clock = epoch
		}
	}
	if m.State == BackingOff {
		m.NextStart = epoch.Add(time.Hour)
	}
	m.deadline = time.Time{}
	if m.State == Stopping {
		m.deadline = epoch.Add(time.Hour)
	}
	m.failures = min(m.failures, maxStreak)
	n.m = m
	return n
}

// expire ends the timer that runs in the present state.
func (m *Member) expire() {
	switch m.State {
	case BackingOff:
		m.NextStart = epoch
	case Starting:
		m.left = 0
	case Stopping:
		m.deadline = epoch
	}
}

// mode is what a component is told of the whole.
type mode int

const (
	calm  mode = iota
	armed      // the first failure stops everything
	halt       // everything is being stopped, or begins to
	modes
)

// input is one thing that can happen to a component.
type input struct {
	name  string
	event Event
	needs func(ghost) bool // when it can happen
	// stray must change nothing: it is about something else.
	stray bool
	// ripen lets a minute pass instead of an event.
	ripen bool
}

// The inputs that a search asks for by number.
const (
	nothing = iota
	isMade
	cannotBeMade
	ends
	serves
	isToStart
)

func inputs() []input {
	about := func(kind EventKind, pid int) Event { return Event{Kind: kind, PID: pid, Reason: "word"} }
	live := func(g ghost) bool { return g.live }
	asked := func(g ghost) bool { return g.asked }
	always := func(ghost) bool { return true }
	waits := about(NotServing, ownPID)
	waits.WaitingFor = []string{"before"}
	outside := about(NotServing, ownPID)
	outside.External = true
	both := waits
	both.External = true
	return []input{
		nothing:      {name: "nothing", needs: always},
		isMade:       {name: "is made", event: about(Spawned, ownPID), needs: asked},
		cannotBeMade: {name: "cannot be made", event: about(SpawnFailed, 0), needs: asked},
		ends:         {name: "ends", event: about(Exited, ownPID), needs: live},
		serves:       {name: "serves", event: about(Serving, ownPID), needs: live},
		isToStart:    {name: "is to start", event: about(StartOneAsked, 0), needs: always},
		{name: "does not serve", event: about(NotServing, ownPID), needs: live},
		{name: "waits for another", event: waits, needs: live},
		{name: "waits for what is outside", event: outside, needs: live},
		{name: "waits for both", event: both, needs: live},
		{name: "is silent", event: about(Silent, ownPID), needs: live},
		{name: "answers", event: about(Answering, ownPID), needs: live},
		{name: "hangs", event: about(Hung, ownPID), needs: live},
		{name: "is lost", event: about(RestartAsked, ownPID), needs: live},
		{name: "is to restart", event: about(RestartAsked, 0), needs: always},
		{name: "is to stop", event: about(StopOneAsked, 0), needs: always},
		{name: "is stable", needs: live, ripen: true},
		{name: "an earlier process ends", event: about(Exited, otherPID), needs: always, stray: true},
		{name: "an earlier process serves", event: about(Serving, otherPID), needs: always, stray: true},
		{name: "an earlier process does not serve", event: about(NotServing, otherPID), needs: always, stray: true},
		{name: "an earlier process hangs", event: about(Hung, otherPID), needs: always, stray: true},
		{name: "an earlier process is lost", event: about(RestartAsked, otherPID), needs: always, stray: true},
		{name: "nobody ends", event: about(Exited, 0), needs: always, stray: true},
		{name: "is made unasked", event: about(Spawned, otherPID), needs: func(g ghost) bool { return !g.asked }, stray: true},
		{name: "cannot be made unasked", event: about(SpawnFailed, 0), needs: func(g ghost) bool { return !g.asked }, stray: true},
	}
}

// witness notes what an event makes true.
func (n node) witness(e Event) ghost {
	g := n.g
	runs := n.m.State != Stopping && !n.stopping
	own := e.PID == ownPID && g.live
	switch e.Kind {
	case Spawned:
		g.live, g.asked = g.live || g.asked, false
	case SpawnFailed:
		g.asked = false
	case Exited:
		g.live = g.live && !own
	case Serving, NotServing, Answering, Silent, Hung:
		if own && n.m.State != Stopping {
			g.mute = e.Kind == Silent || e.Kind == Hung
			g.served = g.served || e.Kind == Serving
		}
	case StopOneAsked:
		if !n.stopping {
			g.held, g.again = true, false
		}
	case StartOneAsked:
		g.held = g.held && !runs
	case RestartAsked:
		if runs && (e.PID == 0 || own) {
			g.held, g.again = false, g.live || g.asked
		}
	}
	if !g.live && !g.asked {
		g.again, g.mute, g.stable = false, false, false
	}
	return g
}

// countFailure is the rule of the back-off: a failure after a stable run is the first.
func (g *ghost) countFailure(stable bool) {
	g.streak = min(g.streak+1, maxStreak)
	if stable {
		g.streak = 1
	}
}

// edge is where something leads: the node after it, and what the machine wants done.
type edge struct {
	to     int32 // less than zero if it cannot happen
	acts   acts
	failed bool // it stops everything
}

// acts is a set of kinds of actions.
type acts uint8

func (a acts) has(kind ActionKind) bool { return a&(1<<kind) != 0 }

func actsOf(actions []Action) (acts, error) {
	var set acts
	for _, a := range actions {
		if set.has(a.Kind) {
			return set, fmt.Errorf("action %d is wanted twice at once", a.Kind)
		}
		if (a.PID == ownPID) == (a.Kind == Start) || a.PID != ownPID && a.PID != 0 {
			return set, fmt.Errorf("action %d is about process %d", a.Kind, a.PID)
		}
		set |= 1 << a.Kind
	}
	return set, nil
}

// lab holds one component under every environment: all nodes that it can come to,
// whatever happens to it and whatever the others do. What holds here holds in graphs
// of any size, as a component sees of the others nothing but a view. It is made by
// the machine's own code.
type lab struct {
	plan   Plan
	inputs []input
	rest   []node // between steps, and where each input leads, by way
	happen [][]edge
	mids   []node // after the second turn of a step, and where each view leads
	goOn   [][]edge

	restIndex, midIndex map[key]int32
}

// ways of a node at rest: each mode, each input, and whether its timer ends as well.
func (l *lab) way(m mode, in int, due bool) int {
	w := (int(m)*len(l.inputs) + in) * 2
	if due {
		w++
	}
	return w
}

// views are all that can be seen of the others.
func views() (out [8]view) {
	for i := range out {
		out[i] = view{blocked: i&1 != 0, heldUp: i&2 != 0, last: i&4 != 0}
	}
	return out
}

func (v view) index() (i int) {
	for bit, set := range [...]bool{v.blocked, v.heldUp, v.last} {
		if set {
			i |= 1 << bit
		}
	}
	return i
}

func (l *lab) component() Component { return l.plan.Components[0] }

// searchPlan has few steps of back-off, so that all are gone through.
func searchPlan(components ...Component) Plan {
	plan := testPlan(components...)
	plan.Backoff = backoff.Policy{Initial: time.Second, Cap: 4 * time.Second, Stable: time.Minute}
	return plan
}

// explore finds all nodes and checks every step between them.
func explore() (*lab, error) {
	l := &lab{plan: searchPlan(Component{Name: "x"}), inputs: inputs(), restIndex: map[key]int32{}, midIndex: map[key]int32{}}
	l.addRest(node{m: *l.plan.Start(epoch).Members["x"]})
	for r, m := 0, 0; r < len(l.rest) || m < len(l.mids); {
		for ; r < len(l.rest); r++ {
			edges, err := l.allHappen(l.rest[r])
			if err != nil {
				return nil, err
			}
			l.happen = append(l.happen, edges)
		}
		for ; m < len(l.mids); m++ {
			edges, err := l.allGoOn(l.mids[m])
			if err != nil {
				return nil, err
			}
			l.goOn = append(l.goOn, edges)
		}
	}
	return l, nil
}

func add(n node, nodes *[]node, index map[key]int32) int32 {
	k := n.key()
	i, known := index[k]
	if !known {
		i = int32(len(*nodes))
		index[k] = i
		*nodes = append(*nodes, n)
	}
	return i
}

func (l *lab) addRest(n node) int32 { return add(l.normal(n), &l.rest, l.restIndex) }
func (l *lab) addMid(n node) int32  { return add(l.normal(n), &l.mids, l.midIndex) }

// possible reports whether an input can come to a node. While the stop of all begins,
// nothing else happens but what is due.
func (l *lab) possible(n node, m mode, in input, due bool) bool {
	switch {
	case n.stopping && m != halt, !n.stopping && m == halt && (in.event.Kind != 0 || in.ripen):
		return false
	case due && (n.m.due().IsZero() || in.ripen):
		return false
	}
	return in.needs(n.g)
}

func (l *lab) allHappen(n node) ([]edge, error) {
	edges := make([]edge, int(modes)*len(l.inputs)*2)
	for m := range modes {
		for i, in := range l.inputs {
			for _, due := range []bool{false, true} {
				w := l.way(m, i, due)
				edges[w].to = -1
				if !l.possible(n, m, in, due) {
					continue
				}
				mid, e, err := l.happens(n, m, in, due)
				if err == nil && in.stray {
					err = l.checkStray(mid, e, edges[l.way(m, nothing, due)])
				}
				if err != nil {
					return nil, fmt.Errorf("%s %s (timer %v, mode %d): %w", n, in.name, due, m, err)
				}
				e.to = l.addMid(mid)
				edges[w] = e
			}
		}
	}
	return edges, nil
}

// happens is the first two turns of a step.
func (l *lab) happens(n node, m mode, in input, due bool) (node, edge, error) {
	mid := node{m: n.m, g: n.witness(in.event), stopping: n.stopping}
	mid.g.stable = mid.g.stable || in.ripen
	if due {
		mid.m.expire()
	}
	now := &moment{plan: l.plan, at: epoch, stopping: m == halt, failFast: m == armed}
	one := life{moment: now, component: l.component(), m: &mid.m}
	if in.event.Kind != 0 {
		e := in.event
		e.At, e.Name = epoch, "x"
		one.take(e)
	}
	one.doDue()
	mid.stopping = now.stopping
	if mid.m.State == BackingOff && n.m.State != BackingOff {
		mid.g.countFailure(n.g.stable)
	}
	set, err := actsOf(now.actions)
	e := edge{acts: set, failed: now.failure != ""}
	if err == nil {
		err = l.checkHappen(happening{n, m, in, due}, mid, e)
	}
	return mid, e, err
}

func (l *lab) allGoOn(mid node) ([]edge, error) {
	edges := make([]edge, 8)
	for i, v := range views() {
		edges[i].to = -1
		if v.heldUp && len(mid.m.waitingFor) == 0 {
			continue // there is nobody who could
		}
		rest, e, err := l.goesOn(mid, v)
		if err == nil {
			err = l.checkStill(rest, v)
		}
		if err != nil {
			return nil, fmt.Errorf("%s seeing %+v: %w", mid, v, err)
		}
		e.to = l.addRest(rest)
		edges[i] = e
	}
	return edges, nil
}

// goesOn is the last turn.
func (l *lab) goesOn(mid node, v view) (node, edge, error) {
	rest := mid
	now := &moment{plan: l.plan, at: epoch, stopping: mid.stopping}
	life{moment: now, component: l.component(), m: &rest.m}.goOn(v)
	set, err := actsOf(now.actions)
	if err != nil {
		return rest, edge{}, err
	}
	if set.has(Start) {
		rest.g.asked, rest.g.mute, rest.g.stable, rest.g.again = true, true, false, false
	}
	return rest, edge{acts: set}, l.checkGoOn(mid, v, rest, set)
}

// String describes a node in a message.
func (n node) String() string {
	words := []string{n.m.State.String()}
	for name, set := range map[string]bool{
		"asked for a process": n.g.asked, "live": n.g.live, "served": n.g.served, "held": n.g.held, "wanted again": n.g.again,
		"outside": n.m.external, "waits for another": len(n.m.waitingFor) > 0, "all is stopping": n.stopping, "clock runs": !n.m.clock.IsZero(),
	} {
		if set {
			words = append(words, name)
		}
	}
	slices.Sort(words[1:])
	return fmt.Sprint(words)
}
