package agent

import (
	"maps"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Step is what to do about one sandbox.
type Step int

// The steps.
const (
	// StepNone does nothing: it is as it should be, or too little is known.
	StepNone Step = iota
	// StepEnsure hands the wish to the host.
	StepEnsure
	// StepRemove ends the wish: its record says that it is being deleted.
	StepRemove
	// StepBury makes sure that a record which is being deleted, and of which the
	// host holds nothing, never starts here, and reports it as torn down.
	StepBury
	// StepConfirmRemove ends the wish if the coordinator itself says that the
	// record is gone: absence from the mirror only nominates.
	StepConfirmRemove
	// StepConfirmForget drops a sandbox that is torn down, under the same proviso.
	StepConfirmForget
)

// String is the name of the step in logs.
func (s Step) String() string {
	switch s {
	case StepEnsure:
		return "ensure"
	case StepRemove:
		return "remove"
	case StepBury:
		return "bury"
	case StepConfirmRemove:
		return "confirm-remove"
	case StepConfirmForget:
		return "confirm-forget"
	case StepNone:
	}
	return "none"
}

// Input is all that a decision about one sandbox rests on.
type Input struct {
	// Node is the name of this node.
	Node string
	// Record is the sandbox's record in the mirror, nil if there is none.
	Record *resourcev1.Resource
	// Live says that the mirror is complete and kept up to date right now, and has
	// said so since the record changed.
	Live bool
	// Position is where in the history the mirror, with the record, is; nil if that
	// is not known.
	Position *resourcev1.Position
	// Foreign says that the mirror's history does not contain the position of the
	// host's wish: it proves nothing about it.
	Foreign bool
	// Host is the sandbox as the host holds it, nil if it holds none.
	Host *sandboxhostv1.SandboxState
	// HostKnown says that the host was heard: only then is a nil Host an answer.
	HostKnown bool
}

// Decision is what to do, and whether the host's status has to be reported.
type Decision struct {
	// Step to take.
	Step Step
	// Report says that the host's status is newer than the one in the record.
	Report bool
}

// reasonWaiting is the host's word for a wish that, after a reboot, needs a live
// snapshot that names it.
const reasonWaiting = "WAITING_FOR_CLUSTER"

// Decide says what to do about one sandbox. It rests on three rules: nothing is
// done on a mirror that is not live; a missing record is not yet a record that is
// gone; and one of which the coordinator's history does not know proves nothing.
// A record that is being deleted never was otherwise later in any history, so it
// counts in each.
func Decide(in Input) Decision {
	if !in.HostKnown {
		return Decision{}
	}
	if in.Record == nil {
		return Decision{Step: absent(in)}
	}
	if in.elsewhere() {
		return Decision{} // not ours to touch
	}
	sandbox := in.Record.GetSandbox()
	d := Decision{Report: in.Host.GetStatus().GetSeq() > sandbox.GetStatus().GetSeq()}
	if in.Live {
		d.Step = present(in)
	}
	return d
}

// elsewhere says that the record is another node's, or nobody's yet.
func (in Input) elsewhere() bool {
	return in.Record != nil && in.Record.GetSandbox().GetPlacement().GetNode() != in.Node
}

// absent decides about a sandbox without a record.
func absent(in Input) Step {
	switch {
	case in.Host == nil, !in.Live, in.Foreign:
		return StepNone
	case !in.Host.GetRemoving():
		return StepConfirmRemove
	case in.Host.GetStatus().GetTornDownAt() != nil:
		return StepConfirmForget
	}
	return StepNone // it is being removed
}

// present decides about a sandbox whose record is ours, on a live mirror.
func present(in Input) Step {
	if in.Record.GetMeta().GetDeletingAt() != nil {
		return deleting(in)
	}
	switch {
	case in.Host == nil:
		return StepEnsure
	case in.Host.GetRemoving():
		return StepNone // a removal is never taken back
	case in.Host.GetGeneration() < in.Record.GetMeta().GetGeneration(), waits(in.Host), unplaced(in), relabelled(in):
		return StepEnsure
	}
	return StepNone
}

// relabelled says that the same wish has other labels now.
func relabelled(in Input) bool {
	return in.Host.GetGeneration() == in.Record.GetMeta().GetGeneration() && !maps.Equal(in.Host.GetLabels(), in.Record.GetMeta().GetLabels())
}

// unplaced says that the same wish has no position yet, and that there is one now.
func unplaced(in Input) bool {
	return in.Host.GetPosition() == nil && in.Position != nil && in.Host.GetGeneration() == in.Record.GetMeta().GetGeneration()
}

// deleting decides about a sandbox whose record is to go.
func deleting(in Input) Step {
	switch {
	case in.Host == nil && in.Record.GetSandbox().GetStatus().GetTornDownAt() == nil:
		return StepBury
	case in.Host != nil && !in.Host.GetRemoving():
		return StepRemove
	}
	return StepNone
}

func waits(host *sandboxhostv1.SandboxState) bool {
	return host.GetStatus().GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_PENDING &&
		host.GetStatus().GetReason() == reasonWaiting
}
