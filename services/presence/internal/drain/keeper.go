// Package drain owns whether the node takes work: cordon, drain, and the drain of a
// machine that is shut down.
//
// What was asked for is written down before it is answered. From then on one goroutine
// makes the holds at sandboxhost match it, whoever dies, and tells how far that is
// from what sandboxhost says, never from what was asked of it. Where one of the two
// has lost its notes, those of the other count. It must never stop a sandbox itself,
// and never call one dead that was only asked to stop. In the trail it comes after
// the API, and before the holds of sandboxhost.
package drain

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/boottime"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/watch"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Config says which node it is.
type Config struct {
	// Journal is the path of the notes. Its folder must exist.
	Journal string
	// BootID is that of the running kernel.
	BootID string
}

// Host is what is needed of sandboxhost. Its errors carry kinds.
type Host interface {
	// Holds returns the holds that stand.
	Holds(ctx context.Context) ([]*sandboxhostv1.Hold, error)
	// WatchHolds tells all that stand, and again after each change, until it ends, and
	// returns why, never nil.
	WatchHolds(ctx context.Context, tell func(*sandboxhostv1.WatchHoldsResponse)) error
	// Ensure places a hold.
	Ensure(ctx context.Context, hold *sandboxhostv1.Hold) error
	// Lift takes a hold away.
	Lift(ctx context.Context, purpose sandboxhostv1.HoldPurpose) error
	// Sandboxes tells every message of WatchSandboxes until it ends, and returns why,
	// never nil.
	Sandboxes(ctx context.Context, tell func(*sandboxhostv1.WatchSandboxesResponse)) error
	// Grants does the same for WatchGrants.
	Grants(ctx context.Context, tell func(*sandboxhostv1.WatchGrantsResponse)) error
}

// Deps is what a Keeper works with.
type Deps struct {
	// Host is sandboxhost; nil on a node that has none.
	Host Host
	// Log gets each change that was asked for.
	Log *slog.Logger
}

// tellLimit is how long a drain waits for the cluster to be told of the cordon.
const tellLimit = 3 * time.Second

// retry is the wait after sandboxhost did not answer.
var retry = backoff.Policy{Initial: 50 * time.Millisecond, Cap: 2 * time.Second, Stable: 10 * time.Second}

// Keeper keeps the node cordoned and drained, or open. Make it with New and let it
// Run once.
type Keeper struct {
	cfg  Config
	deps Deps
	hub  *watch.Hub[struct{}, *presencev1.Admission]
	wake chan struct{} // what is wanted may have changed

	mu      sync.Mutex // guards all below, and is held over the write to the journal
	journal *journal.Journal
	record  *presencev1.AdmissionRecord // nil while nobody knows
	seen    picture
	askedAt time.Time // when the newest drain was asked for; zero for one of a life before
}

// New returns a keeper that knows nothing before Run.
func New(cfg Config, deps Deps) *Keeper {
	k := &Keeper{
		cfg: cfg, deps: deps, wake: make(chan struct{}, 1), hub: watch.New[struct{}, *presencev1.Admission](),
		seen: newPicture(),
	}
	k.hub.Set(struct{}{}, &presencev1.Admission{})
	return k
}

