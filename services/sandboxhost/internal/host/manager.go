package host

import (
	"staddle.internal/kit/fault"

	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"
)

// CheckCaller says whether a caller may speak for a manager: the agent only for
// the cluster, and a person on the node only for what belongs to the node, or is
// lost to the cluster.
func CheckCaller(role optionsv1.Role, manager string, lost bool) error {
	agent := role == optionsv1.Role_ROLE_SANDBOX_AGENT
	switch {
	case agent && manager == ManagerCluster, !agent && (manager == ManagerLocal || lost):
		return nil
	case agent:
		return fault.WithReason(fault.New(fault.Denied,
			"manager %q: sandbox-agent speaks for %q only", manager, ManagerCluster), "MANAGER_MISMATCH")
	}
	return fault.WithReason(fault.New(fault.Denied,
		"manager %q: belongs to the cluster, ask the coordinator: staddle rm without --node-socket, or staddle delete for a service; with --lost here if it has lost the record", manager), "MANAGER_MISMATCH")
}
