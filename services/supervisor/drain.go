package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/process"
	"staddle.internal/kit/run"
)

// presence is the process that drains the node.
const presence = "presence"

const (
	// answerLimit is how long nobody may say anything of the sandboxes while this process
	// waits to end: as long as it takes to start presence again, and more.
	answerLimit = 10 * time.Second
	// unmountLimit is how long disks may take once all sandboxes are dead: storage-agent
	// unmounts nothing without a coordinator, which may be gone for good.
	unmountLimit = 15 * time.Second
	// killMargin is what the end of killed sandboxes may take.
	killMargin = 15 * time.Second
	// askAgain is the wait before presence is asked again.
	askAgain = 200 * time.Millisecond
)

// drain has the node drained as for a shutdown of the machine, and tells how far that
// is. It returns nil when it is done.
type drain func(ctx context.Context, killAfter *durationpb.Duration, tell func(*presencev1.DrainProgress)) error

func drainer(p *process.Process) drain {
	return func(ctx context.Context, killAfter *durationpb.Duration, tell func(*presencev1.DrainProgress)) error {
		conn, err := p.Dial(presence)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx) // ends the stream with this function
		defer cancel()
		stream, err := presencev1.NewPresenceServiceClient(conn).Drain(ctx, &presencev1.DrainRequest{
			Shutdown: true, KillAfter: killAfter, Reason: "shutdown of the supervisor",
		})
		for err == nil {
			var now *presencev1.DrainResponse
			if now, err = stream.Recv(); err == nil {
				tell(now.GetProgress())
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return fmt.Errorf("drain the node: %w", err)
	}
}

// byRequest is the drain of a caller, who waits as long as he likes.
func (d drain) byRequest(ctx context.Context, killAfter *durationpb.Duration) error {
	return d(ctx, killAfter, func(*presencev1.DrainProgress) {})
}

// ending is what becomes of the sandboxes when this process was asked to end.
type ending struct {
	cfg   config.Supervisor
	drain drain
	log   *slog.Logger

	// settled is true once a caller of Shutdown has said what becomes of them.
	settled atomic.Bool
}

// member is the last to start, so that all others are there until it has ended.
func (e *ending) member() run.Member {
	limit := e.cfg.DrainTimeout.Std() + killMargin + unmountLimit + answerLimit
	return run.Member{Name: "sandboxes", StopTimeout: limit + time.Second, Run: func(ctx context.Context, ready func()) error {
		ready()
		<-ctx.Done()
		if e.cfg.StopMode != config.StopDrain || e.settled.Load() {
			return context.Cause(ctx)
		}
		inTime, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		began := time.Now()
		if err := e.drainAll(inTime); err != nil {
			e.log.Warn("sandboxes not ended", logging.Err(err))
		} else {
			e.log.Info("sandboxes ended", logging.Duration(time.Since(began)))
		}
		return context.Cause(ctx)
	}}
}

// drainAll waits as long as somebody says how far it is and the sandboxes have time
// left, and for a presence that died until it is back.
func (e *ending) drainAll(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	killed := time.Now().Add(e.cfg.DrainTimeout.Std() + killMargin)
	last := presencev1.DrainStep_DRAIN_STEP_HOLDING
	timer := time.AfterFunc(patience(last, time.Until(killed)), cancel)
	defer timer.Stop()
	step := func(now presencev1.DrainStep) {
		if now != last {
			last = now
			timer.Reset(patience(now, time.Until(killed)))
		}
	}
	for {
		err := e.drain(ctx, durationpb.New(e.cfg.DrainTimeout.Std()), func(p *presencev1.DrainProgress) { step(p.GetStep()) })
		switch {
		case err == nil:
			return nil
		case ctx.Err() == nil:
			step(presencev1.DrainStep_DRAIN_STEP_HOLDING)
		case last == presencev1.DrainStep_DRAIN_STEP_UNMOUNTING:
			e.log.Warn("disks left mounted", logging.Err(err))
			return nil
		default:
			return fault.New(fault.Unavailable, "waited in vain, at last in %s: %w", last, err)
		}
		_ = backoff.Wait(ctx, askAgain) // whether it ended is seen by the next try
	}
}

// patience is how long a step may last, given what is left until the last sandbox
// must have ended.
func patience(step presencev1.DrainStep, left time.Duration) time.Duration {
	switch step {
	case presencev1.DrainStep_DRAIN_STEP_STOPPING:
		return max(0, left)
	case presencev1.DrainStep_DRAIN_STEP_UNMOUNTING:
		return unmountLimit
	}
	return answerLimit
}
