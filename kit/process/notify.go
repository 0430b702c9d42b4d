package process

import (
	"context"
	"runtime/debug"
	"strings"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"

	"staddle.internal/kit/logging"
	"staddle.internal/kit/run"
)

// notifier is the first member: it tells each change of the status to whoever
// supervises, and writes the line of each change of state.
func (p *Process) notifier() run.Member {
	return run.Member{Name: "notifier", Run: func(ctx context.Context, ready func()) error {
		ready()
		last := p.Status.Get()
		for {
			changed := p.Status.Changed()
			now := p.Status.Get()
			p.tell(last, now)
			last = now
			select {
			case <-changed:
			case <-ctx.Done():
				p.tell(last, p.Status.Get())
				return context.Cause(ctx)
			}
		}
	}}
}

// tell logs and notifies the step from one status to the next.
func (p *Process) tell(last, now *processv1.GetStatusResponse) {
	if last.GetState() != now.GetState() {
		p.Log.Info("state changed", logging.From(stateName(last.GetState())), logging.To(stateName(now.GetState())), logging.Reason(now.GetReason()))
	}
	if last.GetState() == processv1.ProcessState_PROCESS_STATE_STARTING && now.GetState() == processv1.ProcessState_PROCESS_STATE_READY {
		debug.FreeOSMemory() // what the start alone needed
	}
	if err := p.FDs.Notify(message(now)); err != nil {
		p.Log.Warn("supervisor not notified", logging.Err(err))
	}
}

// message is what the manager is told. READY=1 again after the first is allowed
// and does nothing.
func message(st *processv1.GetStatusResponse) string {
	status := "STATUS=" + strings.ReplaceAll(st.GetReason(), "\n", " ")
	switch st.GetState() {
	case processv1.ProcessState_PROCESS_STATE_READY:
		return "READY=1\nSTATUS=ready"
	case processv1.ProcessState_PROCESS_STATE_STOPPING:
		return "STOPPING=1\n" + status
	}
	return status
}

func stateName(s processv1.ProcessState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "PROCESS_STATE_"))
}
