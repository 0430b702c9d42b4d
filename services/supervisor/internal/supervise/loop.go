// Package supervise owns the loop that brings the boot graph to life: one
// goroutine holds the table of states, feeds the machine with what happened, and
// does what it says.
//
// It must never decide by itself: every rule is in package machine. It must never
// wait for a child either; ends, answers of health and wishes of operators come to
// it as events. In the trail it is the keeper of the supervisor, between the
// machine and the children.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"staddle.internal/kit/logging"

	"staddle.internal/services/supervisor/internal/machine"
)

// children does what the machine wants.
type children interface {
	Start(ctx context.Context, name string) (pid int, err error)
	Terminate(name string, pid int) error
	Kill(name string, pid int) error
}

// Deps are what a Loop needs from others.
type Deps struct {
	Children children
	// Probe asks one process until ctx ends.
	Probe func(ctx context.Context, name string, pid int, emit func(machine.Event)) error
	// Changed learns of each new table. It must not block.
	Changed func(machine.Table)
	// Alive is called after each event, and at least every PulsePeriod. Nil means
	// that nobody wants to know.
	Alive func()
	Log   *slog.Logger
}

// Loop is the keeper of all components.
type Loop struct {
	plan   machine.Plan
	deps   Deps
	events chan machine.Event
	asked  chan wish
	pauses chan pause
	done   chan struct{} // closed when the loop has ended

	// Owned by the goroutine of Run.
	waiters []wish
	probes  map[string]context.CancelFunc
	wg      sync.WaitGroup

	history *History

	mu      sync.Mutex // guards the two below
	table   machine.Table
	changed chan struct{} // closed and replaced at each change
}

// New returns a loop over the plan in which nothing has started.
func New(plan machine.Plan, deps Deps) *Loop {
	if deps.Alive == nil {
		deps.Alive = func() {}
	}
	return &Loop{
		plan: plan, deps: deps,
		events: make(chan machine.Event, 64), asked: make(chan wish), pauses: make(chan pause), done: make(chan struct{}),
		probes: map[string]context.CancelFunc{}, history: NewHistory(),
		table: plan.Start(time.Now()), changed: make(chan struct{}),
	}
}

// Table returns the states now. It must not be changed.
func (l *Loop) Table() machine.Table {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.table
}

// Changed returns a channel that is closed at the next change. Take it before
// Table, so that no change falls between the two.
func (l *Loop) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// History is what has happened.
func (l *Loop) History() *History { return l.history }

// Exited takes the end of a child.
func (l *Loop) Exited(name string, pid int, exit machine.Exit) {
	l.post(machine.Event{Kind: machine.Exited, Name: name, PID: pid, Exit: exit})
}

func (l *Loop) post(e machine.Event) {
	select {
	case l.events <- e:
	case <-l.done:
	}
}

// Run starts the components and keeps them until ctx ends, then stops them in
// reverse and returns when all are gone. With a plan that fails fast it also ends,
// with an error, after the first failure of the boot.
func (l *Loop) Run(ctx context.Context, ready func()) error {
	defer close(l.done)
	defer l.wg.Wait()
	work := context.WithoutCancel(ctx) // starts and probes outlast the wish to stop
	ready()
	pulse := time.NewTicker(PulsePeriod)
	defer pulse.Stop()
	stop := ctx.Done()
	l.resumeProbes(work)
	l.step(work, machine.Event{Kind: machine.Tick})
	for !l.Table().Over {
		timer, fired := l.timer()
		select {
		case e := <-l.events:
			l.step(work, e)
		case w := <-l.asked:
			l.wish(work, w)
		case p := <-l.pauses:
			p.reply <- p.f(l.Table())
		case <-fired:
			l.step(work, machine.Event{Kind: machine.Tick})
		case <-pulse.C:
		case <-stop:
			stop = nil
			l.step(work, machine.Event{Kind: machine.StopAsked})
		}
		timer.Stop()
		l.deps.Alive()
	}
	if failure := l.Table().Failure; failure != "" {
		return errors.New("start of the node failed: " + failure)
	}
	return context.Cause(ctx)
}

