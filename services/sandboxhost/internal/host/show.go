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
		case reason == s.GetReason() && !ofSecrets(reason) || reason == ReasonBackoff:
		case reason != "":
			s.Reason = reason
			tell(s, told{message: k.sentence(reason)})
		case transient(s.GetReason()):
			s.Reason = ""
			tell(s, told{})
		}
	})
}

func transient(reason string) bool {
	switch reason {
	case ReasonRetrying, ReasonUnseen, ReasonUnreadable, ReasonUnpinned, ReasonShimSilent, ReasonWaitingForCluster, ReasonWaitingForDisk, ReasonInitializing:
		return true
	}
	return ofSecrets(reason)
}

// ofSecrets says whether a reason is a wait for secrets, of which the sentence changes.
func ofSecrets(reason string) bool {
	return reason == ReasonWaitingForSecrets || reason == ReasonSecretMissing || reason == ReasonSecretsAway
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
	if before, now := oomKills(was), oomKills(is); now > before && was.GetAttempt() == is.GetAttempt() {
		k.log.Warn("processes ended for memory", logging.Count(int(now-before)))
	}
	if before, now := oomKillsBeside(was), oomKillsBeside(is); now > before && was.GetAttempt() == is.GetAttempt() {
		k.log.Warn("processes beside the main one ended for memory", logging.Count(int(now-before)))
	}
	k.rec = next
	state := k.state()
	if !k.orphan {
		k.host.deps.Note(happened(k.shown, state)...)
	}
	k.shown = state
	k.host.hub.Set(k.uid, state)
}

// reshow shows the state again if what is not in the record has changed.
func (k *keeper) reshow() {
	if k.rec == nil || k.ended {
		return
	}
	_, held := k.host.heldBy(k.rec.GetWish().GetManager())
	if held != k.shown.GetHeld() || k.trouble != k.shown.GetTrouble() {
		k.publish(k.rec)
	}
}

// relieved forgets what failed, since it does not any more.
func (k *keeper) relieved() {
	k.retry, k.trouble = retryNotes{}, ""
	if k.rec.GetStatus().GetReason() == ReasonRetrying {
		k.explain("")
	}
}

// state is what the API shows of the keeper's sandbox. It shares parts of the
// record.
func (k *keeper) state() *sandboxhostv1.SandboxState {
	r := k.rec
	_, held := k.host.heldBy(r.GetWish().GetManager())
	return &sandboxhostv1.SandboxState{
		Held:       held,
		Dead:       dead(r.GetStatus()),
		Trouble:    k.trouble,
		Uid:        r.GetWish().GetUid(),
		Name:       r.GetWish().GetName(),
		Manager:    r.GetWish().GetManager(),
		Generation: r.GetWish().GetGeneration(),
		Spec:       r.GetWish().GetSpec(),
		Status:     r.GetStatus(),
		Removing:   r.GetRemoving(),
		AcceptedAt: r.GetWish().GetAcceptedAt(),
		Position:   r.GetWish().GetPosition(),
		Labels:     r.GetWish().GetLabels(),
	}
}

// dead says whether no process of a sandbox is there and none is on its way. Its last
// phases are entered only once nothing was seen to be left; a container that
// cannot be read may run all the same.
func dead(s *resourcev1.SandboxStatus) bool {
	return s.GetTornDownAt() != nil || s.GetPhase() >= stopped && s.GetReason() != ReasonUnreadable
}
