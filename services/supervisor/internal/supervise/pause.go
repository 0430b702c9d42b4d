package supervise

import (
	"context"
	"time"

	"staddle.internal/kit/fault"

	"staddle.internal/services/supervisor/internal/machine"
)

// PulsePeriod is how often the loop turns although nothing happens, so that one
// that is stuck can be told from one that is idle.
const PulsePeriod = 5 * time.Second

// pause is a wish to do something while the loop stands still.
type pause struct {
	f     func(machine.Table) error
	reply chan error
}

// Pause calls f from the loop itself, between two events: nothing is started,
// ended or decided meanwhile, and what happens waits for its turn. f must be quick.
// It returns what f does, and Unavailable if the loop has ended.
func (l *Loop) Pause(ctx context.Context, f func(machine.Table) error) error {
	p := pause{f: f, reply: make(chan error, 1)}
	select {
	case l.pauses <- p:
		return <-p.reply
	case <-l.done:
		return fault.New(fault.Unavailable, "pause: the supervisor has stopped")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Resume has the loop begin with the table and the history from before a re-exec,
// instead of ones in which nothing has happened. Call it before Run.
func (l *Loop) Resume(t machine.Table, h *History) { l.table, l.history = t, h }

// resumeProbes asks the processes that were there before Run.
func (l *Loop) resumeProbes(ctx context.Context) {
	for name, m := range l.Table().Members {
		if m.PID != 0 {
			l.beginProbe(ctx, name, m.PID)
		}
	}
}

// Lost has a process started again that cannot be reached any more.
func (l *Loop) Lost(name string, pid int, reason string) {
	l.post(machine.Event{Kind: machine.RestartAsked, Name: name, PID: pid, Reason: reason})
}
