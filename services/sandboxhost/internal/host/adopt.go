package host

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// observers is how many sandboxes are observed at once at adoption.
const observers = 8

// askPolicy is for questions that hold the adoption up.
var askPolicy = backoff.Policy{Initial: 100 * time.Millisecond, Cap: 5 * time.Second}

// adopt makes a keeper for everything that is in the journal or on the node. It
// returns when all of them are known, however long the engine cannot be asked: a
// failed question is never "none".
func (h *Host) adopt(ctx context.Context) error {
	h.started = h.deps.Now()
	notes, err := load(h.deps.Journal)
	if err != nil {
		return fmt.Errorf("read journal: %w", err)
	}
	found, err := h.survey(ctx, notes)
	if err != nil {
		return err
	}
	if err := h.adoptHolds(notes.holds); err != nil {
		return err
	}
	if err := h.number(notes.starts); err != nil {
		return err
	}
	at := h.now()
	life := lifeOf{boot: h.cfg.BootID, takenDown: h.takenDown()}
	var keepers []*keeper
	records := make(map[id.Sandbox]*sandboxhostv1.SandboxRecord)
	for uid, o := range found {
		r, orphan := restore(notes.records[uid], notes.tombs[uid], o, life, at)
		r.Status.Seq = max(r.GetStatus().GetSeq(), h.seqBase) + 1
		r.Status.Node = h.cfg.Node
		k := newKeeper(h, uid, "")
		if !orphan {
			if k.hash, err = engine.SpecHash(r.GetWish().GetSpec()); err != nil {
				return err
			}
		}
		k.rec, k.orphan, k.observed, k.fresh = r, orphan, o, true
		k.noteSilence()
		if !orphan {
			records[uid] = r
		}
		if before := notes.records[uid]; before.GetStatus().GetPhase() < stopping && r.GetStatus().GetPhase() == stopping && !orphan {
			h.deps.Note(eventOf(k.state(), normal, r.GetStatus().GetReason(), r.GetStatus().GetMessage()))
		}
		if lost := lostAddress(notes.records[uid].GetStatus(), r.GetStatus()); lost != "" && !orphan {
			h.deps.Note(eventOf(k.state(), warning, EventAddressLost, lost))
		}
		keepers = append(keepers, k)
	}
	written, err := h.saveAdopted(records)
	if err != nil {
		return err
	}
	if written {
		h.unmarkTakenDown()
	}
	h.admit(keepers, notes.tombs)
	h.log().Info("sandboxes adopted", logging.Count(len(keepers)))
	return nil
}

// admit opens the host with the keepers that adoption made.
func (h *Host) admit(keepers []*keeper, tombs map[id.Sandbox]*sandboxhostv1.Tombstone) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tombs = tombs
	h.births = make(chan *keeper, 4*h.cfg.Limit+len(keepers))
	for _, k := range keepers {
		h.keepers[k.uid] = k
		if name := fullName(k.rec.GetWish()); !k.orphan && k.rec.GetStatus().GetTornDownAt() == nil {
			k.name = name
			h.names[name] = k.uid
		}
		k.shown = k.state()
		h.hub.Set(k.uid, k.shown)
		h.births <- k
	}
	h.open = true
}

