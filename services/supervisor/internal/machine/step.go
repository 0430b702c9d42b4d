package machine

import (
	"fmt"
	"strings"
	"time"
)

// Step is the whole machine: it returns the table after the event, and what to do.
func (p Plan) Step(t Table, e Event) (Table, []Action) {
	s := &step{plan: p, table: t.clone(), now: e.At, jitter: e.Jitter}
	s.apply(e)
	s.timers()
	if s.table.Stopping {
		s.unwind()
	} else {
		s.startDue()
	}
	s.clocks()
	return s.table, s.actions
}

type step struct {
	plan    Plan
	table   Table
	now     time.Time
	jitter  float64
	actions []Action
}

func (s *step) act(kind ActionKind, name string, pid int) {
	s.actions = append(s.actions, Action{Kind: kind, Name: name, PID: pid})
}

func (s *step) enter(m *Member, state State, reason string) {
	if m.State != state {
		m.Since = s.now
	}
	m.State, m.Reason = state, reason
}

// apply changes the member that the event is about.
func (s *step) apply(e Event) {
	if e.Kind == StopAsked {
		s.table.Stopping = true
		return
	}
	m, ok := s.table.Members[e.Name]
	if !ok {
		return
	}
	switch e.Kind {
	case Spawned:
		s.spawned(e.Name, m, e.PID)
	case SpawnFailed:
		if m.spawning {
			s.ended(e.Name, m, e.Reason)
		}
	case Exited:
		if m.PID == e.PID {
			m.LastExit = e.Exit
			s.ended(e.Name, m, e.Exit.How)
		}
	case RestartAsked, StopOneAsked, StartOneAsked:
		s.asked(e, m)
	default:
		if m.PID == e.PID && m.PID != 0 && m.State != Stopping {
			s.health(e, m)
		}
	}
}

func (s *step) spawned(name string, m *Member, pid int) {
	if !m.spawning {
		return
	}
	m.spawning, m.PID = false, pid
	m.Starts++
	if m.State == Stopping { // asked for while it was being made
		s.act(Terminate, name, pid)
	}
}

func (s *step) health(e Event, m *Member) {
	m.silent = e.Kind == Silent || e.Kind == Hung
	switch e.Kind {
	case Serving:
		m.wasReady, m.external, m.waitingFor = true, false, nil
		s.enter(m, Ready, "")
		s.table.Booted = s.table.Booted || s.allWereReady()
	case NotServing:
		m.external, m.waitingFor = e.External, e.WaitingFor
		if m.State == Ready {
			s.enter(m, NotReady, e.Reason)
		}
		m.Reason = e.Reason
	case Hung:
		m.cause = e.Reason
		s.enter(m, Stopping, e.Reason)
		s.kill(e.Name, m)
	}
}

func (s *step) allWereReady() bool {
	for _, m := range s.table.Members {
		if !m.wasReady {
			return false
		}
	}
	return true
}

// want has a component started as soon as it may be, and remembers why.
func (s *step) want(m *Member, why string) {
	m.held, m.why = false, why
	s.enter(m, Waiting, why)
}

// start asks for a process.
func (s *step) start(c Component, m *Member) {
	reason := m.why
	if reason == "" {
		reason = "starting"
	}
	*m = Member{
		State: Starting, Since: s.now, Reason: reason, Starts: m.Starts, LastExit: m.LastExit,
		Attempt: m.Attempt + 1, failures: m.failures, wasReady: m.wasReady,
		spawning: true, silent: true, startedAt: s.now, left: c.StartTimeout, clock: s.now,
	}
	s.act(Start, c.Name, 0)
}

// stop asks a live process to end, once.
func (s *step) stop(name string, m *Member, reason string) {
	grace := s.component(name).StopTimeout
	if m.silent {
		grace = min(grace, s.plan.SilentGrace)
	}
	m.deadline = s.now.Add(grace)
	s.enter(m, Stopping, reason)
	if m.PID != 0 {
		s.act(Terminate, name, m.PID)
	}
}

