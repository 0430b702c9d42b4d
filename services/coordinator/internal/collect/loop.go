package collect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"

	"staddle.internal/services/coordinator/internal/mirror"
	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

// writer is what the loop needs of the store.
type writer interface {
	Commit(ctx context.Context, c store.Change) (uint64, error)
}

// reader is what the loop needs of the mirror.
type reader interface {
	View() mirror.View
	Await(ctx context.Context, revision uint64) error
}

// Deps is what the loop needs.
type Deps struct {
	Store  writer
	Mirror reader
	Log    *slog.Logger
}

// Config says how patient the loop is.
type Config struct {
	// LostGrace is after how long without session a lost node is complained of.
	LostGrace time.Duration
}

// Loop finishes records. It belongs to the goroutine of Run.
type Loop struct {
	cfg  Config
	deps Deps
	told map[string]time.Time // node uid → the loss that was complained of
}

// NewLoop returns a loop that does nothing yet.
func NewLoop(cfg Config, deps Deps) *Loop { return &Loop{cfg, deps, map[string]time.Time{}} }

// retry is how long the loop waits when the store could not be written.
var retry = backoff.Policy{Initial: 100 * time.Millisecond, Cap: 5 * time.Second}

// Run plans whenever something changes and does what is planned, until ctx ends.
func (l *Loop) Run(ctx context.Context, ready func()) error {
	ready()
	attempt := 0
	for {
		view := l.deps.Mirror.View()
		if err := l.pass(ctx, view); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			attempt++
			l.deps.Log.Warn("finishing failed", logging.Err(err), logging.Attempt(int64(attempt)))
			if err := backoff.Wait(ctx, retry.Delay(attempt, 0.5)); err != nil {
				return err
			}
			continue
		}
		attempt = 0
		if err := l.wait(ctx, view); err != nil {
			return err
		}
	}
}

// pass writes one step at a time: each has its own conditions, and one that does
// not hold any more must not keep the others back.
func (l *Loop) pass(ctx context.Context, view mirror.View) error {
	var written uint64
	for _, step := range Plan(view, timestamppb.Now()) {
		revision, err := l.deps.Store.Commit(ctx, step.Change)
		switch {
		case fault.Reason(err) == store.ReasonRevision:
			continue // it was changed meanwhile; the change brings us back
		case errors.Is(err, fault.Unavailable):
			return err
		case err != nil: // it alone cannot be written: the others do not wait for it
			l.deps.Log.Error("step refused", logging.Step(step.What), logging.Reason(record.Label(step.Record)), logging.Err(err))
			continue
		}
		written = max(written, revision)
		l.deps.Log.Info("record finished", logging.Step(step.What), logging.Reason(record.Label(step.Record)))
	}
	return l.deps.Mirror.Await(ctx, written)
}

// wait returns at the next change, or when the next lost node is overdue.
func (l *Loop) wait(ctx context.Context, view mirror.View) error {
	overdue, next := Overdue(view, l.cfg.LostGrace, time.Now())
	for _, r := range overdue {
		uid, since := r.GetMeta().GetUid(), r.GetNode().GetPlacement().GetLostSince().AsTime()
		if !l.told[uid].Equal(since) {
			l.told[uid] = since
			l.deps.Log.Warn("node still lost", id.Node(uid).Attr(), logging.Reason(
				fmt.Sprintf("%s has had no session since %s", r.GetMeta().GetName(), since.Format(time.RFC3339))))
		}
	}
	timer := time.NewTimer(next)
	defer timer.Stop()
	select {
	case <-view.Changed:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
