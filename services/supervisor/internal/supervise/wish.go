package supervise

import (
	"context"

	"staddle.internal/kit/fault"

	"staddle.internal/services/supervisor/internal/machine"
)

// wish is what an operator wants of one component.
type wish struct {
	kind  machine.EventKind
	name  string
	pid   int // that must go before the answer; 0 for none
	reply chan error
}

// Restart has a component begin anew and returns once its old process is gone. It
// returns the kinds that the contract names.
func (l *Loop) Restart(ctx context.Context, name string) error {
	return l.ask(ctx, machine.RestartAsked, "restart", name)
}

// Stop keeps a component stopped until Start or Restart, and returns once its
// process is gone. It returns the kinds that the contract names.
func (l *Loop) Stop(ctx context.Context, name string) error {
	return l.ask(ctx, machine.StopOneAsked, "stop", name)
}

// Start lifts Stop and waits for nothing. It returns the kinds that the contract
// names.
func (l *Loop) Start(ctx context.Context, name string) error {
	return l.ask(ctx, machine.StartOneAsked, "start", name)
}

func (l *Loop) ask(ctx context.Context, kind machine.EventKind, verb, name string) error {
	w := wish{kind: kind, name: name, reply: make(chan error, 1)}
	over := fault.New(fault.Unavailable, "%s component %s: the supervisor has stopped", verb, name)
	select {
	case l.asked <- w:
	case <-l.done:
		return over
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-w.reply:
		return err
	case <-l.done:
		return over
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wish checks what is wanted, has it done, and remembers who waits for it.
func (l *Loop) wish(ctx context.Context, w wish) {
	table := l.Table()
	if err := possible(table, w); err != nil {
		w.reply <- err
		return
	}
	if w.kind != machine.StartOneAsked {
		w.pid = table.Members[w.name].PID
	}
	l.waiters = append(l.waiters, w)
	l.step(ctx, machine.Event{Kind: w.kind, Name: w.name})
}

func possible(t machine.Table, w wish) error {
	switch w.kind {
	case machine.StopOneAsked:
		return t.CanStop(w.name)
	case machine.StartOneAsked:
		return t.CanStart(w.name)
	}
	return t.CanRestart(w.name)
}

// answer tells all whose wish is fulfilled.
func (l *Loop) answer(t machine.Table) {
	var left []wish
	for _, w := range l.waiters {
		if w.pid != 0 && t.Members[w.name].PID == w.pid {
			left = append(left, w)
			continue
		}
		w.reply <- nil
	}
	l.waiters = left
}