// Run keeps the holds as they are asked for until ctx ends. It is ready once its
// notes are read; what sandboxhost does holds nobody up. What it placed stays.
func (k *Keeper) Run(ctx context.Context, ready func()) (err error) {
	j, _, err := journal.Open(journal.Options{Path: k.cfg.Journal, Kind: "presence-drain", Version: 1, Log: k.deps.Log})
	if err != nil {
		return err
	}
	defer func() { err = k.close(err) }()
	r, err := load(j)
	if err != nil {
		return errors.Join(err, j.Close())
	}
	k.change(func() {
		k.journal, k.record = j, reborn(r, k.cfg.BootID)
		k.seen.told = k.record.GetDrain() != nil // a drain of a life before has waited
	})
	ready()
	if k.deps.Host == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	for attempt := 0; ctx.Err() == nil; {
		began := time.Now()
		err := k.round(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		k.lose(err)
		attempt = retry.Next(attempt, time.Since(began))
		k.deps.Log.Debug("stream ended", logging.Component("sandboxhost"), logging.Err(err))
		k.pause(ctx, retry.Delay(attempt, rand.Float64()))
	}
	return context.Cause(ctx)
}

// close ends the notes, joined to a cause.
func (k *Keeper) close(cause error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.journal == nil {
		return cause
	}
	j := k.journal
	k.journal = nil
	if err := j.Close(); err != nil {
		return errors.Join(cause, err)
	}
	return cause
}

// want says which holds should stand, and after what time that may be different by
// itself, 0 if it is not. A
// drain waits a moment for the cluster to be told: what is not placed here need not be
// stopped.
func (k *Keeper) want(have []*sandboxhostv1.Hold) ([]*sandboxhostv1.Hold, time.Duration, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.record == nil {
		if err := k.recoverLocked(have); err != nil {
			return nil, 0, err
		}
	}
	left := time.Until(k.askedAt.Add(tellLimit))
	if k.record.GetDrain() == nil || k.seen.told || left <= 0 {
		k.seen.told = k.record.GetDrain() != nil
		return wanted(k.record), 0, nil
	}
	early := proto.CloneOf(k.record)
	early.Drain = nil
	holds := wanted(early)
	for _, h := range have { // an earlier drain, whose notes are lost or that was joined, goes on
		if h.GetPurpose() == forDrain {
			holds = append(holds, h)
		}
	}
	return holds, left, nil
}

// recoverLocked takes what sandboxhost has for what was asked for.
func (k *Keeper) recoverLocked(have []*sandboxhostv1.Hold) error {
	r := found(have, k.cfg.BootID, now())
	if r == nil {
		return nil
	}
	if err := save(k.journal, r); err != nil {
		return err
	}
	k.deps.Log.Warn("notes recovered", logging.Component("sandboxhost"), logging.Count(len(have)))
	k.record = r
	k.publishLocked()
	return nil
}

// sandbox takes one message about sandboxes.
func (k *Keeper) sandbox(msg *sandboxhostv1.WatchSandboxesResponse) {
	k.change(func() { k.seen.sandbox(msg) })
}

// grant takes one message about grants.
func (k *Keeper) grant(msg *sandboxhostv1.WatchGrantsResponse) {
	k.change(func() { k.seen.grant(msg) })
}

// lose notes that sandboxhost cannot be asked. What it said before is shown on, and
// not counted as done.
func (k *Keeper) lose(err error) {
	k.change(func() { k.seen.away = clip("the holds of sandboxhost cannot be looked after: " + err.Error()) })
}

// pause waits, until something else is wanted at most.
func (k *Keeper) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-k.wake:
	case <-timer.C:
	}
}

// change changes what is known and shows it.
func (k *Keeper) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
	k.publishLocked()
}

// publishLocked shows how it is, if that has changed.
func (k *Keeper) publishLocked() {
	a := &presencev1.Admission{
		Cordoned: k.record.GetCordoned(), CordonedAt: k.record.GetCordonedAt(), CordonReason: k.record.GetCordonReason(),
		Holding: len(k.seen.holds) > 0,
	}
	if d := k.record.GetDrain(); d != nil {
		a.Drain = assess(forDrain, d, &k.seen)
	}
	if d := k.record.GetShutdown(); d != nil {
		a.Shutdown = assess(forShutdown, d, &k.seen)
	}
	if was, _ := k.hub.Get(struct{}{}); !proto.Equal(was, a) {
		k.hub.Set(struct{}{}, a)
	}
}

func now() moment { return moment{Wall: time.Now(), Boot: boottime.Now()} }