// survey observes all sandboxes that are in the journal or on the node.
func (h *Host) survey(ctx context.Context, notes loaded) (map[id.Sandbox]engine.Observed, error) {
	found := make(map[id.Sandbox]engine.Observed)
	err := h.insist(ctx, "list survivors", func() error {
		uids, err := h.deps.Engine.Survivors(ctx)
		for _, uid := range uids {
			found[uid] = engine.Observed{}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for uid := range notes.records {
		found[uid] = engine.Observed{}
	}
	return found, h.observeAll(ctx, found)
}

// observeAll fills in what there is of each sandbox.
func (h *Host) observeAll(ctx context.Context, found map[id.Sandbox]engine.Observed) error {
	var mu sync.Mutex // guards found and failed
	var failed error
	var all sync.WaitGroup
	turns := make(chan struct{}, observers)
	uids := make([]id.Sandbox, 0, len(found))
	for uid := range found {
		uids = append(uids, uid)
	}
	for _, uid := range uids {
		turns <- struct{}{}
		all.Go(func() { // waited for below
			defer func() { <-turns }()
			var o engine.Observed
			err := h.insist(ctx, "observe sandbox "+string(uid), func() (err error) {
				o, err = h.deps.Engine.Observe(ctx, uid)
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			o.UID = uid
			found[uid] = o
			if err != nil {
				failed = err
			}
		})
	}
	all.Wait()
	return failed
}

// insist asks until there is an answer, or ctx ends.
func (h *Host) insist(ctx context.Context, what string, ask func() error) error {
	for try := 1; ; try++ {
		err := ask()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wait := askPolicy.Delay(try, rand.Float64())
		h.deps.NotReady(fmt.Sprintf("%s: %v", what, err))
		h.log().Warn("adoption held up", logging.Err(err), logging.RetryIn(wait))
		if err := backoff.Wait(ctx, wait); err != nil {
			return err
		}
	}
}

// lifeOf is what is known of the life of the kernel's objects.
type lifeOf struct {
	boot      string
	takenDown bool // all of them were ended in this boot, as a reboot ends them
}

// restore makes the record of a sandbox from what was written down and what is
// there. What was written down counts, unless what is there is newer: then the
// journal was lost, or is an old one. An orphan is something on the node that
// nobody wishes for, or that cannot be read: it is removed, or shown. So is what was
// forgotten already, and came back because the runtime was slower to make it than we
// were to remove the rest: nobody will ask to forget it again.
func restore(
	r *sandboxhostv1.SandboxRecord, tomb *sandboxhostv1.Tombstone, o engine.Observed, life lifeOf, at moment,
) (rec *sandboxhostv1.SandboxRecord, orphan bool) {
	note := newestNote(o)
	switch {
	case r == nil && note == nil:
		return strayRecord(o.UID, life.boot, at), true
	case r == nil:
		r = newRecord(note.GetWish(), note.GetSpecHash(), life.boot, at)
		r.Wish.AcceptedAt = note.GetWish().GetAcceptedAt()
		r.Removing = tomb != nil
		// Nobody knows of which boot it is. What runs is of this one; what does not
		// may be of one before.
		r.WaitsForCluster = note.GetWish().GetManager() == ManagerCluster && !runs(o)
		orphan = tomb != nil
	default:
		r = proto.CloneOf(r)
	}
	if note.GetWish().GetGeneration() > r.GetWish().GetGeneration() && !r.GetRemoving() {
		r.Wish = proto.CloneOf(note.GetWish())
	}
	if note.GetAttempt() > r.GetStatus().GetAttempt() {
		startAttempt(r, note.GetAttempt(), note.GetSpecHash(), at)
	}
	switch {
	case r.GetBootId() != life.boot:
		rebooted(r, o, life.boot, ReasonReboot, at)
	case life.takenDown:
		rebooted(r, o, life.boot, ReasonTakenDown, at)
	default:
		catchUp(r, o, at)
	}
	mirror(r, o)
	return r, orphan
}

// newestNote is the note of the newest container that can be read, or nil.
func newestNote(o engine.Observed) *sandboxhostv1.ContainerNote {
	var newest *sandboxhostv1.ContainerNote
	for _, c := range o.Containers {
		if !unreadable(c) && (newest == nil || c.Note.GetAttempt() > newest.GetAttempt()) {
			newest = c.Note
		}
	}
	return newest
}

// strayRecord stands for something on the node without any wish.
func strayRecord(uid id.Sandbox, boot string, at moment) *sandboxhostv1.SandboxRecord {
	wish := &sandboxhostv1.Wish{
		Uid: string(uid), Name: uid.Lower(), Manager: ManagerLocal, AcceptedAt: timestamppb.New(at.Wall),
	}
	r := newRecord(wish, "", boot, at)
	r.Removing = true
	return r
}

// rebooted takes back what does not outlive a boot, or the end of a node. All processes are gone, so
// every attempt ends, also one that had not begun as far as was written down. An
// engine that shows a running process is believed.
func rebooted(r *sandboxhostv1.SandboxRecord, o engine.Observed, boot, reason string, at moment) {
	r.BootId = boot
	r.NextAtBoottime, r.StopSentBoottime, r.RunningSinceBoottime, r.Stops = nil, nil, nil, nil
	r.Status.NextAt = nil
	r.Failures = 0
	if runs(o) {
		return
	}
	r.WaitsForCluster = r.GetWish().GetManager() == ManagerCluster
	if r.GetStatus().GetPhase() < stopping {
		enter(r, Decision{Phase: stopping, End: endReboot, Reason: reason}, told{message: sentences[reason]}, at)
	}
}

// runs says whether anything of a sandbox runs.
func runs(o engine.Observed) bool {
	return slices.ContainsFunc(o.Containers, func(c engine.Container) bool { return c.State == engine.Running })
}

// catchUp takes the phase to where it may have been shown before the process
// ended: PREPARING and STARTING are not written down, and no phase goes back.
func catchUp(r *sandboxhostv1.SandboxRecord, o engine.Observed, at moment) {
	s := r.GetStatus()
	waiting := r.GetNextAtBoottime() != nil && r.GetNextAtBoottime().AsDuration() > at.Boot
	begun := false
	for _, c := range o.Containers {
		begun = begun || c.Note.GetAttempt() == s.GetAttempt()
	}
	idle := r.GetRemoving() || r.GetWish().GetSpec().GetDesired() != resourcev1.DesiredState_DESIRED_STATE_RUNNING
	switch {
	case s.GetPhase() >= starting || waiting && !begun || idle && o.Empty():
		return
	case begun || o.Namespaces:
		enter(r, Decision{Phase: starting}, told{}, at)
	case s.GetPhase() < preparing:
		enter(r, Decision{Phase: preparing}, told{}, at)
	}
}
