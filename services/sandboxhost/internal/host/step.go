package host

import (
	"context"
	"errors"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// limitOf bounds a step that is begun at now.
func (k *keeper) limitOf(a engine.Action, now time.Duration) time.Duration {
	switch a.Step {
	case engine.StepImages:
		return imagesLimit
	case engine.StepPreStop:
		for _, c := range k.observed.Containers {
			if c.ID == a.ContainerID {
				return preStopLimit(k.rec, c, now)
			}
		}
	}
	return stepLimit
}

// preStopped goes on after a pre-stop command, however it ended. Only a runtime that
// could not be asked, or the end of this process, leaves it to be done again.
func (k *keeper) preStopped(ctx context.Context, a engine.Action, err error, at moment) error {
	timely := !errors.Is(err, context.DeadlineExceeded)
	if err != nil && timely && (ctx.Err() != nil || errors.Is(err, fault.Unavailable) || errors.Is(err, errOverruled)) {
		return err
	}
	if err != nil {
		k.log.Warn("pre-stop command failed", logging.Step(string(a.Step)), logging.Component(a.ContainerID), logging.Err(err))
	}
	return k.change(durable, func(r *sandboxhostv1.SandboxRecord) { endPreStop(r, a.ContainerID, at) })
}

// wanted says whether a step that goes on is still to be done.
func (k *keeper) wanted(a engine.Attempt, action engine.Action) bool {
	switch {
	case bringsUp(action.Step):
		return k.stillWanted(a)
	case action.Step == engine.StepPreStop:
		held, _ := k.host.heldBy(k.rec.GetWish().GetManager())
		return !held.over(k.host.deps.Now())
	}
	return true
}

// stillWanted says whether what is being made for an attempt is still asked for.
func (k *keeper) stillWanted(a engine.Attempt) bool {
	_, held := k.host.heldBy(k.rec.GetWish().GetManager())
	return k.hash == a.SpecHash && !k.rec.GetRemoving() && !held &&
		k.rec.GetWish().GetSpec().GetDesired() == resourcev1.DesiredState_DESIRED_STATE_RUNNING
}

// bringsUp says whether a step makes something, rather than ending it.
func bringsUp(s engine.Step) bool {
	switch s {
	case engine.StepImages, engine.StepNamespaces, engine.StepNetwork, engine.StepCreate, engine.StepStart:
		return true
	}
	return false
}
