package sandbox

import (
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Managers of a sandbox.
const (
	Local   = "local"
	Cluster = "cluster"
)

// FromRecord is the view of a record of the coordinator.
func FromRecord(r *resourcev1.Resource) Sandbox {
	meta, box := r.GetMeta(), r.GetSandbox()
	s := Sandbox{
		UID: meta.GetUid(), Name: meta.GetName(), Manager: Cluster, Node: box.GetPlacement().GetNode(),
		Labels: meta.GetLabels(), Generation: meta.GetGeneration(), Spec: box.GetSpec(), Status: box.GetStatus(),
		Waiting: box.GetPlacement().GetReason(), Removing: meta.GetDeletingAt() != nil,
		CreatedAt: meta.GetCreatedAt().AsTime(), Record: r,
	}
	if s.Status == nil {
		s.Status = &resourcev1.SandboxStatus{}
	}
	return s
}

// FromState is the view of what a host keeps.
func FromState(h *sandboxhostv1.SandboxState) Sandbox {
	s := Sandbox{
		UID: h.GetUid(), Name: h.GetName(), Manager: h.GetManager(), Node: h.GetStatus().GetNode(),
		Generation: h.GetGeneration(), Spec: h.GetSpec(), Status: h.GetStatus(), Removing: h.GetRemoving(),
		Labels: h.GetLabels(), CreatedAt: h.GetAcceptedAt().AsTime(), Record: h,
	}
	if s.Status == nil {
		s.Status = &resourcev1.SandboxStatus{}
	}
	return s
}

// Named is what Find needs of s.
func (s *Sandbox) Named() Named {
	return Named{Name: s.Name, UID: s.UID, Hint: s.Manager + " " + s.Node, Removing: s.Removing}
}
