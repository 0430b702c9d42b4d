package host

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// imagesLimit bounds the pull of all images of a sandbox, stepLimit every
	// other step, observeLimit a question.
	imagesLimit  = time.Hour
	stepLimit    = time.Minute
	observeLimit = 10 * time.Second
	// unclassified is how often a step is tried whose error has no kind that
	// says that it may help.
	unclassified = 5
	// shownAfter is how many questions in a row stay without an answer before
	// people are told.
	shownAfter = 3
	// progressPeriod is how often the progress of a slow step is shown.
	progressPeriod = time.Second
)

// retryPolicy is for a step or a question that failed and may succeed later.
var retryPolicy = backoff.Policy{Initial: 200 * time.Millisecond, Cap: 30 * time.Second}

// retryNotes is what a keeper remembers of something that failed.
type retryNotes struct {
	tries int
	at    time.Duration // not before, on the boot clock
	blind bool          // it was the question what there is
}

// errOverruled is the cause of a step that a new wish made pointless.
var errOverruled = errors.New("overruled by a new wish")

// observe asks the engine what there is. A question that failed leaves everything
// as it was.
func (k *keeper) observe(ctx context.Context) bool {
	var seen engine.Observed
	select {
	case <-k.look: // this is the look
	default:
	}
	err := k.attend(ctx, observeLimit, func() bool { return true }, func(ctx context.Context) (err error) {
		seen, err = k.host.deps.Engine.Observe(ctx, k.uid)
		return err
	})
	if err != nil {
		k.unseen(ctx, err)
		return false
	}
	if k.retry.blind {
		k.relieved()
	}
	k.observed, k.fresh = seen, true
	k.noteSilence()
	_ = k.change(forPeople, func(r *sandboxhostv1.SandboxRecord) { mirror(r, seen) }) // not written, cannot fail
	return true
}

// noteSilence keeps since when the shim does not answer.
func (k *keeper) noteSilence() {
	switch now := k.host.deps.Now(); {
	case !k.observed.Silent:
		k.silent = 0
	case k.silent == 0:
		k.silent = max(now, 1)
		k.log.Warn("shim does not answer")
	}
}

// carryOut does what Next decided.
func (k *keeper) carryOut(ctx context.Context, d Decision) error {
	at := k.host.now()
	switch d.Kind {
	case Act:
		return k.act(ctx, d.Action, at)
	case NoteExit:
		err := k.change(durable, func(r *sandboxhostv1.SandboxRecord) { noteExit(r, d.Container, at) })
		if err == nil {
			k.life.noted[d.Container.ID] = true
		}
		return err
	case Enter:
		how := durability(d.Phase >= running)
		why := k.why(d)
		return k.change(how, func(r *sandboxhostv1.SandboxRecord) { enter(r, d, why, at) })
	case Begin:
		return k.begin(d.Backoff, at)
	case TornDown:
		return k.tornDown(at)
	}
	return fault.New(fault.Internal, "sandbox %s: decision of unknown kind %d", k.uid, d.Kind)
}

// why is what is told with a new phase.
func (k *keeper) why(d Decision) told {
	switch {
	case d.Phase < stopping:
		return told{}
	case d.Reason == ReasonStepFailed && k.life.failure != nil:
		return faultTold(k.life.failure)
	case d.Reason == ReasonUnhealthy && d.Phase == stopping:
		return told{message: clip(k.life.unhealthy)}
	case d.Reason == ReasonHeld && d.Phase == stopping:
		held, _ := k.host.heldBy(k.rec.GetWish().GetManager())
		return told{message: held.sentence()}
	case d.Reason == ReasonExited:
		return told{message: describeExits(k.rec.GetStatus())}
	case d.Phase > stopping:
		return toldBy(k.rec.GetStatus())
	}
	return told{message: sentences[d.Reason]}
}

// inCircle is an error when one step was done again and again and what is
// observed does not change by it. Without it an engine that is wrong about
// itself would keep a core busy.
func (k *keeper) inCircle(d Decision) error {
	const most = 3
	if d.Kind != Act || d.Action != k.life.last {
		k.life.last, k.life.repeated = d.Action, 0
		k.relieved()
		return nil
	}
	if k.life.repeated++; k.life.repeated < most {
		return nil
	}
	return fault.New(fault.Internal, "%s: was done %d times and changed nothing", d.Action.Step, k.life.repeated+1)
}

// begin goes on to the next attempt.
func (k *keeper) begin(waits bool, at moment) error {
	var failures uint32
	var wait time.Duration
	if waits {
		var ran time.Duration
		if since := k.rec.GetRunningSinceBoottime(); since != nil {
			ran = at.Boot - since.AsDuration()
		}
		p := restartBackoff(k.rec, k.host.cfg.Restart)
		failures = uint32(p.Next(int(k.rec.GetFailures()), ran))
		wait = p.Delay(int(failures), rand.Float64())
	}
	err := k.change(durable, func(r *sandboxhostv1.SandboxRecord) { begin(r, k.hash, failures, wait, at) })
	if err != nil {
		return err
	}
	k.life = newLife()
	k.retry = retryNotes{}
	return nil
}

// tornDown says that nothing is left.
func (k *keeper) tornDown(at moment) error {
	if err := k.change(durable, func(r *sandboxhostv1.SandboxRecord) { tornDown(r, at) }); err != nil {
		return err
	}
	k.host.freeName(k)
	if k.orphan {
		k.leave(nil) // nobody wished for it, so its uid may come back
	}
	return nil
}

