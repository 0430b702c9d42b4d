package exec

import (
	"context"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/logs"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// MaxAttached is how many callers may be attached to one sandbox.
	MaxAttached = 64
	// usualTail and mostTail are how much of what was written before is shown to one who says
	// nothing about it: lines, and bytes in any case.
	usualTail, mostTail = 100, 64 << 10
)

// The reasons that are also looked for.
const reasonNotRunning, reasonExitUnknown = "NOT_RUNNING", "EXIT_UNKNOWN"

// life is one of a container's main process.
type life struct {
	place
	container string
	terminal  bool
	over      bool // its end is known
}

// checkAttach says what is wrong with a start beside what its rules say.
func checkAttach(start *sandboxhostv1.AttachStart) error {
	switch {
	case start == nil:
		return fault.New(fault.Invalid, "the first message is no start")
	case start.GetFrom() != nil && start.TailLines != nil:
		return fault.New(fault.Invalid, "start: from says where to begin, and tail_lines too; leave out one")
	case start.GetInputId() != "" && !start.GetStdin():
		return fault.New(fault.Invalid, "start.input_id: there is no input; set stdin, or leave it out")
	case start.GetResumed() && start.GetInputId() == "":
		return fault.New(fault.Invalid, "start.resumed: nothing says which input; set input_id")
	}
	return nil
}

// lifeOf finds the life that is meant: the one that runs, or the one that start.from names.
func lifeOf(state *sandboxhostv1.SandboxState, start *sandboxhostv1.AttachStart) (life, error) {
	name, err := host.ContainerOf(state, start.GetContainer())
	if err != nil {
		return life{}, err
	}
	spec := specOf(state, name)
	if start.GetStdin() && !spec.GetStdin() {
		return life{}, fault.WithReason(fault.New(fault.Invalid,
			"sandbox %s: container %s has no standard input: its spec does not say stdin", state.GetName(), name), "NO_STDIN")
	}
	found := life{container: name, terminal: spec.GetTty()}
	uid := id.Sandbox(state.GetUid())
	if attempt := start.GetFrom().GetAttempt(); attempt != 0 {
		found.place = place{uid, engine.ContainerID(uid, name, attempt), attempt}
		if exitOf(state.GetStatus(), found) != nil {
			found.over = true
			return found, nil
		}
		if attempt != state.GetStatus().GetAttempt() {
			return life{}, fault.WithReason(fault.New(fault.Conflict, "sandbox %s: container %s does not run in attempt %d, and nothing is known of its end then",
				state.GetName(), name, attempt), reasonNotRunning)
		}
	}
	found.place, err = placeOf(state, name)
	return found, err
}

func specOf(state *sandboxhostv1.SandboxState, name string) *resourcev1.ContainerSpec {
	for _, c := range state.GetSpec().GetContainers() {
		if c.GetName() == name {
			return c
		}
	}
	return nil
}

// exitOf is how a life has ended, nil if that is not known.
func exitOf(status *resourcev1.SandboxStatus, of life) *resourcev1.ContainerExit {
	for _, c := range status.GetContainers() {
		if c.GetName() == of.container && status.GetAttempt() == of.attempt && c.GetExit() != nil {
			return c.GetExit()
		}
	}
	for _, e := range status.GetExits() {
		if e.GetContainer() == of.container && e.GetAttempt() == of.attempt {
			return e
		}
	}
	return nil
}

// reading says what of the output of a life is wanted.
func reading(of life, start *sandboxhostv1.AttachStart) (logs.Position, logs.Mode) {
	at := logs.Position{UID: of.uid, Container: of.container, Attempt: of.attempt, Stdout: true, Stderr: true}
	mode := logs.Mode{Follow: true, Tail: usualTail, MaxTail: mostTail}
	if from := start.GetFrom(); from != nil {
		at.StdoutOffset, at.StderrOffset = from.GetStdoutOffset(), from.GetStderrOffset()
		mode.Tail, mode.MaxTail = -1, 0
	} else if start.TailLines != nil {
		mode.Tail = int(start.GetTailLines())
	}
	return at, mode
}

// holder is the session whose input a container gets.
type holder struct {
	id   string
	end  context.CancelCauseFunc
	gone chan struct{} // closed when it has let go
}

// errTakenOver ends a session whose input goes on in another one.
var errTakenOver = fault.WithReason(fault.New(fault.Conflict, "another call goes on with this input"), "INPUT_TAKEN")

// claim makes a session the one whose input a container gets, until release. One that still
// has the same input is ended: its caller has lost it.
func (s *Server) claim(
	ctx context.Context, containerID string, start *sandboxhostv1.AttachStart, end context.CancelCauseFunc,
) (release func(), err error) {
	mine := &holder{start.GetInputId(), end, make(chan struct{})}
	for {
		now := s.tryClaim(containerID, mine)
		if now == mine {
			return func() { s.release(containerID, mine) }, nil
		}
		if !start.GetResumed() || now.id != mine.id {
			return nil, fault.WithReason(fault.New(fault.Conflict,
				"container %s: somebody else is attached with input; leave out stdin to watch", containerID), "INPUT_TAKEN")
		}
		now.end(errTakenOver)
		if err := await(ctx, now.gone); err != nil {
			return nil, err
		}
	}
}

// tryClaim returns who has the input then.
func (s *Server) tryClaim(containerID string, mine *holder) *holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now, taken := s.inputs[containerID]; taken {
		return now
	}
	s.inputs[containerID] = mine
	return mine
}

func (s *Server) release(containerID string, mine *holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inputs, containerID)
	close(mine.gone)
}
