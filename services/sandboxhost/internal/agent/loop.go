// Package agent is the loop that makes this node's sandboxes match their records,
// and reports how they are.
//
// Two streams feed one queue of uids: the records in clusteraccess' mirror, and
// the sandboxes that the host holds. For each uid Decide says what to do about
// everything known at that moment; a worker does it, and a uid that failed comes
// back after a while. One sandbox that is slow or refused delays no other.
//
// It must never talk to containerd, never act on a mirror that is not live, and
// never remove a sandbox because a list did not name it. In the trail it stands
// between the mirror and the host's EnsureSandbox.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Shape of the loop.
const (
	workers    = 4
	retryFirst = 50 * time.Millisecond
	retryCap   = 30 * time.Second
	// againAfter spaces questions about a record that the coordinator has and the
	// mirror has not.
	againAfter = 5 * time.Second
	// reasonOtherHistory is the coordinator's word for a position that is not in
	// its history.
	reasonOtherHistory = "OTHER_HISTORY"
)

// Config says whose agent it is.
type Config struct {
	// Node is the name of this node.
	Node string
	// Resync is how often everything is looked at again without a cause.
	Resync time.Duration
}

// Deps is what an agent needs.
type Deps struct {
	// Cluster is where records come from and statuses go.
	Cluster Cluster
	// Host keeps the sandboxes.
	Host Host
	// Log gets what the agent decides.
	Log *slog.Logger
	// Foreign is told how many sandboxes the host holds of which the coordinator's
	// history does not know.
	Foreign func(int)
}

// Agent is the loop.
type Agent struct {
	cfg   Config
	deps  Deps
	log   *slog.Logger
	queue workqueue.TypedRateLimitingInterface[id.Sandbox]
	lanes *lanes // the order of queue
	view  *view

	mu       sync.Mutex            // guards reported
	reported map[id.Sandbox]uint64 // seq that clusteraccess has taken
}

// New returns an agent that does nothing until Run.
func New(cfg Config, deps Deps) *Agent {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[id.Sandbox](retryFirst, retryCap)
	order := newLanes()
	a := &Agent{
		cfg: cfg, deps: deps, log: deps.Log, lanes: order,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[id.Sandbox]{
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[id.Sandbox]{
				Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[id.Sandbox]{Queue: order}),
			}),
		}),
		reported: make(map[id.Sandbox]uint64),
	}
	a.view = &view{
		node: cfg.Node, followed: newFollowed[id.Sandbox](), states: newTable[id.Sandbox, *sandboxhostv1.SandboxState](),
		foreign: make(map[id.Sandbox]struct{}), change: a.look, sweep: a.lookAgain, tell: deps.Foreign,
	}
	return a
}

// look queues sandboxes that have changed.
func (a *Agent) look(uids ...id.Sandbox) {
	for _, uid := range uids {
		a.lanes.urge(uid)
		a.queue.Add(uid)
	}
}

// lookAgain queues sandboxes of which nothing says that they have changed: they have their
// turn after those that have.
func (a *Agent) lookAgain(uids ...id.Sandbox) {
	for _, uid := range uids {
		a.queue.Add(uid)
	}
}

// step takes one sandbox from the queue, which gives the same one to no other
// worker meanwhile. It reports false when the queue is closed.
func (a *Agent) step(ctx context.Context) bool {
	uid, closed := a.queue.Get()
	if closed {
		return false
	}
	defer a.queue.Done(uid)
	if err := a.reconcile(ctx, uid); err != nil {
		if ctx.Err() == nil {
			a.log.Warn("step failed", uid.Attr(), logging.Err(err))
			a.queue.AddRateLimited(uid)
		}
		return true
	}
	a.queue.Forget(uid)
	return true
}

// reconcile decides about one sandbox and does it.
func (a *Agent) reconcile(ctx context.Context, uid id.Sandbox) error {
	in, epoch := a.view.input(uid)
	if in.Record == nil && in.Host == nil {
		a.unreport(uid)
		return nil
	}
	if in.elsewhere() {
		return nil
	}
	d := Decide(in)
	a.log.Debug("sandbox decided", uid.Attr(), logging.Step(d.Step.String()))
	var errs []error
	if d.Report {
		errs = append(errs, a.report(ctx, uid, in))
	}
	switch d.Step {
	case StepEnsure:
		errs = append(errs, a.ensure(ctx, in))
	case StepRemove:
		errs = append(errs, a.deps.Host.RemoveSandbox(ctx, uid))
	case StepBury:
		errs = append(errs, a.bury(ctx, uid, in))
	case StepConfirmRemove:
		errs = append(errs, a.confirmed(ctx, uid, in, epoch, a.deps.Host.RemoveSandbox))
	case StepConfirmForget:
		errs = append(errs, a.confirmed(ctx, uid, in, epoch, a.deps.Host.ForgetSandbox))
	case StepNone:
	}
	return errors.Join(errs...)
}

// ensure hands the wish to the host. What the host refuses becomes the sandbox's
// status, and is tried again in case the cause goes away.
func (a *Agent) ensure(ctx context.Context, in Input) error {
	err := a.deps.Host.EnsureSandbox(ctx, in.Record, in.Position)
	if err == nil {
		return nil
	}
	if in.Host == nil { // else its statuses are the host's to make
		if status := refusedStatus(in.Record, a.cfg.Node, err, time.Now()); status != nil {
			return errors.Join(err, a.deps.Cluster.Report(ctx, withStatus(in.Record, status)))
		}
	}
	return err
}

// bury makes sure that a uid never starts here, and says so.
func (a *Agent) bury(ctx context.Context, uid id.Sandbox, in Input) error {
	if err := a.deps.Host.RemoveSandbox(ctx, uid); err != nil {
		return err
	}
	held, err := a.deps.Host.Holds(ctx, uid)
	if err != nil || held { // what is held reports itself
		return err
	}
	return a.deps.Cluster.Report(ctx, withStatus(in.Record, buriedStatus(in.Record, a.cfg.Node, time.Now())))
}

// confirmed asks the coordinator itself whether a record is gone, in a history in
// which it was, and only then, and only if nothing that the question rested on has
// changed, acts.
func (a *Agent) confirmed(
	ctx context.Context, uid id.Sandbox, in Input, epoch uint64, act func(context.Context, id.Sandbox) error,
) error {
	at := in.Host.GetPosition()
	if at == nil {
		a.disown(uid, epoch, "the history that it belongs to is not known")
		return nil
	}
	err := a.deps.Cluster.Get(ctx, uid, at)
	switch {
	case fault.Reason(err) == reasonOtherHistory:
		a.disown(uid, epoch, err.Error())
		return nil
	case err == nil:
		a.log.Debug("record absent from the mirror found", uid.Attr())
		a.queue.AddAfter(uid, againAfter)
		return nil
	case !errors.Is(err, fault.NotFound):
		return err
	}
	if in, now := a.view.input(uid); now != epoch || in.Record != nil {
		a.queue.Add(uid)
		return nil
	}
	a.log.Info("record gone", uid.Attr())
	return act(ctx, uid)
}

// disown notes that the coordinator's history does not know of a sandbox. It is
// kept, and asked about again when the mirror is filled anew.
func (a *Agent) disown(uid id.Sandbox, epoch uint64, why string) {
	if a.view.disown(uid, epoch) {
		a.log.Warn("sandbox of another history kept", uid.Attr(), logging.Reason(why))
	}
}
