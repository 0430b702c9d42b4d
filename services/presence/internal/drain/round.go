package drain

import (
	"context"
	"sync"
	"time"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// round makes the holds match once, and follows what comes of it until something
// else is wanted; then it returns nil.
func (k *Keeper) round(ctx context.Context) error {
	have, err := k.deps.Host.Holds(ctx)
	if err != nil {
		return err
	}
	want, wait, err := k.want(have)
	if err != nil {
		return err
	}
	changed, err := k.match(ctx, want, have)
	if err != nil {
		return err
	}
	if changed { // what to be told of from here on is what is different from this
		if have, err = k.deps.Host.Holds(ctx); err != nil {
			return err
		}
	}
	k.change(func() { k.seen.confirm(want) })
	return k.follow(ctx, want, have, wait)
}

// match makes the holds that stand those that are wanted, and says whether there was
// anything to do.
func (k *Keeper) match(ctx context.Context, want, have []*sandboxhostv1.Hold) (changed bool, err error) {
	ensure, lift := difference(want, have)
	for _, h := range ensure {
		if err := k.deps.Host.Ensure(ctx, h); err != nil {
			return true, err
		}
	}
	for _, p := range lift {
		if err := k.deps.Host.Lift(ctx, p); err != nil {
			return true, err
		}
	}
	return len(ensure)+len(lift) > 0, nil
}

// follow watches the holds, and what they hold, until something else is wanted. Nothing
// is asked for meanwhile: whoever changes something tells.
func (k *Keeper) follow(ctx context.Context, want, have []*sandboxhostv1.Hold, wait time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	ended := make(chan error, 3) // one for each stream
	wg.Go(func() {
		ended <- k.deps.Host.WatchHolds(ctx, func(now *sandboxhostv1.WatchHoldsResponse) {
			if !sameHolds(now.GetHolds(), have) {
				k.awake()
			}
		})
	})
	if len(want) > 0 {
		wg.Go(func() { ended <- k.deps.Host.Sandboxes(ctx, k.sandbox) })
		wg.Go(func() { ended <- k.deps.Host.Grants(ctx, k.grant) })
	}
	for {
		if err := k.until(ctx, ended, wait); err != nil || ctx.Err() != nil {
			return err
		}
		now, err := k.deps.Host.Holds(ctx)
		if err != nil {
			return err
		}
		next, again, err := k.want(now)
		if err != nil {
			return err
		}
		if ensure, lift := difference(next, now); len(ensure)+len(lift) > 0 || len(next) != len(want) || !sameHolds(now, have) {
			return nil
		}
		wait = again
	}
}

// until waits until something else may be wanted, for the time after which it is by
// itself, or for the end of a stream, whose error it returns.
func (k *Keeper) until(ctx context.Context, ended <-chan error, wait time.Duration) error {
	var due <-chan time.Time // never, without a time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	case <-k.wake:
	case <-due:
	}
	return nil
}
