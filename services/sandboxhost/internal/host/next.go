package host

import (
	"slices"

	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Next decides. It touches nothing and knows no time, so its tests are the
// specification of a sandbox's life:
//
//	PENDING    waits for its turn or for the end of a back-off
//	PREPARING  images, namespaces, network
//	STARTING   each init container in the order of the spec, one after the other,
//	           to its end with code 0; then each of the others: create, start
//	RUNNING    all were started; one that ends is written down
//	STOPPING   pre-stop command and stop signal in reverse order, each after the one
//	           before has ended; after its grace period each is killed; then removed
//	STOPPED, FAILED  nothing is left but record and output
//
// When a container ends by itself and the restart policy says restart, the others
// are stopped and a new attempt begins after a back-off; else the others go on
// until all have ended. A startup or liveness probe that says no ends the attempt as
// such an end does. The wish for another spec ends an attempt as well, and so
// does a hold, under which no other begins.
//
// While the shim does not answer nothing is asked of it: what runs goes on. An attempt
// that starts ends with that when it lasts; one that is to end has its grace period, and
// then the shim is ended by force.
func Next(in Input) Decision {
	if slices.ContainsFunc(in.Observed.Containers, unreadable) {
		return Decision{Reason: ReasonUnreadable}
	}
	if c, ok := in.exitToNote(); ok {
		return Decision{Kind: NoteExit, Container: c}
	}
	if foreign := in.ofOtherAttempts(); len(foreign) > 0 {
		return in.clear(foreign)
	}
	if in.Record.GetStatus().GetPhase() >= stopping {
		return in.windDown()
	}
	if end, reason := in.mustEnd(); end != endNone {
		return Decision{Kind: Enter, Phase: stopping, End: end, Reason: reason}
	}
	return in.bringUp()
}

// mustEnd says why the current attempt has to end, or endNone.
func (in Input) mustEnd() (sandboxhostv1.AttemptEnd, string) {
	status := in.Record.GetStatus()
	switch {
	case in.Record.GetRemoving():
		return endAsked, ReasonRemoved
	case in.Record.GetWish().GetSpec().GetDesired() != resourcev1.DesiredState_DESIRED_STATE_RUNNING:
		return endAsked, ReasonStopped
	case in.CutOff:
		return endAsked, ReasonDisconnected
	case in.Held:
		return endHeld, ReasonHeld
	case in.Record.GetAttemptSpecHash() != in.SpecHash:
		return endReplaced, ReasonReplaced
	case in.Failed:
		return endFailed, ReasonStepFailed
	case allEnded(in.Record) || initFailed(in.Record) || restarts(in.Record):
		return endExited, ReasonExited
	case in.Unhealthy && status.GetPhase() == running:
		return endUnhealthy, ReasonUnhealthy
	case status.GetPhase() < running && in.Observed.Silent && in.SilentOver:
		return endFailed, ReasonShimSilent
	case status.GetPhase() == starting && len(in.Observed.Containers) > 0 && !in.Observed.Namespaces:
		return endFailed, ReasonNamespacesLost
	}
	return endNone, ""
}

// bringUp takes an attempt that should run one step on.
func (in Input) bringUp() Decision {
	phase := in.Record.GetStatus().GetPhase()
	if phase < preparing {
		switch {
		case in.Wait != "":
			return Decision{Reason: in.Wait}
		case !in.BackoffOver:
			return Decision{Reason: ReasonBackoff}
		}
		return Decision{Kind: Enter, Phase: preparing}
	}
	name, c, missing := in.firstMissing()
	switch {
	case !missing && phase < running:
		return Decision{Kind: Enter, Phase: running}
	case !missing && in.networkLost():
		return act(engine.StepNetwork)
	case !missing:
		return in.settled()
	case in.Wait != "": // adopted in a later phase than it waits in
		return Decision{Reason: in.Wait}
	case !in.ImagesReady:
		return act(engine.StepImages)
	case !in.Observed.Namespaces:
		return act(engine.StepNamespaces)
	case !hostNetwork(in.Record) && len(in.Observed.Addresses) == 0:
		return act(engine.StepNetwork)
	case phase < starting:
		return Decision{Kind: Enter, Phase: starting}
	}
	if in.Observed.Silent {
		return Decision{Reason: ReasonShimSilent}
	}
	if c.State == engine.Running { // an init container: what follows waits for its end
		return Decision{Reason: ReasonInitializing}
	}
	step := engine.StepCreate
	if c.State == engine.Created && c.Task {
		step = engine.StepStart
	}
	id := engine.ContainerID(in.Observed.UID, name, in.Record.GetStatus().GetAttempt())
	return Decision{Kind: Act, Action: engine.Action{Step: step, Container: name, ContainerID: id}}
}

// settled keeps what runs as it is wished for, and removes what is left of init
// containers.
func (in Input) settled() Decision {
	if in.Observed.Silent {
		return Decision{Reason: ReasonShimSilent}
	}
	for _, c := range in.Observed.Containers {
		name := c.Note.GetContainer()
		spec := in.wished(name)
		switch {
		case c.State == engine.Running && !sameLimits(spec.GetLimits(), c.Limits):
			return Decision{Kind: Act, Action: engine.Action{Step: engine.StepLimits, Container: name, ContainerID: c.ID}}
		case c.State != engine.Running && spec.GetInit():
			return Decision{Kind: Act, Action: engine.Action{Step: engine.StepDelete, Container: name, ContainerID: c.ID}}
		}
	}
	if !in.Observed.Namespaces { // nothing can be pinned again that only its processes hold
		return Decision{Reason: ReasonUnpinned}
	}
	return Decision{}
}

// networkLost says that somebody took the interface of a sandbox away that can have
// it back.
func (in Input) networkLost() bool {
	return !hostNetwork(in.Record) && in.Observed.Namespaces && len(in.Observed.Addresses) == 0
}

// windDown removes the containers of an attempt that ends or has ended, gives
// back what it used, and says what comes after.
func (in Input) windDown() Decision {
	if len(in.Observed.Containers) > 0 {
		return in.clear(in.Observed.Containers)
	}
	again, backoff := in.again()
	// A plain restart keeps namespaces and address for the attempt that follows.
	end := in.Record.GetEnd()
	keep := again && (end == endExited || end == endUnhealthy) && in.Record.GetAttemptSpecHash() == in.SpecHash
	status := in.Record.GetStatus()
	switch {
	case !keep && !in.Observed.Empty():
		return act(engine.StepRelease)
	case again:
		return Decision{Kind: Begin, Backoff: backoff}
	case status.GetPhase() < stopped:
		return Decision{Kind: Enter, Phase: in.result(), Reason: status.GetReason()}
	case !in.Record.GetRemoving():
		return Decision{Reason: status.GetReason()}
	case in.Observed.Logs:
		return act(engine.StepLogs)
	case status.GetTornDownAt() == nil:
		return Decision{Kind: TornDown}
	}
	return Decision{Reason: status.GetReason()}
}

// again says whether another attempt follows this one, and whether after a
// back-off.
func (in Input) again() (again, backoff bool) {
	wanted := !in.Record.GetRemoving() && !in.CutOff && !in.Held &&
		in.Record.GetWish().GetSpec().GetDesired() == resourcev1.DesiredState_DESIRED_STATE_RUNNING
	never := policy(in.Record) == resourcev1.RestartPolicy_RESTART_POLICY_NEVER
	switch end := in.Record.GetEnd(); {
	case !wanted:
		return false, false
	case in.Record.GetAttemptSpecHash() != in.SpecHash, end == endAsked, end == endReplaced:
		return true, false
	case end == endReboot, end == endHeld:
		return !never || !anyStarted(in.Record), false
	case end == endFailed, end == endUnhealthy:
		return !never, true
	}
	return restarts(in.Record), true
}

// result is the last phase of an attempt.
func (in Input) result() resourcev1.SandboxPhase {
	end := in.Record.GetEnd()
	switch {
	case end == endAsked, end == endReplaced, end == endHeld, end == endExited && !anyFailed(in.Record):
		return stopped
	}
	return failed
}

func act(step engine.Step) Decision {
	return Decision{Kind: Act, Action: engine.Action{Step: step}}
}
