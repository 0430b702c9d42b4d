package schedule

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"

	"staddle.internal/services/coordinator/internal/mirror"
	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

// records is what the loop needs of the store.
type records interface {
	Commit(ctx context.Context, c store.Change) (uint64, error)
	Newest(ctx context.Context) (uint64, error)
}

// reader is what the loop needs of the mirror.
type reader interface {
	View() mirror.View
	Await(ctx context.Context, revision uint64) error
}

// Deps is what the loop needs.
type Deps struct {
	Store  records
	Mirror reader
	Log    *slog.Logger
}

// Loop places sandboxes.
type Loop struct{ deps Deps }

// NewLoop returns a loop that does nothing yet.
func NewLoop(deps Deps) *Loop { return &Loop{deps} }

// retry is how long the loop waits when the store could not be written.
var retry = backoff.Policy{Initial: 100 * time.Millisecond, Cap: 5 * time.Second}

// Run looks at all waiting sandboxes whenever a record changes, until ctx ends.
func (l *Loop) Run(ctx context.Context, ready func()) error {
	ready()
	attempt, caughtUp := 0, false
	for {
		view, err := l.turn(ctx, caughtUp)
		caughtUp = err == nil
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			attempt++
			l.deps.Log.Warn("placing failed", logging.Err(err), logging.Attempt(int64(attempt)))
			if err := backoff.Wait(ctx, retry.Delay(attempt, 0.5)); err != nil {
				return err
			}
			continue
		}
		attempt = 0
		select {
		case <-view.Changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// turn makes one pass. The mirror must have caught up first: what the leader before
// has placed, or a write whose answer was lost, takes room that it may not show yet.
func (l *Loop) turn(ctx context.Context, caughtUp bool) (mirror.View, error) {
	if !caughtUp {
		newest, err := l.deps.Store.Newest(ctx)
		if err != nil {
			return mirror.View{}, err
		}
		if err := l.deps.Mirror.Await(ctx, newest); err != nil {
			return mirror.View{}, err
		}
	}
	view := l.deps.Mirror.View()
	return view, l.pass(ctx, view)
}

// pass decides about every waiting sandbox, oldest first, and waits until the
// mirror shows what it wrote: the next pass must not decide on what was before.
func (l *Loop) pass(ctx context.Context, view mirror.View) error {
	waiting := waiting(view)
	if len(waiting) == 0 {
		return nil
	}
	nodes := candidates(view)
	var written uint64
	for _, sandbox := range waiting {
		change, node, reason := decide(sandbox, nodes, view.Records[record.Disk], timestamppb.Now())
		if len(change.Replace) == 0 {
			continue
		}
		revision, err := l.deps.Store.Commit(ctx, change)
		switch {
		case fault.Reason(err) == store.ReasonRevision:
			continue // it was changed meanwhile; the change brings us back
		case errors.Is(err, fault.Unavailable):
			return err
		case err != nil: // it alone cannot be written: the others do not wait for it
			l.deps.Log.Error("placement refused", id.Sandbox(sandbox.GetMeta().GetUid()).Attr(), logging.Err(err))
			continue
		}
		written = max(written, revision)
		l.settle(sandbox, node, reason, nodes, view.Records[record.Disk], change)
	}
	return l.deps.Mirror.Await(ctx, written)
}

// settle logs what was written and counts it for the rest of the pass.
func (l *Loop) settle(sandbox *record.Resource, node, reason string, nodes []Candidate, disks map[string]*record.Resource, c store.Change) {
	log := l.deps.Log.With(id.Sandbox(sandbox.GetMeta().GetUid()).Attr())
	if node == "" {
		log.Info("sandbox waiting", logging.Reason(reason))
		return
	}
	log.Info("sandbox placed", logging.To(node))
	for i := range nodes {
		if nodes[i].Record.GetMeta().GetName() == node {
			nodes[i].Load = nodes[i].Load.Plus(Claim(sandbox.GetSandbox().GetSpec()))
		}
	}
	for _, r := range c.Replace {
		if record.Body(r) == record.Disk {
			disks[r.GetMeta().GetName()] = r
		}
	}
}

// decide says what to write for one waiting sandbox: nothing when it waits for
// the reason that its record states already.
func decide(sandbox *record.Resource, nodes []Candidate, disks map[string]*record.Resource, at *timestamppb.Timestamp) (c store.Change, node, reason string) {
	spec := sandbox.GetSandbox().GetSpec()
	mounted, pin, reason := pinned(spec, disks)
	var chosen *record.Resource
	if reason == "" {
		chosen, reason = Choose(spec, pin, nodes)
	}
	next := record.Clone(sandbox)
	if chosen == nil {
		if sandbox.GetSandbox().GetPlacement().GetReason() != reason {
			next.GetSandbox().Placement = &resourcev1.SandboxPlacement{Reason: reason}
			c.Replace = []*record.Resource{next}
		}
		return c, "", reason
	}
	node = chosen.GetMeta().GetName()
	next.GetSandbox().Placement = &resourcev1.SandboxPlacement{Node: node, NodeUid: chosen.GetMeta().GetUid(), PlacedAt: at}
	c.Replace = []*record.Resource{next}
	c.Same = []*record.Resource{chosen} // whoever cordoned or removed it meanwhile was first
	for _, d := range mounted {
		disk, lease := grant(d, sandbox, node, id.New(), at)
		c.Replace, c.Create = append(c.Replace, disk), append(c.Create, lease)
	}
	return c, node, ""
}

// waiting lists the sandboxes to place, oldest first.
func waiting(view mirror.View) []*record.Resource {
	var out []*record.Resource
	for _, r := range view.Records[record.Sandbox] {
		if r.GetSandbox().GetPlacement().GetNode() == "" && !record.Deleting(r) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *record.Resource) int { return cmp.Compare(a.GetMeta().GetUid(), b.GetMeta().GetUid()) })
	return out
}

// candidates lists all nodes by name, with what lies on each.
func candidates(view mirror.View) []Candidate {
	loads := map[string]Load{}
	for _, r := range view.Records[record.Sandbox] {
		if n := r.GetSandbox().GetPlacement().GetNode(); n != "" {
			loads[n] = loads[n].Plus(Claim(r.GetSandbox().GetSpec()))
		}
	}
	var out []Candidate
	for name, r := range view.Records[record.Node] {
		out = append(out, Candidate{r, loads[name]})
	}
	slices.SortFunc(out, func(a, b Candidate) int {
		return cmp.Compare(a.Record.GetMeta().GetName(), b.Record.GetMeta().GetName())
	})
	return out
}
