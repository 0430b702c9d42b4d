package record

import (
	"slices"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// MaxDisks bounds the different disks of one sandbox: all of them change hands
// in one transaction of the store, which takes at most 128 operations.
const MaxDisks = 16

// DiskNames lists the different disks that a sandbox mounts, sorted.
func DiskNames(spec *resourcev1.SandboxSpec) []string {
	var names []string
	for _, c := range spec.GetContainers() {
		for _, m := range c.GetDisks() {
			names = append(names, m.GetDisk())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Condition returns the state of the condition of a node with that type, and
// UNSPECIFIED when it has none.
func Condition(n *resourcev1.Node, kind string) resourcev1.ConditionState {
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() == kind {
			return c.GetState()
		}
	}
	return resourcev1.ConditionState_CONDITION_STATE_UNSPECIFIED
}

// Pressures are the types of conditions that are TRUE while a node runs short of
// something and takes no new sandboxes.
var Pressures = []string{"MemoryPressure", "DiskPressure", "PIDPressure"}

// Pressure is what a node runs short of, "" for nothing.
func Pressure(n *resourcev1.Node) string {
	for _, kind := range Pressures {
		if Condition(n, kind) == resourcev1.ConditionState_CONDITION_STATE_TRUE {
			return kind
		}
	}
	return ""
}

// Ready reports whether a node says, in its present session, that it may be given
// work.
func Ready(n *resourcev1.Node) bool {
	return n.GetStatus().GetSeq() > n.GetPlacement().GetStatusSeq() && Condition(n, "Ready") == resourcev1.ConditionState_CONDITION_STATE_TRUE
}
