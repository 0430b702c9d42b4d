package drain

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/watch"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
)

// maxSentence bounds a sentence that is shown.
const maxSentence = 1024

// Admission is how it is now.
func (k *Keeper) Admission() *presencev1.Admission {
	a, _ := k.hub.Get(struct{}{}) // set in New and never deleted
	return a
}

// Follow calls tell with how it is now and after each change, until ctx ends or tell
// fails.
func (k *Keeper) Follow(ctx context.Context, tell func(*presencev1.Admission) error) error {
	for ev := range k.hub.Subscribe(ctx) {
		if ev.Kind == watch.Synced {
			continue
		}
		if err := tell(ev.Value); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// Cordon keeps new sandboxes away. All rules of PresenceService.Cordon hold.
func (k *Keeper) Cordon(reason string) (*presencev1.Admission, error) {
	return k.ask("cordon", func(r *presencev1.AdmissionRecord) *presencev1.AdmissionRecord {
		return cordon(r, reason, now())
	})
}

// Uncordon opens the node again. All rules of PresenceService.Uncordon hold.
func (k *Keeper) Uncordon(req *presencev1.UncordonRequest) (*presencev1.Admission, error) {
	if req.GetShutdownOnly() {
		return k.stayUp()
	}
	return k.ask("uncordon", func(*presencev1.AdmissionRecord) *presencev1.AdmissionRecord {
		clear(k.seen.troubles)
		return &presencev1.AdmissionRecord{}
	})
}

// stayUp ends a shutdown that is not carried through. Where the notes are lost it is not
// known yet what else was asked for, and must not be lifted.
func (k *Keeper) stayUp() (*presencev1.Admission, error) {
	k.mu.Lock()
	unknown, away := k.record == nil, k.seen.away
	k.mu.Unlock()
	switch {
	case unknown && away != "":
		return nil, fault.New(fault.Unavailable, "uncordon: it is not known what was asked for: %s", away)
	case unknown:
		return k.Admission(), nil // neither of the two knows of any
	}
	return k.ask("shutdown over", stayUp)
}

// Drain has the node drained, and returns at once. All rules of PresenceService.Drain
// hold.
func (k *Keeper) Drain(req *presencev1.DrainRequest) (*presencev1.Admission, error) {
	return k.ask("drain", func(r *presencev1.AdmissionRecord) *presencev1.AdmissionRecord {
		next := join(r, req, k.cfg.BootID, now())
		if next.GetDrain() != nil && r.GetDrain() == nil {
			k.askedAt, k.seen.told = time.Now(), false
		}
		return next
	})
}

// ask changes what is kept, by a pure function, and lets Run know. What cannot be
// written down is not changed.
func (k *Keeper) ask(what string, f func(*presencev1.AdmissionRecord) *presencev1.AdmissionRecord) (*presencev1.Admission, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	next := f(k.record)
	if k.record == nil || !proto.Equal(next, k.record) {
		if err := save(k.journal, next); err != nil {
			return nil, err
		}
		k.record = next
		k.deps.Log.Info("admission changed", logging.Step(what), logging.Reason(next.GetCordonReason()))
	}
	k.publishLocked()
	k.awake()
	return k.Admission(), nil
}

// Told says whether the node's record in the cluster shows that it is cordoned.
func (k *Keeper) Told(cordoned bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if cordoned && !k.seen.told && k.record.GetDrain() != nil {
		k.seen.told = true
		k.publishLocked()
		k.awake()
	}
}

// awake lets Run look at what is wanted.
func (k *Keeper) awake() {
	select {
	case k.wake <- struct{}{}:
	default: // it will look anyway
	}
}

func clip(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= maxSentence {
		return s
	}
	return strings.ToValidUTF8(s[:maxSentence], "")
}
