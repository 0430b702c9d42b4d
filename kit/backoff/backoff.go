// Package backoff owns how long to wait before trying again.
//
// Delay is a pure function of the attempt and a random number, so that whoever
// keeps attempts over restarts gets the same series again. It must never decide
// whether to try again. In the trail it is what a keeper, a redial and a restart
// of a process have in common.
package backoff

import (
	"context"
	"time"
)

// Policy is one series of delays, which doubles from Initial to Cap.
type Policy struct {
	// Initial is the delay after the first failure. Zero means no delay at all.
	Initial time.Duration
	// Cap bounds every delay, jitter included. Zero means no growth beyond
	// Initial.
	Cap time.Duration
	// Stable is how long a thing must have run well before its next failure
	// counts as the first again. Zero means that it never does.
	Stable time.Duration
}

// Delay is how long to wait after failed attempt number attempt, counted from
// 1, with jitter in [0, 1): the delay lies between three quarters of its step and
// the whole step, so that it never exceeds Cap.
func (p Policy) Delay(attempt int, jitter float64) time.Duration {
	step := p.Initial
	limit := max(p.Cap, p.Initial)
	for i := 1; i < attempt && step > 0 && step < limit; i++ {
		if step > limit/2 {
			step = limit
			break
		}
		step *= 2
	}
	return step - time.Duration(float64(step)*min(max(jitter, 0), 1)/4)
}

// Next is the number of the failure that follows failure number attempt when
// the thing had run for ran in between: 1 if that was stable.
func (p Policy) Next(attempt int, ran time.Duration) int {
	if p.Stable > 0 && ran >= p.Stable {
		return 1
	}
	return attempt + 1
}

// Wait returns nil after d, or the cause of ctx when that ends first. A d of zero
// or less only looks at ctx.
func Wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
