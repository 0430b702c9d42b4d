package host

import (
	"syscall"

	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Short names for what Next speaks of.
const (
	pending   = resourcev1.SandboxPhase_SANDBOX_PHASE_PENDING
	preparing = resourcev1.SandboxPhase_SANDBOX_PHASE_PREPARING
	starting  = resourcev1.SandboxPhase_SANDBOX_PHASE_STARTING
	running   = resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	stopping  = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING
	stopped   = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	failed    = resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED

	endNone     = sandboxhostv1.AttemptEnd_ATTEMPT_END_UNSPECIFIED
	endAsked    = sandboxhostv1.AttemptEnd_ATTEMPT_END_ASKED
	endReplaced = sandboxhostv1.AttemptEnd_ATTEMPT_END_REPLACED
	endExited   = sandboxhostv1.AttemptEnd_ATTEMPT_END_EXITED
	endFailed   = sandboxhostv1.AttemptEnd_ATTEMPT_END_FAILED
	endReboot   = sandboxhostv1.AttemptEnd_ATTEMPT_END_REBOOT
	endHeld     = sandboxhostv1.AttemptEnd_ATTEMPT_END_HELD

	endUnhealthy = sandboxhostv1.AttemptEnd_ATTEMPT_END_UNHEALTHY
)

// Kind says what a Decision asks for.
type Kind int

// The kinds of decisions. All but Rest and Act are changes of the record.
const (
	// Rest: nothing to do until something changes. Reason may say why.
	Rest Kind = iota
	// Act: let the engine do Action.
	Act
	// NoteExit: write down how Container ended, before it is removed.
	NoteExit
	// Enter: go on to Phase; when it is STOPPING, because of End.
	Enter
	// Begin: begin the next attempt, after a back-off if Backoff.
	Begin
	// TornDown: write down that nothing is left.
	TornDown
)

// Decision is the one next thing to do for a sandbox.
type Decision struct {
	Kind      Kind
	Action    engine.Action
	Container engine.Container
	Phase     resourcev1.SandboxPhase
	End       sandboxhostv1.AttemptEnd
	Backoff   bool
	Reason    string
}

// Input is all that a decision depends on: what is wished and written down, what
// is observed, and what the keeper alone knows.
type Input struct {
	// Record holds the wish and the durable facts. It is not changed.
	Record *sandboxhostv1.SandboxRecord
	// SpecHash is the hash of the wish's spec.
	SpecHash string
	// Observed is what there is.
	Observed engine.Observed
	// CutOff is true when the disconnect policy wants the sandbox stopped.
	CutOff bool
	// Held is true while a hold applies: it is kept stopped whatever its wish says.
	Held bool
	// Wait is the reason why an attempt may not begin yet. Empty if it may.
	Wait string
	// BackoffOver is true when no back-off is going on.
	BackoffOver bool
	// ImagesReady is true when the images of this spec are known to be present.
	ImagesReady bool
	// Failed is true when a step of this attempt cannot succeed.
	Failed bool
	// Unhealthy is true when a startup or liveness probe of this attempt says no.
	Unhealthy bool
	// SilentOver is true when the shim has not answered for longer than it may.
	SilentOver bool
	// GraceOver has the ids of containers that are ended by force now: their grace
	// period has passed since their stop began, or the deadline of a hold is over.
	GraceOver map[string]bool
	// Noted has the ids of containers whose exit this keeper wrote down.
	Noted map[string]bool
	// Signalled has the last signal sent, by id of the container.
	Signalled map[string]syscall.Signal
}