// act lets the engine do one step.
func (k *keeper) act(ctx context.Context, a engine.Action, at moment) error {
	if a.Step == engine.StepSignal || a.Step == engine.StepPreStop {
		err := k.change(durable, func(r *sandboxhostv1.SandboxRecord) { beginStop(r, a.ContainerID, at) })
		if err != nil {
			return err
		}
	}
	attempt := engine.Attempt{
		Wish:     k.rec.GetWish(),
		SpecHash: k.hash,
		Number:   k.rec.GetStatus().GetAttempt(),
		Images:   imagesOf(k.rec.GetStatus()),
		Disks:    k.disks(),
		Progress: k.report,
	}
	limit := k.limitOf(a, at.Boot)
	k.log.Debug("step begun", logging.Step(string(a.Step)), logging.Attempt(int64(attempt.Number)))
	k.fresh = false // whether it succeeds or not
	wanted := func() bool { return k.wanted(attempt, a) }
	err := k.attend(ctx, limit, wanted, func(ctx context.Context) error {
		return k.host.deps.Engine.Do(ctx, attempt, a)
	})
	select {
	case <-k.progress: // of a step that is over
	default:
	}
	if a.Step == engine.StepPreStop {
		return k.preStopped(ctx, a, err, at)
	}
	if err != nil {
		return err
	}
	switch a.Step {
	case engine.StepImages:
		return k.imagesPresent(attempt)
	case engine.StepSignal:
		k.life.signalled[a.ContainerID] = a.Signal
	}
	return nil
}

// imagesPresent notes, before anything is made of them, which images an attempt has: a
// later one is made of the same.
func (k *keeper) imagesPresent(a engine.Attempt) error {
	current := a.SpecHash == k.hash && a.Number == k.rec.GetStatus().GetAttempt()
	if current && !maps.Equal(a.Images, imagesOf(k.rec.GetStatus())) {
		if err := k.change(durable, func(r *sandboxhostv1.SandboxRecord) { noteImages(r, a.Images) }); err != nil {
			return err
		}
	}
	k.life.images = a.SpecHash == k.hash
	return nil
}

// attend runs f, and reads letters and hears of holds meanwhile. F is cancelled when it is not wanted any
// more, and always waited for.
func (k *keeper) attend(ctx context.Context, limit time.Duration, wanted func() bool, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limited, stop := context.WithTimeout(ctx, limit)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- f(limited) }() // owned by this call, which waits for it
	var shown time.Time
	for {
		select {
		case err := <-done:
			if err != nil && errors.Is(context.Cause(limited), errOverruled) {
				return errOverruled
			}
			return err
		case l := <-k.mail:
			k.read(l)
			if !wanted() {
				cancel(errOverruled)
			}
		case <-k.held:
			k.reshow()
			if !wanted() {
				cancel(errOverruled)
			}
		case sentence := <-k.progress:
			if time.Since(shown) >= progressPeriod {
				shown = time.Now()
				k.show(func(s *resourcev1.SandboxStatus) { tell(s, told{message: clip(sentence)}) })
			}
		}
	}
}

// report takes a sentence about the progress of a step. Only the newest matters.
func (k *keeper) report(sentence string) {
	select {
	case <-k.progress:
	default:
	}
	select {
	case k.progress <- sentence:
	default:
	}
}

// unseen is called when nobody could say what there is. That says nothing about
// the sandbox, so it is shown only when it lasts, and in words that stay the same.
func (k *keeper) unseen(ctx context.Context, err error) {
	if k.ended || ctx.Err() != nil {
		return
	}
	k.retry.tries++
	k.retry.blind = true
	wait := retryPolicy.Delay(k.retry.tries, rand.Float64())
	k.retry.at = k.host.deps.Now() + wait
	level := slog.LevelWarn
	if errors.Is(err, fault.Unavailable) { // the engine has said so, once for all
		level = slog.LevelDebug
	}
	k.log.Log(ctx, level, "sandbox not observed", logging.Err(err), logging.RetryIn(wait))
	if k.retry.tries < shownAfter {
		return
	}
	k.trouble = sentences[ReasonUnseen]
	defer k.reshow()
	k.show(func(s *resourcev1.SandboxStatus) {
		if s.GetPhase() < stopping {
			s.Reason = ReasonUnseen
			tell(s, told{message: sentences[ReasonUnseen]})
		}
	})
}

// troubled decides what a failure means: that the attempt cannot succeed, or that
// the same is tried again later.
func (k *keeper) troubled(ctx context.Context, a engine.Action, err error) {
	if errors.Is(err, errOverruled) || k.ended || ctx.Err() != nil {
		return
	}
	k.retry.tries++
	kind := fault.KindOf(err)
	final := kind == fault.Invalid || kind == fault.NotFound || kind == fault.Denied ||
		kind == fault.Internal && k.retry.tries >= unclassified
	if final && bringsUp(a.Step) && k.rec.GetStatus().GetPhase() < running { // what runs is never ended for it
		k.log.Warn("step cannot succeed", logging.Step(string(a.Step)), logging.Err(err))
		k.life.failure = err
		k.retry = retryNotes{}
		return
	}
	wait := retryPolicy.Delay(k.retry.tries, rand.Float64())
	k.retry.at = k.host.deps.Now() + wait
	k.host.deps.Note(eventOf(k.state(), warning, ReasonRetrying, err.Error()))
	k.log.Warn("step failed", logging.Step(string(a.Step)), logging.Err(err), logging.RetryIn(wait))
	why := faultTold(err)
	k.trouble = why.message
	defer k.reshow()
	k.show(func(s *resourcev1.SandboxStatus) {
		tell(s, why)
		if s.GetPhase() < stopping {
			s.Reason = ReasonRetrying
		}
	})
}
