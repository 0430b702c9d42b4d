package host

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// mailbox is how many letters wait for a keeper; more are refused.
	mailbox = 8
	// resync is how often a sandbox at rest is observed although nobody said
	// that something happened, a fifth more or less.
	resync = 5 * time.Minute
	// killAgain is after how long a signal that cannot be ignored is sent again.
	killAgain = 5 * time.Second
	// silentLimit is how long a shim may not answer until it is ended by force, where its
	// containers are to end, and silentAgain how often it is asked meanwhile: nobody tells
	// when it answers again.
	silentLimit = 30 * time.Second
	silentAgain = 5 * time.Second
)

// keeper owns one sandbox. All fields below mail belong to its goroutine.
type keeper struct {
	uid  id.Sandbox
	name string // full, reserved at the host; empty for an orphan
	host *Host
	log  *slog.Logger
	cut  atomic.Bool   // the disconnect policy has stopped it
	look chan struct{} // observe again
	held chan struct{} // the holds have changed
	mail chan letter

	checked chan struct{} // the prober has something new
	done    chan struct{} // closed when it has ended

	rec      *sandboxhostv1.SandboxRecord // never changed once set: readers have parts of it
	hash     string                       // of the wish's spec
	orphan   bool                         // no wish is known, nothing of it is in the journal
	ended    bool                         // dropped, or its first wish was not accepted
	observed engine.Observed
	fresh    bool          // observed is newer than the last hint
	silent   time.Duration // since when its shim does not answer, on the boot clock; 0 if it does
	life     lifeNotes
	retry    retryNotes
	trouble  string                      // what failed last and is tried again
	heard    uint64                      // version of the holds that was acted on last
	shown    *sandboxhostv1.SandboxState // what the hub has
	progress chan string
	fetch    *fetching
	watch    watching
	errands  []letter       // to be done before the next step
	resting  bool           // the last decision was to wait for something to change
	probers  sync.WaitGroup // of all attempts; run waits for them
}

// lifeNotes is what a keeper remembers of one attempt, and forgets with it.
type lifeNotes struct {
	images    bool          // present
	failure   error         // of a step that cannot succeed
	unhealthy string        // what a probe says that ends the attempt
	last      engine.Action // that was done
	repeated  int           // how often that was done in a row, without the first
	noted     map[string]bool
	signalled map[string]syscall.Signal
}

func newKeeper(h *Host, uid id.Sandbox, name string) *keeper {
	return &keeper{
		uid:      uid,
		name:     name,
		host:     h,
		log:      h.log().With(uid.Attr()),
		look:     make(chan struct{}, 1),
		held:     make(chan struct{}, 1),
		mail:     make(chan letter, mailbox),
		done:     make(chan struct{}),
		life:     newLife(),
		progress: make(chan string, 1),
		checked:  make(chan struct{}, 1),
		fetch:    &fetching{},
	}
}

func newLife() lifeNotes {
	return lifeNotes{noted: make(map[string]bool), signalled: make(map[string]syscall.Signal)}
}

// hint says that there may be something new to observe.
func (k *keeper) hint() {
	select {
	case k.look <- struct{}{}:
	default: // it will look anyway
	}
}

// hintHeld says that the holds have changed.
func (k *keeper) hintHeld() {
	select {
	case k.held <- struct{}{}:
	default: // it will look at them anyway
	}
}

// run is the life of a keeper: advance until at rest, wait, and again.
func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	defer k.probers.Wait()
	defer k.unwatch()
	defer k.endFetch()
	for ctx.Err() == nil && !k.ended {
		k.wait(ctx, k.advance(ctx))
	}
}

// advance takes the sandbox on, one decision after the other, until there is
// nothing to do but to wait for something or for the returned time.
func (k *keeper) advance(ctx context.Context) time.Duration {
	k.resting = false
	for ctx.Err() == nil && !k.ended && k.rec != nil {
		if len(k.errands) > 0 {
			k.runErrand(ctx)
		}
		now := k.host.deps.Now()
		k.hear()
		k.tend(ctx)
		if k.retry.at > now {
			return k.retry.at - now
		}
		if !k.fresh && !k.observe(ctx) {
			continue
		}
		if err := k.bootWaitOver(now); err != nil {
			k.troubled(ctx, engine.Action{}, err)
			continue
		}
		d := Next(k.input(ctx, now))
		if d.Kind == Rest {
			k.relieved()
			k.explain(d.Reason)
			k.reshow()
			k.resting = d.Reason != ReasonUnreadable
			return k.restFor(now)
		}
		err := k.carryOut(ctx, d)
		if err == nil {
			err = k.inCircle(d)
		}
		if err != nil {
			k.troubled(ctx, d.Action, err)
		}
	}
	return resync
}

// wait returns when there may be something to do.
func (k *keeper) wait(ctx context.Context, limit time.Duration) {
	if k.ended {
		return
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case l := <-k.mail:
		k.read(l)
	case <-k.held: // the next decision hears of it
	case <-k.checked: // the next decision takes it in
	case <-k.look:
		k.fresh = false
		if k.retry.blind || k.rec.GetStatus().GetPhase() == running { // somebody can see again, or something ended
			k.retry.at = 0
		}
	case <-timer.C:
		if k.rec == nil { // the first wish never came
			k.ended = true
			k.host.drop(k, nil)
			return
		}
		k.fresh = false
		for id, signal := range k.life.signalled {
			if signal == syscall.SIGKILL {
				delete(k.life.signalled, id)
			}
		}
	}
}

