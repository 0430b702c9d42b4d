package host

import (
	"context"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/inventory"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// stock is what there may be of the sandbox, as far as is written down.
func (k *keeper) stock() inventory.Stock {
	if k.rec == nil {
		return inventory.Stock{UID: k.uid, Activity: "it is being accepted"}
	}
	s := stockOf(k.uid, k.rec)
	s.Quiet = s.Quiet && k.resting
	switch {
	case k.orphan:
		s.Name = ""
		s.Activity = "it is being removed, nobody wishes for it"
	case k.trouble != "":
		s.Activity = k.trouble
	case s.Activity == "":
		s.Activity = "it is in the middle of a step"
	}
	return s
}

// stockOf is what there may and must be of a sandbox at rest, by its record.
func stockOf(uid id.Sandbox, r *sandboxhostv1.SandboxRecord) inventory.Stock {
	status := r.GetStatus()
	s := inventory.Stock{
		UID: uid, Name: r.GetWish().GetName(), Seq: status.GetSeq(), HostNetwork: hostNetwork(r),
		Written: status.GetTornDownAt() == nil,
	}
	switch phase := status.GetPhase(); phase {
	case running, starting:
		s.Quiet, s.Stands, s.Runs = true, true, phase == running
		for _, c := range r.GetWish().GetSpec().GetContainers() {
			containerID := engine.ContainerID(uid, c.GetName(), status.GetAttempt())
			s.Containers = append(s.Containers, containerID)
			if s.Runs && !c.GetInit() && !noted(r, c.GetName(), status.GetAttempt()) {
				s.Running = append(s.Running, containerID)
			}
		}
	case pending, preparing:
		// A restart keeps namespaces and address for the attempt that follows.
		s.Quiet, s.Stands = true, phase == preparing || status.GetAttempt() > 1
	case stopped, failed:
		s.Quiet = true
	default:
		s.Activity = "its containers are being stopped"
	}
	return s
}

// runErrand does the first errand, and answers it.
func (k *keeper) runErrand(ctx context.Context) {
	l := k.errands[0]
	k.errands = k.errands[1:]
	k.fresh = false
	err := k.attend(ctx, stepLimit, func() bool { return true }, l.errand)
	if l.reply != nil {
		l.reply <- answer{err: err}
	}
}
