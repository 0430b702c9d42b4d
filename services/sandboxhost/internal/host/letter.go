package host

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/inventory"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// letter asks a keeper for one thing.
type letter struct {
	wish    *sandboxhostv1.Wish // accept it
	hash    string              // of its spec
	remove  bool
	forget  bool
	manager string                          // on whose behalf, for remove and forget
	stock   bool                            // say what there may be
	errand  func(ctx context.Context) error // do this between two steps, then look
	reply   chan answer                     // has room for one; nil if nobody waits
}

type answer struct {
	state *sandboxhostv1.SandboxState
	stock inventory.Stock
	err   error
}

// tell puts a letter into the mailbox, or returns false if that is full.
func (k *keeper) tell(l letter) bool {
	select {
	case k.mail <- l:
		return true
	default:
		return false
	}
}

// ask sends a letter and waits for the answer. When ctx ends before, the letter
// is answered all the same, to nobody.
func (k *keeper) ask(ctx context.Context, l letter) (*sandboxhostv1.SandboxState, error) {
	a := k.request(ctx, l)
	return a.state, a.err
}

// request is ask with all of the answer.
func (k *keeper) request(ctx context.Context, l letter) answer {
	l.reply = make(chan answer, 1)
	if !k.tell(l) {
		return answer{err: k.busy()}
	}
	select {
	case a := <-l.reply:
		return a
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	case <-k.done:
	}
	select {
	case a := <-l.reply: // its last answer
		return a
	default:
		return answer{err: fault.New(fault.Unavailable, "sandbox %s: its keeper has ended, ask again", k.uid)}
	}
}

// read answers a letter. Whatever failed before is tried anew at once: the reason
// may be gone with the old wish.
func (k *keeper) read(l letter) {
	var a answer
	switch {
	case l.stock:
		a.stock = k.stock()
	case l.errand != nil: // answered when it is done
		k.errands = append(k.errands, l)
		k.retry = retryNotes{}
		return
	case l.wish != nil:
		a.err = k.ensure(l.wish, l.hash)
	case l.remove:
		a.err = k.remove(l.manager)
	case l.forget:
		a.err = k.forget(l.manager)
	}
	if a.err == nil && k.rec != nil {
		a.state = k.state()
	}
	if l.reply != nil {
		l.reply <- a
	}
}

// ensure accepts a wish, the first one too.
func (k *keeper) ensure(wish *sandboxhostv1.Wish, hash string) error {
	at := k.host.now()
	if k.rec == nil {
		return k.welcome(newRecord(wish, hash, k.host.cfg.BootID, at), hash)
	}
	changed, err := judge(k.rec, wish)
	if err != nil {
		return err
	}
	err = k.change(durable, func(r *sandboxhostv1.SandboxRecord) {
		r.WaitsForCluster = false // it is named
		if changed {
			accept(r, wish, hash, at)
		} else {
			locate(r, wish)
		}
	})
	if err != nil {
		return err
	}
	if changed && k.hash != hash {
		k.hash = hash
		k.life.images = false
	}
	if changed {
		k.retry = retryNotes{}
	}
	return nil
}

// welcome writes down a sandbox that is new to this node. If that fails the
// keeper ends.
func (k *keeper) welcome(first *sandboxhostv1.SandboxRecord, hash string) error {
	first.Status.Seq = k.host.seqBase + 1
	first.Status.Node = k.host.cfg.Node
	if err := k.host.saveRecord(k.uid, first); err != nil {
		k.ended = true
		k.host.drop(k, nil)
		return err
	}
	k.hash = hash
	// Adoption has found all that there was, so there is nothing of a new uid.
	k.observed, k.fresh = engine.Observed{UID: k.uid}, true
	k.publish(first)
	return nil
}

// remove ends the wish.
func (k *keeper) remove(manager string) error {
	switch {
	case k.rec == nil:
		return fault.New(fault.Unavailable, "sandbox %s: comes at the same time, ask again", k.uid)
	case manager != k.rec.GetWish().GetManager():
		return notYours(string(k.uid), k.rec.GetWish().GetManager())
	}
	k.retry = retryNotes{}
	return k.change(durable, remove)
}

// forget drops what is known of a sandbox of which nothing is left, and ends the
// keeper.
func (k *keeper) forget(manager string) error {
	switch {
	case k.rec == nil:
		return nil
	case manager != k.rec.GetWish().GetManager():
		return notYours(string(k.uid), k.rec.GetWish().GetManager())
	case k.rec.GetStatus().GetTornDownAt() == nil:
		return conflict("NOT_TORN_DOWN", "sandbox %s: not everything of it is gone yet", k.uid)
	}
	tomb := &sandboxhostv1.Tombstone{
		RemovedAt: timestamppb.New(k.host.now().Wall),
		Manager:   k.rec.GetWish().GetManager(),
	}
	if err := k.host.saveTomb(k.uid, tomb); err != nil {
		return err
	}
	k.leave(tomb)
	return nil
}

// leave takes the sandbox out of the host.
func (k *keeper) leave(tomb *sandboxhostv1.Tombstone) {
	k.ended = true
	k.host.drop(k, tomb)
}

// busy is the answer to a letter that does not fit into the mailbox.
func (k *keeper) busy() error {
	return fault.New(fault.Unavailable, "sandbox %s: its keeper is busy, ask again", k.uid)
}