// input gathers what Next depends on.
func (k *keeper) input(ctx context.Context, now time.Duration) Input {
	held, holds := k.host.heldBy(k.rec.GetWish().GetManager())
	return Input{
		Record:      k.rec,
		SpecHash:    k.hash,
		Observed:    k.observed,
		CutOff:      k.cutOff(now),
		Held:        holds,
		Wait:        k.waitsFor(ctx),
		BackoffOver: k.rec.GetNextAtBoottime() == nil || k.rec.GetNextAtBoottime().AsDuration() <= now,
		ImagesReady: k.life.images,
		Failed:      k.life.failure != nil,
		Unhealthy:   k.life.unhealthy != "",
		SilentOver:  k.silent != 0 && now >= k.silent+silentLimit,
		GraceOver:   k.graceOver(now, held.over(now)),
		Noted:       k.life.noted,
		Signalled:   k.life.signalled,
	}
}

// graceOver has the containers that are ended by force now.
func (k *keeper) graceOver(now time.Duration, all bool) map[string]bool {
	over := make(map[string]bool)
	for _, c := range k.observed.Containers {
		end, known := stopEnd(k.rec, c)
		over[c.ID] = all || known && end <= now
	}
	return over
}

// restFor is how long a keeper may rest before time itself changes a decision.
func (k *keeper) restFor(now time.Duration) time.Duration {
	limit := resync + time.Duration((rand.Float64()-0.5)*0.4*float64(resync))
	until := func(t time.Duration) {
		if t > now {
			limit = min(limit, t-now)
		}
	}
	if k.rec.GetNextAtBoottime() != nil {
		until(k.rec.GetNextAtBoottime().AsDuration())
	}
	for _, c := range k.observed.Containers {
		if end, known := stopEnd(k.rec, c); known {
			until(end)
		}
		if k.life.signalled[c.ID] == syscall.SIGKILL {
			until(now + killAgain)
		}
	}
	if k.silent != 0 {
		until(now + silentAgain)
		until(k.silent + silentLimit)
	}
	held, _ := k.host.heldBy(k.rec.GetWish().GetManager())
	if held.limited && len(k.observed.Containers) > 0 {
		until(held.deadline)
	}
	if d, ok := k.cutOffAt(); ok {
		until(d)
	}
	if k.waitsForCluster() {
		until(k.host.quietSince() + k.host.cfg.BootHold)
	}
	return limit
}

// cutOffAt is when the disconnect policy stops the sandbox, if it has one.
func (k *keeper) cutOffAt() (time.Duration, bool) {
	after := k.rec.GetWish().GetSpec().GetDisconnect().GetStopAfter()
	if after == nil || k.rec.GetWish().GetManager() != ManagerCluster {
		return 0, false
	}
	return k.host.authority() + after.AsDuration(), true
}

// cutOff says whether the disconnect policy wants the sandbox stopped. One that it
// had stopped before a start of the host stays so until the authority is told:
// before that nothing says that the cluster is back.
func (k *keeper) cutOff(now time.Duration) bool {
	at, ok := k.cutOffAt()
	was := k.rec.GetStatus().GetPhase() >= stopping && k.rec.GetStatus().GetReason() == ReasonDisconnected
	cut := ok && (now >= at || was && k.host.renewed.Load() == 0)
	k.cut.Store(cut)
	return cut
}

// waitsForCluster is true while an attempt may not begin since the machine was
// started anew and the cluster has not named the sandbox since.
func (k *keeper) waitsForCluster() bool {
	return k.rec.GetWaitsForCluster()
}

// bootWaitOver lets a sandbox start after a reboot when there was no contact with the
// cluster for a while and its policy is to be kept.
func (k *keeper) bootWaitOver(now time.Duration) error {
	keep := k.rec.GetWish().GetSpec().GetDisconnect().GetStopAfter() == nil
	if !k.waitsForCluster() || !keep || now < k.host.quietSince()+k.host.cfg.BootHold {
		return nil
	}
	return k.change(durable, func(r *sandboxhostv1.SandboxRecord) { r.WaitsForCluster = false })
}

// waitsFor is the reason why an attempt may not begin.
func (k *keeper) waitsFor(ctx context.Context) string {
	if k.waitsForCluster() {
		return ReasonWaitingForCluster
	}
	secrets := k.waitsForSecrets(ctx)
	granted := k.disks()
	for _, c := range k.rec.GetWish().GetSpec().GetContainers() {
		for _, d := range c.GetDisks() {
			if granted[d.GetDisk()] == "" {
				return ReasonWaitingForDisk
			}
		}
	}
	return secrets
}

func (k *keeper) disks() map[string]string {
	if k.host.deps.Disks == nil {
		return nil
	}
	return k.host.deps.Disks(k.uid)
}