// timer fires when the table changes by itself.
func (l *Loop) timer() (*time.Timer, <-chan time.Time) {
	due := l.Table().Deadline()
	if due.IsZero() {
		return time.NewTimer(0), nil
	}
	t := time.NewTimer(max(0, time.Until(due)))
	return t, t.C
}

// step feeds the machine, and what comes of its actions, until it is at rest.
func (l *Loop) step(ctx context.Context, e machine.Event) {
	todo := []machine.Event{e}
	for len(todo) > 0 {
		e, todo = todo[0], todo[1:]
		e.At, e.Jitter = time.Now(), rand.Float64()
		if e.Kind == machine.Exited {
			l.endProbe(e.Name)
		}
		before := l.Table()
		after, actions := l.plan.Step(before, e)
		l.publish(before, after, e.At)
		for _, a := range actions {
			if event, ok := l.act(ctx, a); ok {
				todo = append(todo, event)
			}
		}
	}
}

// act does one thing. Only a start has an event as its answer.
func (l *Loop) act(ctx context.Context, a machine.Action) (machine.Event, bool) {
	var err error
	switch a.Kind {
	case machine.Start:
		pid, err := l.deps.Children.Start(ctx, a.Name)
		if err != nil {
			return machine.Event{Kind: machine.SpawnFailed, Name: a.Name, Reason: err.Error()}, true
		}
		l.beginProbe(ctx, a.Name, pid)
		return machine.Event{Kind: machine.Spawned, Name: a.Name, PID: pid}, true
	case machine.Terminate:
		err = l.deps.Children.Terminate(a.Name, a.PID)
	case machine.Kill:
		err = l.deps.Children.Kill(a.Name, a.PID)
	}
	if err != nil { // its exit, or the next time-out, goes on from here
		l.deps.Log.Warn("process not signalled", logging.Component(a.Name), logging.Err(err))
	}
	return machine.Event{}, false
}

func (l *Loop) beginProbe(ctx context.Context, name string, pid int) {
	ctx, cancel := context.WithCancel(ctx)
	l.probes[name] = cancel
	l.wg.Go(func() { // owned by Run: ended by endProbe at the exit of the process
		if err := l.deps.Probe(ctx, name, pid, l.post); err != nil {
			l.post(machine.Event{Kind: machine.NotServing, Name: name, PID: pid, Reason: err.Error()})
		}
	})
}

func (l *Loop) endProbe(name string) {
	if cancel, ok := l.probes[name]; ok {
		cancel()
		delete(l.probes, name)
	}
}

// publish makes a table the present one.
func (l *Loop) publish(before, after machine.Table, now time.Time) {
	l.mu.Lock()
	l.table = after
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	for _, t := range transitions(l.plan, before, after, now) {
		l.log(l.history.add(t))
	}
	l.deps.Changed(after)
	l.answer(after)
}

// log writes the one line of a transition.
func (l *Loop) log(t Transition) {
	attrs := []any{
		logging.Seq(t.Seq), logging.Component(t.Component), logging.From(t.From.String()), logging.To(t.To.String()),
		logging.Reason(t.Cause), logging.Attempt(int64(t.Attempt)),
	}
	if t.Exit != nil && t.Exit.Code != nil {
		attrs = append(attrs, logging.ExitCode(*t.Exit.Code))
	}
	if t.Exit != nil && t.Exit.Signal != "" {
		attrs = append(attrs, logging.ExitSignal(t.Exit.Signal))
	}
	if t.To == machine.BackingOff {
		attrs = append(attrs, logging.RetryIn(t.NextDelay))
		l.deps.Log.Warn("component failed", attrs...)
		return
	}
	l.deps.Log.Info("component changed", attrs...)
}

// Describe says in one sentence which components are not ready, and why.
func Describe(plan machine.Plan, t machine.Table) (reason string, names []string) {
	names = plan.Unready(t)
	if len(names) == 0 {
		return "", nil
	}
	first := t.Members[names[0]]
	reason = fmt.Sprintf("%d of %d components are not ready: %s is %s", len(names), len(plan.Components), names[0], first.State)
	if first.Reason != "" && first.Reason != first.State.String() {
		reason += " (" + first.Reason + ")"
	}
	return reason, names
}
