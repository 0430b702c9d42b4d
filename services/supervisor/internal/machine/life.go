package machine

import (
	"fmt"
	"time"
)

// killAgain is how long a killed process has to be gone before it is killed again: a
// kill can fail, and a stop must end.
const killAgain = 5 * time.Second

// moment is what one step has in common for all components.
type moment struct {
	plan     Plan
	at       time.Time
	jitter   float64
	stopping bool // all are being stopped
	failFast bool // the first failure stops all
	failure  string
	actions  []Action
}

// life is one component in one step. It decides by its own state, by the moment, and
// by its view of the others: it cannot see more of them.
type life struct {
	*moment
	component Component
	m         *Member
}

func (l life) act(kind ActionKind) {
	l.actions = append(l.actions, Action{Kind: kind, Name: l.component.Name, PID: l.m.PID})
}

func (l life) enter(state State, reason string) {
	if l.m.State != state {
		l.m.Since = l.at
	}
	l.m.State, l.m.Reason = state, reason
}

// take is the first turn: what has happened to the component.
func (l life) take(e Event) {
	own := l.m.PID != 0 && l.m.PID == e.PID // or it is about an earlier process
	switch e.Kind {
	case Spawned:
		l.spawned(e.PID)
	case SpawnFailed:
		if l.m.spawning {
			l.ended(e.Reason)
		}
	case Exited:
		if own {
			l.m.LastExit = e.Exit
			l.ended(e.Exit.How)
		}
	case RestartAsked, StopOneAsked, StartOneAsked:
		l.asked(e)
	default:
		if own && l.m.State != Stopping {
			l.health(e)
		}
	}
}

func (l life) spawned(pid int) {
	if !l.m.spawning {
		return
	}
	l.m.spawning, l.m.PID, l.m.startedAt = false, pid, l.at
	l.m.Starts++
	if l.m.State == Stopping { // asked for while it was being made
		l.stop(l.m.Reason)
	}
}

func (l life) health(e Event) {
	l.m.silent = e.Kind == Silent || e.Kind == Hung
	switch e.Kind {
	case Serving:
		l.m.wasReady, l.m.external, l.m.waitingFor = true, false, nil
		l.enter(Ready, "")
	case NotServing:
		l.m.external, l.m.waitingFor = e.External, e.WaitingFor
		if l.m.State == Ready {
			l.enter(NotReady, e.Reason)
		}
		l.m.Reason = e.Reason
	case Hung:
		l.m.cause = e.Reason
		l.enter(Stopping, e.Reason)
		l.kill()
	}
}

// doDue is the second turn: what its timer asks for.
func (l life) doDue() {
	if due := l.m.due(); due.IsZero() || l.at.Before(due) {
		return
	}
	switch l.m.State {
	case BackingOff:
		l.want("its back-off is over")
	case Starting:
		if !l.stopping { // else it has its turn in the order of the stop
			l.m.cause = fmt.Sprintf("not ready within %s: %s", l.component.StartTimeout, l.m.Reason)
			l.stop(l.m.cause)
		}
	case Stopping:
		l.kill()
	}
}

// goOn is the last turn: what the others let it do.
func (l life) goOn(v view) {
	switch {
	case l.stopping && !l.m.alive():
		l.m.NextStart = time.Time{}
		l.enter(Stopped, "")
	case l.stopping && l.m.State != Stopping && v.last:
		l.stop("the supervisor is stopping")
	case !l.stopping && l.m.State == Waiting && !v.blocked:
		l.start()
	}
	if l.m.State == Starting {
		l.runClock(!l.stopping && !l.m.external && !v.heldUp)
	}
}

// runClock runs the start time-out, or halts it while the component cannot help it:
// the cause lies outside this machine, or with another component.
func (l life) runClock(run bool) {
	if run && l.m.clock.IsZero() {
		l.m.clock = l.at
	} else if !run && !l.m.clock.IsZero() {
		l.m.left -= l.at.Sub(l.m.clock)
		l.m.clock = time.Time{}
	}
}

// want has it started as soon as it may be, and remembers why.
func (l life) want(why string) {
	l.m.held, l.m.why, l.m.NextStart = false, why, time.Time{}
	l.enter(Waiting, why)
}

// start asks for a process.
func (l life) start() {
	reason := l.m.why
	if reason == "" {
		reason = "starting"
	}
	*l.m = Member{
		State: Starting, Since: l.at, Reason: reason, Starts: l.m.Starts, LastExit: l.m.LastExit,
		Attempt: l.m.Attempt + 1, failures: l.m.failures, wasReady: l.m.wasReady,
		spawning: true, silent: true, left: l.component.StartTimeout, clock: l.at,
	}
	l.act(Start)
}

// stop asks a live process to end. One that is still being made is asked when it is
// there, and its grace begins then.
func (l life) stop(reason string) {
	grace := l.component.StopTimeout
	if l.m.silent {
		grace = min(grace, l.plan.SilentGrace)
	}
	l.m.deadline = l.at.Add(grace)
	l.enter(Stopping, reason)
	if l.m.PID != 0 {
		l.act(Terminate)
	}
}

// kill ends a process, and does so again until it is gone.
func (l life) kill() {
	if l.m.killed {
		l.m.Reason = "was killed and is not gone yet"
	}
	l.m.killed, l.m.deadline = true, l.at.Add(killAgain)
	l.act(Kill)
}

// ended decides what comes after a process, or after the attempt to make one.
func (l life) ended(how string) {
	again, cause := l.m.again, l.m.cause
	l.m.PID, l.m.spawning, l.m.again, l.m.killed, l.m.cause, l.m.deadline = 0, false, false, false, "", time.Time{}
	l.m.external, l.m.waitingFor = false, nil // the next process speaks for itself
	switch {
	case l.stopping:
		l.enter(Stopped, "")
	case l.m.held:
		l.enter(Stopped, stopAsked)
	case again:
		l.want(restartAsked)
	case cause != "":
		l.backOff(cause)
	default:
		l.backOff(how)
	}
}

func (l life) backOff(reason string) {
	var ran time.Duration // none if it could not even be made
	if !l.m.startedAt.IsZero() {
		ran = l.at.Sub(l.m.startedAt)
	}
	l.m.failures = l.plan.Backoff.Next(l.m.failures, ran)
	l.m.NextStart = l.at.Add(l.plan.Backoff.Delay(l.m.failures, l.jitter))
	l.enter(BackingOff, reason)
	if l.failFast {
		l.failure = fmt.Sprintf("component %s: %s", l.component.Name, reason)
		l.stopping = true
	}
}
