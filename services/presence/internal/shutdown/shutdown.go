// Package shutdown ends the sandboxes of the node in order before the machine goes
// down, while the processes of the node still run, and waits for that.
//
// It asks presence, and where that does not answer sandboxhost itself. It waits as long
// as somebody says how far it is and the sandboxes have time left, and never for one
// who has gone: then it says so, and whoever takes the node down goes on without it.
// It must never end a sandbox itself. It stands outside the trail; the unit that systemd
// stops first at a shutdown is what calls it.
package shutdown

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
)

const (
	// answerLimit is how long nobody may say anything of the sandboxes. A process that
	// was killed is back in a second; one that hangs is given up by its connection in
	// no more than twice this.
	answerLimit = 10 * time.Second
	// unmountLimit is how long disks may take once all sandboxes are dead. What is
	// mounted then is unmounted by whoever takes the node down: storage-agent unmounts
	// nothing without a coordinator, which may be gone for good.
	unmountLimit = 15 * time.Second
	// killMargin is what the end of killed sandboxes may take.
	killMargin = 15 * time.Second
	// pause is the wait before one who failed is asked again.
	pause = 200 * time.Millisecond
)

// Way is one way to have the sandboxes ended.
type Way struct {
	// Name of who is asked.
	Name string
	// Drain has them ended and tells how far that is at each change. It returns nil once
	// it has told that all is done, else why it cannot go on. It is called again then.
	Drain func(ctx context.Context, tell func(*presencev1.DrainProgress)) error
}

// Run tries one way after the other until the sandboxes are dead, and returns nil
// then. KillAfter is how long they may take, whatever their grace periods. It returns
// Unavailable with all reasons if no way leads there. Safe to repeat.
func Run(ctx context.Context, killAfter time.Duration, log *slog.Logger, ways ...Way) error {
	var errs []error
	for _, way := range ways {
		err := follow(ctx, killAfter, log, way)
		if err == nil {
			return nil
		}
		log.Warn("sandboxes not ended", logging.Component(way.Name), logging.Err(err))
		errs = append(errs, fmt.Errorf("end sandboxes by %s: %w", way.Name, err))
	}
	return errors.Join(errs...)
}

// follow goes one way to its end, or until nothing comes of it.
func follow(ctx context.Context, killAfter time.Duration, log *slog.Logger, way Way) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	progress := make(chan *presencev1.DrainProgress)
	wg.Go(func() { ask(ctx, way, progress) }) // waited for above
	last := &presencev1.DrainProgress{Step: holding, WaitingFor: "an answer"}
	killed := time.Now().Add(killAfter + killMargin)
	timer := time.NewTimer(patience(last.GetStep(), time.Until(killed)))
	defer timer.Stop()
	for {
		select {
		case now := <-progress:
			if now.GetStep() != last.GetStep() {
				timer.Reset(patience(now.GetStep(), time.Until(killed)))
				log.Info("sandboxes ending", logging.Step(now.GetStep().String()), logging.Count(int(now.GetSandboxes()-now.GetDead())), logging.Reason(now.GetWaitingFor()))
			}
			last = now
			if now.GetStep() == done {
				return nil
			}
		case <-timer.C:
			return given(last, log)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Short names for the steps.
const (
	holding    = presencev1.DrainStep_DRAIN_STEP_HOLDING
	stopping   = presencev1.DrainStep_DRAIN_STEP_STOPPING
	unmounting = presencev1.DrainStep_DRAIN_STEP_UNMOUNTING
	done       = presencev1.DrainStep_DRAIN_STEP_DONE
)

// ask goes the way again and again until it is done.
func ask(ctx context.Context, way Way, progress chan<- *presencev1.DrainProgress) {
	tell := func(p *presencev1.DrainProgress) {
		select {
		case progress <- p:
		case <-ctx.Done():
		}
	}
	for {
		err := way.Drain(ctx, tell)
		if err == nil {
			return
		}
		tell(&presencev1.DrainProgress{Step: holding, WaitingFor: err.Error()})
		if backoff.Wait(ctx, pause) != nil {
			return
		}
	}
}

// patience is how long a step may last, given what is left until the last sandbox
// must have ended.
func patience(step presencev1.DrainStep, left time.Duration) time.Duration {
	switch step {
	case stopping:
		return max(0, left)
	case unmounting:
		return unmountLimit
	}
	return answerLimit
}

// given decides what it means that a step lasted too long.
func given(last *presencev1.DrainProgress, log *slog.Logger) error {
	if last.GetStep() == unmounting {
		log.Warn("disks left mounted", logging.Count(int(last.GetDisks())), logging.Reason(last.GetWaitingFor()))
		return nil
	}
	return fault.New(fault.Unavailable, "waited in vain for: %s", last.GetWaitingFor())
}
