package host

import (
	"slices"
	"syscall"
	"time"

	"staddle.internal/services/sandboxhost/internal/engine"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// clear ends and removes containers, the last of the spec first.
func (in Input) clear(containers []engine.Container) Decision {
	containers = in.inReverse(containers)
	if in.shimToEnd(containers) {
		return act(engine.StepEndShim)
	}
	alive := false
	for _, c := range containers {
		if c.State != engine.Running {
			continue
		}
		alive = true
		if d, ok := in.end(c); ok {
			return d
		}
		if !in.GraceOver[c.ID] {
			break // the one before waits until this one has ended
		}
	}
	if alive {
		return Decision{Reason: in.Record.GetStatus().GetReason()}
	}
	if in.Observed.Silent { // it would not answer
		return Decision{Reason: in.Record.GetStatus().GetReason()}
	}
	c := containers[0]
	return Decision{Kind: Act, Action: engine.Action{
		Step: engine.StepDelete, Container: c.Note.GetContainer(), ContainerID: c.ID,
	}}
}

// shimToEnd says that nothing but an end by force of their shim helps against
// containers that are to go: it has not answered for too long, and those that may still
// run have had all of their time.
func (in Input) shimToEnd(containers []engine.Container) bool {
	return in.Observed.Silent && in.SilentOver && !slices.ContainsFunc(containers, func(c engine.Container) bool {
		return c.State == engine.Running && !in.GraceOver[c.ID]
	})
}

// end is the next step of the stop of one container that runs, if there is one
// beside waiting.
func (in Input) end(c engine.Container) (d Decision, ok bool) {
	action := engine.Action{Step: engine.StepSignal, Container: c.Note.GetContainer(), ContainerID: c.ID}
	switch {
	case in.GraceOver[c.ID]:
		action.Signal = syscall.SIGKILL
	case c.Made().GetPreStop() != nil && !stopOf(in.Record, c.ID).GetPreStopOver():
		action.Step = engine.StepPreStop
	default:
		action.Signal = engine.StopSignal(c.Note)
	}
	if action.Step == engine.StepSignal && in.Signalled[c.ID] == action.Signal {
		return Decision{}, false
	}
	return Decision{Kind: Act, Action: action}, true
}

// stopOf is how far the stop of a container has come, nil if it has not begun.
func stopOf(r *sandboxhostv1.SandboxRecord, containerID string) *sandboxhostv1.ContainerStop {
	for _, s := range r.GetStops() {
		if s.GetContainerId() == containerID {
			return s
		}
	}
	return nil
}

// beginStop notes that the stop of a container begins, unless that is noted.
func beginStop(r *sandboxhostv1.SandboxRecord, containerID string, at moment) {
	if stopOf(r, containerID) == nil {
		r.Stops = append(r.Stops, &sandboxhostv1.ContainerStop{ContainerId: containerID, BegunBoottime: at.boot()})
	}
	if r.GetStopSentBoottime() == nil {
		r.StopSentBoottime = at.boot()
	}
}

// endPreStop notes that the pre-stop command of a container is not run any more.
func endPreStop(r *sandboxhostv1.SandboxRecord, containerID string, at moment) {
	beginStop(r, containerID, at)
	stopOf(r, containerID).PreStopOver = true
}

// preStopReserve is what a pre-stop command leaves of the grace period to the signal.
const preStopReserve = 2 * time.Second

// stopEnd is when a container is ended by force, as time since boot, if that is known:
// its own grace period counts from the begin of its own stop, that of the sandbox
// from the begin of the sandbox's.
func stopEnd(r *sandboxhostv1.SandboxRecord, c engine.Container) (at time.Duration, ok bool) {
	if own := c.Made().GetTerminationGracePeriod(); own != nil {
		begun := stopOf(r, c.ID).GetBegunBoottime()
		return begun.AsDuration() + own.AsDuration(), begun != nil
	}
	return r.GetStopSentBoottime().AsDuration() + grace(r), r.GetStopSentBoottime() != nil
}

// preStopLimit is how long a pre-stop command may take that is begun or found at now.
func preStopLimit(r *sandboxhostv1.SandboxRecord, c engine.Container, now time.Duration) time.Duration {
	end, _ := stopEnd(r, c)
	whole := grace(r)
	if own := c.Made().GetTerminationGracePeriod(); own != nil {
		whole = own.AsDuration()
	}
	return max(end-now-PreStopReserve(whole), 0)
}
