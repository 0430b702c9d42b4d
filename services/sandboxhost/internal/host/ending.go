package host

import (
	"slices"
	"syscall"
	"time"

	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Ending says how the processes of a sandbox are ended by who cannot ask anybody.
type Ending struct {
	// Grace is what is left of the sandbox's own time, from now on.
	Grace time.Duration
	// Containers in the order in which they are ended, each after the one before.
	Containers []ContainerEnding
}

// ContainerEnding says how one container is ended.
type ContainerEnding struct {
	// Name of the container in the spec.
	Name string
	// ID at the runtime.
	ID string
	// PreStop is the part of the spec with a pre-stop command that is still to be run, nil
	// if there is none.
	PreStop *resourcev1.ContainerSpec
	// Signal asks its main process to end.
	Signal syscall.Signal
	// Own is what it has for itself, from the begin of its own stop on, where HasOwn;
	// else the sandbox's time is its.
	Own time.Duration
	// HasOwn is true where the spec says so.
	HasOwn bool
}

// PreStopReserve is what a pre-stop command leaves of a time for its container to the
// signal: 2 s, or half of it if that is less.
func PreStopReserve(whole time.Duration) time.Duration { return min(preStopReserve, whole/2) }

// Endings reads from the journal at path, of a host that does not run, how each sandbox
// is to be ended now. It changes nothing. It returns fs.ErrNotExist if there is no such
// journal.
func Endings(path, bootID string, now time.Duration) (map[id.Sandbox]Ending, error) {
	all := map[id.Sandbox]Ending{}
	err := journal.Peek(journal.Options{Path: path, Kind: JournalKind, Version: JournalVersion}, func(tx journal.Tx) error {
		return journal.ForEachProto(tx, bucketRecords, func(uid string, r *sandboxhostv1.SandboxRecord) error {
			all[id.Sandbox(uid)] = endingOf(id.Sandbox(uid), r, bootID, now)
			return nil
		})
	})
	return all, err
}

// endingOf is how a sandbox is ended from a time since boot on. What a stop that was
// begun in this boot has used of the grace periods is gone.
func endingOf(uid id.Sandbox, r *sandboxhostv1.SandboxRecord, bootID string, now time.Duration) Ending {
	left := func(whole time.Duration, begun bool, at time.Duration) time.Duration {
		if !begun || r.GetBootId() != bootID {
			return whole
		}
		return max(0, at+whole-now)
	}
	e := Ending{Grace: left(grace(r), r.GetStopSentBoottime() != nil, r.GetStopSentBoottime().AsDuration())}
	for _, spec := range slices.Backward(startOrder(r.GetWish().GetSpec().GetContainers())) {
		c := ContainerEnding{Name: spec.GetName(), ID: engine.ContainerID(uid, spec.GetName(), r.GetStatus().GetAttempt()), Signal: syscall.SIGTERM}
		stop := stopOf(r, c.ID)
		if spec.GetPreStop() != nil && !stop.GetPreStopOver() {
			c.PreStop = spec
		}
		if s := r.GetStopSignals()[spec.GetName()]; s != 0 {
			c.Signal = syscall.Signal(s)
		}
		if own := spec.GetTerminationGracePeriod(); own != nil {
			begun := stop.GetBegunBoottime()
			c.Own, c.HasOwn = left(own.AsDuration(), begun != nil, begun.AsDuration()), true
		}
		e.Containers = append(e.Containers, c)
	}
	return e
}
