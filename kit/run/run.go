// Package run owns the life of a process: its members start in order, each
// after the one before is ready, and stop in reverse, each within its own limit.
//
// A member is one function that opens, says ready, blocks, releases and returns.
// The process ends with the first cause: a signal, or the member that failed. A
// panic of a member is its failure, so that the others still stop in order.
//
// It must never know what a member does, and never restart one: a process that
// lost a part ends, and whoever supervises starts it afresh. In the trail it is
// the first package that every main opens.
package run

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// DefaultStopTimeout is the limit of a member that states none.
const DefaultStopTimeout = 10 * time.Second

// Member is one long-lived part of a process.
type Member struct {
	// Name is how errors call it: one word.
	Name string

	// Run blocks until ctx is done or the member fails. It calls ready once,
	// when later members may rely on it; more calls do nothing. To return
	// before ctx is done is a failure, also without an error.
	Run func(ctx context.Context, ready func()) error

	// StopTimeout bounds how long Run may take to return after ctx is done.
	// Zero means DefaultStopTimeout.
	StopTimeout time.Duration
}

// Members runs members in the given order. When ctx is done, or any member
// returns, it stops those already started, last first, and returns why. Failures
// to stop are joined to that cause; a member that overstays its limit is named
// and left behind. The result is never nil.
func Members(ctx context.Context, members ...Member) error {
	exits := make(chan *running, len(members))
	var started []*running
	cause := func() error {
		for _, m := range members {
			r := start(ctx, m, exits)
			started = append(started, r)
			select {
			case <-r.ready:
			case e := <-exits:
				return e.reason()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		select {
		case e := <-exits:
			return e.reason()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}()

	errs := []error{cause}
	for i := len(started) - 1; i >= 0; i-- {
		errs = append(errs, started[i].stop(cause))
	}
	return join(errs)
}

// running is a member that was started.
type running struct {
	Member
	cancel context.CancelCauseFunc
	ready  chan struct{}
	done   chan struct{} // closed after err is written
	err    error
}

// start begins a member. Its context ends only by stop: with the parent's they
// would all fall at once.
func start(parent context.Context, m Member, exits chan<- *running) *running {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	r := &running{Member: m, cancel: cancel, ready: make(chan struct{}), done: make(chan struct{})}
	ready := sync.OnceFunc(func() { close(r.ready) })
	go func() { // owned by Members: stop waits for done
		r.err = call(ctx, m.Run, ready)
		close(r.done)
		exits <- r
	}()
	return r
}

// call runs f and turns its panic into an error with the stack.
func call(ctx context.Context, f func(context.Context, func()) error, ready func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f(ctx, ready)
}

// reason says why a member returned that nobody had asked to stop.
func (r *running) reason() error {
	if r.err == nil {
		return fmt.Errorf("member %s: ended by itself", r.Name)
	}
	return fmt.Errorf("member %s: %w", r.Name, r.err)
}

// stop ends a member and waits for it. To return the cause, or an error of the
// cancelled context, is a clean stop.
func (r *running) stop(cause error) error {
	select {
	case <-r.done: // by itself: told by its reason if it was first
		r.cancel(cause)
		return r.alsoFailed(cause)
	default:
	}
	r.cancel(cause)
	limit := r.StopTimeout
	if limit <= 0 {
		limit = DefaultStopTimeout
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
		return fmt.Errorf("stop member %s: still running after %s", r.Name, limit)
	}
	if r.err == nil || errors.Is(r.err, cause) || errors.Is(r.err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("stop member %s: %w", r.Name, r.err)
}

// alsoFailed is the error of a member that had ended before it was stopped, if
// the cause does not tell it already.
func (r *running) alsoFailed(cause error) error {
	if r.err == nil || errors.Is(cause, r.err) {
		return nil
	}
	return r.reason()
}

// join is errors.Join, but leaves a lone cause as it is.
func join(errs []error) error {
	var some []error
	for _, err := range errs {
		if err != nil {
			some = append(some, err)
		}
	}
	if len(some) == 1 {
		return some[0]
	}
	return errors.Join(some...)
}
