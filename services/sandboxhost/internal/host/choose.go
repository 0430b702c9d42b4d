package host

import (
	"staddle.internal/kit/fault"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// ContainerOf returns the name of the container of a sandbox that is meant: the only one
// if none is named. It is Invalid to name none of several, and NotFound to name one that
// there is not.
func ContainerOf(state *sandboxhostv1.SandboxState, name string) (string, error) {
	containers := state.GetSpec().GetContainers()
	if name == "" && len(containers) == 1 {
		return containers[0].GetName(), nil
	}
	if name == "" {
		return "", fault.New(fault.Invalid, "sandbox %s: has %d containers, name one", state.GetUid(), len(containers))
	}
	for _, c := range containers {
		if c.GetName() == name {
			return name, nil
		}
	}
	return "", fault.New(fault.NotFound, "sandbox %s: has no container %q", state.GetUid(), name)
}