func (s *step) kill(name string, m *Member) {
	if m.PID != 0 && !m.killed {
		m.killed = true
		s.act(Kill, name, m.PID)
	}
}

// ended decides what comes after a process, or after the attempt to make one.
func (s *step) ended(name string, m *Member, how string) {
	again, cause := m.again, m.cause
	m.PID, m.spawning, m.again, m.killed, m.cause, m.deadline = 0, false, false, false, "", time.Time{}
	switch {
	case s.table.Stopping:
		s.enter(m, Stopped, "")
	case m.held:
		s.enter(m, Stopped, stopAsked)
	case again:
		s.want(m, restartAsked)
	case cause != "":
		s.backOff(name, m, cause)
	default:
		s.backOff(name, m, how)
	}
}

func (s *step) backOff(name string, m *Member, reason string) {
	m.failures = s.plan.Backoff.Next(m.failures, s.now.Sub(m.startedAt))
	m.NextStart = s.now.Add(s.plan.Backoff.Delay(m.failures, s.jitter))
	s.enter(m, BackingOff, reason)
	if s.plan.FailFast && !s.table.Booted {
		s.table.Failure = fmt.Sprintf("component %s: %s", name, reason)
		s.table.Stopping = true
	}
}

// timers does what is due.
func (s *step) timers() {
	for _, c := range s.plan.Components {
		m := s.table.Members[c.Name]
		if due := m.due(); due.IsZero() || s.now.Before(due) {
			continue
		}
		switch m.State {
		case BackingOff:
			s.want(m, "its back-off is over")
		case Starting:
			if s.table.Stopping {
				continue // it has its turn in the order of the stop
			}
			m.cause = fmt.Sprintf("not ready within %s: %s", c.StartTimeout, m.Reason)
			s.stop(c.Name, m, m.cause)
		case Stopping:
			s.kill(c.Name, m)
		}
	}
}

// startDue starts what waits and may start, and tells the others what they wait
// for.
func (s *step) startDue() {
	for _, c := range s.plan.Components {
		m := s.table.Members[c.Name]
		if m.State != Waiting {
			continue
		}
		m.NextStart = time.Time{}
		blockers := s.plan.blockers(s.table, c)
		if len(blockers) == 0 {
			s.start(c, m)
			continue
		}
		m.Reason = "waiting for " + strings.Join(s.described(blockers), ", ")
	}
}

// described adds to each name why it is not ready.
func (s *step) described(names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		m := s.table.Members[name]
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

// unwind stops the last component that still has a process; the one before it
// has its turn when that is gone.
func (s *step) unwind() {
	for i := len(s.plan.Components) - 1; i >= 0; i-- {
		c := s.plan.Components[i]
		m := s.table.Members[c.Name]
		m.NextStart = time.Time{}
		switch {
		case m.alive() && m.State == Stopping:
			return
		case m.alive():
			s.stop(c.Name, m, "the supervisor is stopping")
			return
		}
		s.enter(m, Stopped, "")
	}
	s.table.Over = true
}

// clocks halts the start time-out of whoever cannot help it: the cause lies
// outside this machine, or with another component that is not ready.
func (s *step) clocks() {
	for _, m := range s.table.Members {
		if m.State != Starting {
			continue
		}
		halted := s.table.Stopping || m.external || s.heldUp(m)
		if halted && !m.clock.IsZero() {
			m.left -= s.now.Sub(m.clock)
			m.clock = time.Time{}
		} else if !halted && m.clock.IsZero() {
			m.clock = s.now
		}
	}
}

func (s *step) heldUp(m *Member) bool {
	for _, name := range m.waitingFor {
		if other, ok := s.table.Members[name]; ok && other.State != Ready {
			return true
		}
	}
	return false
}

func (s *step) component(name string) Component {
	for _, c := range s.plan.Components {
		if c.Name == name {
			return c
		}
	}
	return Component{Name: name}
}
