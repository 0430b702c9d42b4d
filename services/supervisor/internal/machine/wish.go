package machine

import (
	"cmp"
	"time"
)

// The reasons that an operator gives.
const (
	restartAsked = "restart asked for"
	stopAsked    = "stopped by an operator"
	startAsked   = "start asked for"
)

// asked does what an operator wants of one component. What was asked for before
// counts no more.
func (s *step) asked(e Event, m *Member) {
	if s.table.Stopping {
		return
	}
	switch e.Kind {
	case RestartAsked:
		if e.PID == 0 || e.PID == m.PID {
			s.restart(e.Name, m, cmp.Or(e.Reason, restartAsked))
		}
	case StopOneAsked:
		s.hold(e.Name, m)
	case StartOneAsked:
		if m.State == Stopped {
			s.want(m, startAsked)
		}
	}
}

// restart never makes a second process: one that lives is stopped first, and the
// wait of a back-off is cut short without forgetting its count.
func (s *step) restart(name string, m *Member, reason string) {
	switch m.State {
	case Starting, Ready, NotReady:
		m.again = true
		s.stop(name, m, reason)
	case BackingOff, Stopped:
		s.want(m, reason)
	}
}

// hold stops a component in whatever state it is. One that is stopping already
// goes on, and does not come back.
func (s *step) hold(name string, m *Member) {
	m.held, m.again = true, false
	switch m.State {
	case Starting, Ready, NotReady:
		s.stop(name, m, stopAsked)
	case Stopping:
		m.Reason = stopAsked
	case Waiting, BackingOff:
		m.NextStart = time.Time{}
		s.enter(m, Stopped, stopAsked)
	}
}
