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

// asked does what an operator wants of the component. What was asked for before
// counts no more.
func (l life) asked(e Event) {
	if l.stopping {
		return
	}
	switch e.Kind {
	case RestartAsked:
		if e.PID == 0 || e.PID == l.m.PID {
			l.restart(cmp.Or(e.Reason, restartAsked))
		}
	case StopOneAsked:
		l.hold()
	case StartOneAsked:
		if l.m.State == Stopped {
			l.want(startAsked)
		}
	}
}

// restart never makes a second process: one that lives is stopped first, and the
// wait of a back-off is cut short without forgetting its count.
func (l life) restart(reason string) {
	switch l.m.State {
	case Starting, Ready, NotReady:
		l.m.again = true
		l.stop(reason)
	case BackingOff, Stopped:
		l.want(reason)
	}
}

// hold stops the component in whatever state it is. One that is stopping already
// goes on, and does not come back.
func (l life) hold() {
	l.m.held, l.m.again = true, false
	switch l.m.State {
	case Starting, Ready, NotReady:
		l.stop(stopAsked)
	case Stopping:
		l.m.Reason = stopAsked
	case Waiting, BackingOff:
		l.m.NextStart = time.Time{}
		l.enter(Stopped, stopAsked)
	}
}
