package exec

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// maxStart is how large a start may be, as every message of a stream.
const maxStart = 64 << 10

// checkStart says what is wrong with the first message of a session beside what its rules say.
func checkStart(req *sandboxhostv1.ExecRequest) error {
	start := req.GetStart()
	switch {
	case start == nil:
		return fault.New(fault.Invalid, "the first message is no start")
	case proto.Size(start) > maxStart:
		return fault.New(fault.Invalid, "start: it has %d bytes, and may have %d; give long text by standard input or as a file", proto.Size(start), maxStart)
	case start.GetCommand()[0] == "":
		return fault.New(fault.Invalid, "start.command[0]: it is empty; write the program")
	case start.GetDetach() && (start.GetStdin() || start.GetTerminal() != nil):
		return fault.New(fault.Invalid, "start: what is detached has neither input nor terminal; leave out stdin and terminal, or detach")
	}
	return nil
}

// place is where a process is to run.
type place struct {
	uid         id.Sandbox
	containerID string
	attempt     uint64
}

// placeOf finds the container that is meant, which must run.
func placeOf(state *sandboxhostv1.SandboxState, name string) (place, error) {
	name, err := host.ContainerOf(state, name)
	if err != nil {
		return place{}, err
	}
	status := state.GetStatus()
	uid := id.Sandbox(state.GetUid())
	at := place{uid, engine.ContainerID(uid, name, status.GetAttempt()), status.GetAttempt()}
	for _, c := range status.GetContainers() {
		if c.GetName() == name && c.GetPid() != 0 && c.GetExit() == nil {
			return at, nil
		}
	}
	why := status.GetMessage()
	if why != "" {
		why = ": " + why
	}
	return place{}, fault.WithReason(fault.New(fault.Conflict, "sandbox %s: container %s does not run, its phase is %s%s",
		state.GetName(), name, strings.TrimPrefix(status.GetPhase().String(), "SANDBOX_PHASE_"), why), reasonNotRunning)
}

// besideOf is what the engine is asked for.
func besideOf(at place, start *sandboxhostv1.ExecStart) engine.Beside {
	b := engine.Beside{
		UID: at.uid, ContainerID: at.containerID, Args: start.GetCommand(), Env: start.GetEnv(), User: start.GetUser(),
		Dir: start.GetWorkingDir(), Stdin: start.GetStdin(), Detached: start.GetDetach(),
	}
	if t := start.GetTerminal(); t != nil {
		size := sizeOf(t)
		b.Terminal = &size
	}
	return b
}

func sizeOf(t *sandboxhostv1.TerminalSize) engine.TerminalSize {
	return engine.TerminalSize{Columns: uint16(t.GetColumns()), Rows: uint16(t.GetRows())} // bounded by the contract
}

// reasonOf says in a few words why a container has ended under a process of it.
func reasonOf(state *sandboxhostv1.SandboxState, err error) string {
	switch {
	case err != nil, state.GetStatus().GetTornDownAt() != nil, state.GetRemoving():
		return "its sandbox was removed"
	case state.GetHeld():
		return "its node is drained"
	case state.GetStatus().GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING:
		return "its sandbox was stopped"
	}
	return "its container ended"
}
