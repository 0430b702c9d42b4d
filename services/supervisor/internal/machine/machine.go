// Package machine owns the life of all components as one pure state machine:
// Step takes the table of states and one event, and returns the next table and
// what is to be done.
//
// It knows the rules of the boot graph: who may start when, what counts as a
// failure and how long to back off, and in which order everything stops. It knows
// no processes, no clock and no health service, and must never do anything
// itself. In the trail it stands between the graph and the loop (package
// supervise), which carries out its actions and feeds it what happened.
//
// The rules in short. A component is started first when its needs are ready and
// its order-only needs have been ready once. A crash is not a stop: only the
// crashed component is started again, at once or after its back-off, and what
// needs it stays up; a component that has been ready does not wait for its needs
// any more, as the process itself does. Everything is retried for ever, unless
// the plan says to fail fast. One component may be stopped by itself: it then stays
// stopped until somebody wants it again, and nobody else is touched. Stop is the exact reverse of the order of the plan,
// one after the other.
package machine

import (
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
)

// State is the place of a component in its life.
type State int

// The states, as the contract describes them.
const (
	Waiting State = iota + 1
	Starting
	Ready
	NotReady
	Stopping
	Stopped
	BackingOff
)

// String is the state's name in words.
func (s State) String() string {
	names := [...]string{"none", "waiting", "starting", "ready", "not ready", "stopping", "stopped", "backing off"}
	if s < 0 || int(s) >= len(names) {
		return "unknown"
	}
	return names[s]
}

// Component is what the machine knows of one member of the graph.
type Component struct {
	Name string
	// Needs must be ready before it is first started; OrderOnly must have been
	// ready once before that.
	Needs, OrderOnly []string
	// StartTimeout bounds the way to readiness while nobody else holds it up.
	StartTimeout time.Duration
	// StopTimeout is the grace between the request to end and the kill.
	StopTimeout time.Duration
}

// Plan is what stays the same.
type Plan struct {
	// Components, each after all that it needs.
	Components []Component
	// Backoff spaces the starts after failures.
	Backoff backoff.Policy
	// SilentGrace replaces a longer StopTimeout for a process that does not answer:
	// it will hardly stop in order.
	SilentGrace time.Duration
	// FailFast makes the first failure before everything was ready once stop all.
	FailFast bool
}

// Exit is how a process ended.
type Exit struct {
	// How says it in words: "exit code 1", "signal killed". Empty means that none
	// has ended yet.
	How string
	// Code is set if it ended by itself, Signal if that ended it; neither is if
	// nobody knows.
	Code   *int
	Signal string
}

// Member is the state of one component. Members of a table are never changed once
// Step has returned it.
type Member struct {
	State State
	// Since is when State was entered.
	Since time.Time
	// Reason says why it is in that state. Empty when ready.
	Reason string
	// PID of its process, 0 while there is none.
	PID int
	// Starts counts its processes, and Attempt also those that could not be made.
	Starts, Attempt uint32
	// NextStart is set only while backing off.
	NextStart time.Time
	// LastExit says how its last process ended.
	LastExit Exit

	spawning   bool          // asked to start, and no process id yet
	startedAt  time.Time     // when its last process was made; zero if that failed
	failures   int           // in a row, as the back-off counts
	left       time.Duration // of the start time-out
	clock      time.Time     // since when left runs down; zero while halted
	external   bool          // its reason lies outside this machine
	waitingFor []string      // neighbours that it says it waits for
	silent     bool          // gives no answer to health
	wasReady   bool          // was ready once under this supervisor
	again      bool          // its stop was asked for by a restart
	held       bool          // an operator wants it stopped
	why        string        // its next start was asked for, if it is waiting
	cause      string        // why it is being stopped, if that is a failure
	deadline   time.Time     // when a stopping process is killed, also once more
	killed     bool
}

// alive reports whether there is a process, or will be one in a moment.
func (m *Member) alive() bool { return m.PID != 0 || m.spawning }

// Table is the state of everything.
type Table struct {
	Members map[string]*Member
	// Stopping means that all are being stopped, for good.
	Stopping bool
	// Booted means that every component has been ready once.
	Booted bool
	// Over means that all are stopped and nothing will happen any more.
	Over bool
	// Failure is why a plan that fails fast stopped.
	Failure string
}

// Start returns the table before the first event.
func (p Plan) Start(now time.Time) Table {
	t := Table{Members: make(map[string]*Member, len(p.Components))}
	for _, c := range p.Components {
		t.Members[c.Name] = &Member{State: Waiting, Since: now}
	}
	return t
}

func (t Table) clone() Table {
	members := make(map[string]*Member, len(t.Members))
	own := make([]Member, 0, len(t.Members)) // in one piece
	for name, m := range t.Members {
		own = append(own, *m)
		members[name] = &own[len(own)-1]
	}
	t.Members = members
	return t
}

// CanStop returns nil if StopOneAsked is possible, and NotFound if there is no such
// component.
func (t Table) CanStop(name string) error {
	if _, ok := t.Members[name]; !ok {
		return fault.New(fault.NotFound, "stop component %s: there is none of that name", name)
	}
	return nil
}

// CanStart returns nil if StartOneAsked is possible, NotFound if there is no such
// component, and Conflict while it, or everything, is stopping.
func (t Table) CanStart(name string) error { return t.canRun("start", name) }

// CanRestart is the same for RestartAsked.
func (t Table) CanRestart(name string) error { return t.canRun("restart", name) }

func (t Table) canRun(verb, name string) error {
	m, ok := t.Members[name]
	switch {
	case !ok:
		return fault.New(fault.NotFound, "%s component %s: there is none of that name", verb, name)
	case t.Stopping:
		return fault.New(fault.Conflict, "%s component %s: the supervisor is stopping", verb, name)
	case m.State == Stopping:
		return fault.New(fault.Conflict, "%s component %s: it is stopping", verb, name)
	}
	return nil
}

// Unready lists the components that are not ready, in the order of the plan.
func (p Plan) Unready(t Table) []string {
	var names []string
	for _, c := range p.Components {
		if t.Members[c.Name].State != Ready {
			names = append(names, c.Name)
		}
	}
	return names
}

// Deadline is when the table changes by itself next, zero if it does not. The
// caller then sends Tick.
func (t Table) Deadline() time.Time {
	var next time.Time
	for _, m := range t.Members {
		if due := m.due(); !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	return next
}

func (m *Member) due() time.Time {
	switch {
	case m.State == BackingOff:
		return m.NextStart
	case m.State == Starting && !m.clock.IsZero():
		return m.clock.Add(m.left)
	case m.State == Stopping && m.PID != 0:
		return m.deadline
	}
	return time.Time{}
}
