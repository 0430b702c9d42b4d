package host

import (
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/logging"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// explain shows why a sandbox rests, and takes back a reason that no longer
// holds.
func (k *keeper) explain(reason string) {
	k.show(func(s *resourcev1.SandboxStatus) {
		switch {
		case reason == s.GetReason() || reason == ReasonBackoff:
		case reason != "":
			s.Reason, s.Message = reason, sentences[reason]
		case transient(s.GetReason()):
			s.Reason, s.Message = "", ""
		}
	})
}

func transient(reason string) bool {
	switch reason {
	case ReasonRetrying, ReasonUnseen, ReasonUnreadable, ReasonWaitingForCluster, ReasonWaitingForDisk:
		return true
	}
	return false
}

// durability says whether a change is a fact that must outlive the process.
type durability bool

const (
	durable   durability = true
	forPeople durability = false
)

// show changes the status in a way that need not be remembered.
func (k *keeper) show(f func(s *resourcev1.SandboxStatus)) {
	// A change that is not written cannot fail.
	_ = k.change(forPeople, func(r *sandboxhostv1.SandboxRecord) { f(r.GetStatus()) })
}

// change applies f to the record: first to the journal, if it is a fact, then for
// all to see. If it cannot be written nothing is changed.
func (k *keeper) change(how durability, f func(r *sandboxhostv1.SandboxRecord)) error {
	next := proto.CloneOf(k.rec)
	f(next)
	if proto.Equal(next, k.rec) {
		return nil
	}
	next.Status.Seq = max(next.GetStatus().GetSeq(), k.host.seqBase) + 1
	if how == durable && !k.orphan {
		if err := k.host.saveRecord(k.uid, next); err != nil {
			return err
		}
	}
	k.publish(next)
	return nil
}

// publish makes a record the current one.
func (k *keeper) publish(next *sandboxhostv1.SandboxRecord) {
	was, is := k.rec.GetStatus(), next.GetStatus()
	if was.GetPhase() != is.GetPhase() || was.GetAttempt() != is.GetAttempt() {
		k.log.Info("sandbox phase entered",
			logging.From(phaseName(was.GetPhase())), logging.To(phaseName(is.GetPhase())),
			logging.Attempt(int64(is.GetAttempt())), logging.Generation(int64(next.GetWish().GetGeneration())),
			logging.Reason(is.GetReason()))
	}
	k.rec = next
	k.host.hub.Set(k.uid, stateOf(next))
}

// stateOf is what the API shows of a record. It shares the record's parts.
func stateOf(r *sandboxhostv1.SandboxRecord) *sandboxhostv1.SandboxState {
	return &sandboxhostv1.SandboxState{
		Uid:        r.GetWish().GetUid(),
		Name:       r.GetWish().GetName(),
		Manager:    r.GetWish().GetManager(),
		Generation: r.GetWish().GetGeneration(),
		Spec:       r.GetWish().GetSpec(),
		Status:     r.GetStatus(),
		Removing:   r.GetRemoving(),
		AcceptedAt: r.GetWish().GetAcceptedAt(),
		Position:   r.GetWish().GetPosition(),
	}
}
