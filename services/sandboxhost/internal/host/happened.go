package host

import (
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/probe"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Reasons of events beside those of a phase.
const (
	// EventAccepted: its first wish was accepted.
	EventAccepted = "ACCEPTED"
	// EventSpecChanged: another generation of its spec was accepted.
	EventSpecChanged = "SPEC_CHANGED"
	// EventPreparing: an attempt has begun.
	EventPreparing = "PREPARING"
	// EventImagePresent: the image of a container is there.
	EventImagePresent = "IMAGE_PRESENT"
	// EventStarted: a container was started.
	EventStarted = "STARTED"
	// EventRunning: all containers were started and run.
	EventRunning = "RUNNING"
	// EventReady: it can do its work.
	EventReady = "READY"
	// EventNotReady: it runs and cannot do its work any more.
	EventNotReady = "NOT_READY"
	// EventNotLive: the liveness probe of a container says no.
	EventNotLive = "NOT_LIVE"
	// EventOOMKilled: processes of a container were ended for memory.
	EventOOMKilled = "OOM_KILLED"
	// EventAddressLost: it runs, and has not the address any more that it had.
	EventAddressLost = "ADDRESS_LOST"
	// EventStopped: nothing of it runs, as asked or since its work is done.
	EventStopped = "STOPPED"
	// EventFailed: nothing of it runs, which nobody asked for.
	EventFailed = "FAILED"
	// EventTornDown: nothing of it is left on the node.
	EventTornDown = "TORN_DOWN"
)

const (
	normal  = sandboxhostv1.EventSeverity_EVENT_SEVERITY_NORMAL
	warning = sandboxhostv1.EventSeverity_EVENT_SEVERITY_WARNING
)

// warns has the reasons of a phase or a wait that somebody should look at.
var warns = map[string]bool{
	ReasonUnreadable: true, ReasonDisconnected: true, ReasonUnhealthy: true, ReasonStepFailed: true, ReasonNamespacesLost: true,
	ReasonUnpinned: true, ReasonShimSilent: true, ReasonBackoff: true, ReasonUnseen: true, ReasonSecretMissing: true, ReasonSecretsAway: true,
}

// changed is what became of one sandbox, from one state of it to the next.
type changed struct {
	was, is *sandboxhostv1.SandboxState
	events  []*sandboxhostv1.Event
}

// happened says what happened to a sandbox between two of its states; was is nil when it
// is new. A step that fails is told of where it fails: not every failure changes the state.
func happened(was, is *sandboxhostv1.SandboxState) []*sandboxhostv1.Event {
	c := &changed{was: was, is: is}
	if was == nil {
		c.add(normal, EventAccepted, "its wish was accepted by the node")
		return c.events
	}
	if was.GetGeneration() < is.GetGeneration() {
		c.add(normal, EventSpecChanged, "another generation of its spec was accepted")
	}
	if is.GetRemoving() && !was.GetRemoving() {
		c.add(normal, ReasonRemoved, "its removal was accepted")
	}
	for _, container := range is.GetStatus().GetContainers() {
		before := &resourcev1.ContainerStatus{}
		if was.GetStatus().GetAttempt() == is.GetStatus().GetAttempt() {
			before = statusOf(was.GetStatus(), container.GetName())
		}
		c.container(before, container)
	}
	c.phase()
	if lost := lostAddress(was.GetStatus(), is.GetStatus()); lost != "" {
		c.add(warning, EventAddressLost, lost)
	}
	c.readiness()
	if is.GetStatus().GetTornDownAt() != nil && was.GetStatus().GetTornDownAt() == nil {
		c.add(normal, EventTornDown, "nothing of it is left on the node")
	}
	return c.events
}

// lostAddress says that an attempt which runs is not attached to the network any more, "" if it is
// or was not before.
func lostAddress(was, is *resourcev1.SandboxStatus) string {
	if was.GetAttempt() != is.GetAttempt() || was.GetPhase() != running || is.GetPhase() != running ||
		len(was.GetAddresses()) == 0 || len(is.GetAddresses()) > 0 {
		return ""
	}
	return "its interface or its address " + was.GetAddresses()[0] +
		" was lost; it is attached again, with another address if a sandbox that was first has this one"
}

func (c *changed) add(severity sandboxhostv1.EventSeverity, reason, message string) *sandboxhostv1.Event {
	e := eventOf(c.is, severity, reason, message)
	c.events = append(c.events, e)
	return e
}

// eventOf is an event of a sandbox.
func eventOf(s *sandboxhostv1.SandboxState, severity sandboxhostv1.EventSeverity, reason, message string) *sandboxhostv1.Event {
	return &sandboxhostv1.Event{
		Uid: s.GetUid(), Sandbox: s.GetName(), Manager: s.GetManager(), Attempt: s.GetStatus().GetAttempt(),
		Severity: severity, Reason: reason, Message: message,
	}
}

// Warn tells people what is wrong with a container of the present attempt, beside what its state says.
// Of a sandbox that is not here nothing is told.
func (h *Host) Warn(uid id.Sandbox, container, reason, message string) {
	state, err := h.Get(uid)
	if err != nil {
		return
	}
	e := eventOf(state, warning, reason, message)
	e.Container = container
	h.deps.Note(e)
}

// statusOf is the status of a container by its name, or an empty one.
func statusOf(s *resourcev1.SandboxStatus, name string) *resourcev1.ContainerStatus {
	for _, c := range s.GetContainers() {
		if c.GetName() == name {
			return c
		}
	}
	return &resourcev1.ContainerStatus{}
}

func (c *changed) container(was, is *resourcev1.ContainerStatus) {
	about := func(severity sandboxhostv1.EventSeverity, reason, message string) *sandboxhostv1.Event {
		e := c.add(severity, reason, message)
		e.Container = is.GetName()
		return e
	}
	// A further attempt is made of the same image, and is told of it at its start.
	if fresh := is.GetImageDigest(); fresh != "" && fresh != statusOf(c.was.GetStatus(), is.GetName()).GetImageDigest() {
		about(normal, EventImagePresent, "its image is "+fresh)
	}
	if is.GetStartedAt() != nil && was.GetStartedAt() == nil {
		about(normal, EventStarted, "").LastAt = is.GetStartedAt()
	}
	if gone := is.GetExit(); gone != nil && was.GetExit() == nil {
		severity := normal
		if c.is.GetStatus().GetPhase() < stopping && gone.GetCode() != 0 || gone.GetUnknown() || gone.GetOomKilled() {
			severity = warning
		}
		e := about(severity, ReasonExited, describeExit(gone))
		e.LastAt, e.Attempt = gone.GetExitedAt(), gone.GetAttempt()
	} else if is.GetOomKills() > was.GetOomKills() || is.GetOomKillsBeside() > was.GetOomKillsBeside() {
		about(warning, EventOOMKilled, "processes were ended for using more memory than the limit")
	}
	if live := conditionOf(is.GetConditions(), probe.Live); live.GetState() == no && conditionOf(was.GetConditions(), probe.Live).GetState() != no {
		about(warning, EventNotLive, live.GetReason())
	}
}

// phase tells of another phase, and of another reason to wait in one.
func (c *changed) phase() {
	was, is := c.was.GetStatus(), c.is.GetStatus()
	if was.GetAttempt() != is.GetAttempt() || was.GetPhase() != is.GetPhase() {
		switch is.GetPhase() {
		case preparing:
			c.add(normal, EventPreparing, "")
		case running:
			c.add(normal, EventRunning, "all its containers run")
		case stopped:
			c.add(normal, EventStopped, is.GetMessage())
		case failed:
			c.add(warning, EventFailed, is.GetMessage())
		default:
			c.reason()
		}
		return
	}
	// The sentence of a wait for secrets says which.
	if was.GetReason() != is.GetReason() || ofSecrets(is.GetReason()) && was.GetMessage() != is.GetMessage() {
		c.reason()
	}
}

// reason tells why the phase is what it is, but for what is told elsewhere.
func (c *changed) reason() {
	switch reason := c.is.GetStatus().GetReason(); reason {
	case "", ReasonRetrying, ReasonExited, ReasonRemoved:
	default:
		severity := normal
		if warns[reason] {
			severity = warning
		}
		c.add(severity, reason, c.is.GetStatus().GetMessage())
	}
}

// readiness tells when a sandbox that runs became ready, and when it is not any more.
func (c *changed) readiness() {
	was, is := condition(c.was.GetStatus()), condition(c.is.GetStatus())
	switch {
	case c.is.GetStatus().GetPhase() != running || was.GetState() == is.GetState():
	case is.GetState() == yes:
		c.add(normal, EventReady, "")
	case was.GetState() == yes:
		c.add(warning, EventNotReady, is.GetReason())
	}
}
