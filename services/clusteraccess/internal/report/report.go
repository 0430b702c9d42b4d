// Package report owns the status of records on its way to the coordinator: per
// record only the newest, in memory.
//
// One status of one record is sent at a time, and sent again while the
// coordinator cannot be reached. A status that it refuses for good is dropped and
// named in the log. Whoever made a status keeps it until the mirror shows its
// seq, so nothing is lost when this process dies. It must never write anything to
// disk, and never change what it sends. In the trail it is the way back: from the
// agent to the coordinator.
package report

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Limits.
const (
	maxWaiting = 10_000
	workers    = 4
	retryFirst = 200 * time.Millisecond
	retryCap   = 3 * time.Second
)

// coordinator takes one status.
type coordinator interface {
	UpdateStatus(ctx context.Context, record *resourcev1.Resource) error
}

// Reporter forwards statuses.
type Reporter struct {
	coordinator coordinator
	log         *slog.Logger
	queue       workqueue.TypedRateLimitingInterface[string]

	mu      sync.Mutex // guards waiting
	waiting map[string]*resourcev1.Resource
}

// New returns a reporter that takes statuses, and sends none until Run.
func New(c coordinator, log *slog.Logger) *Reporter {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryCap)
	return &Reporter{
		coordinator: c, log: log,
		queue:   workqueue.NewTypedRateLimitingQueue(limiter),
		waiting: make(map[string]*resourcev1.Resource),
	}
}

// Report takes statuses. Where a newer one of the same uid waits, it stays. It
// returns fault.Invalid for a record without uid or status, and fault.Exhausted
// when too many wait; then none is taken.
func (r *Reporter) Report(records []*resourcev1.Resource) error {
	for _, rec := range records {
		if rec.GetMeta().GetUid() == "" {
			return fault.New(fault.Invalid, "report status of %q: the record has no uid", rec.GetMeta().GetName())
		}
		if _, ok := Seq(rec); !ok {
			return fault.New(fault.Invalid, "report status of %s: it has none", rec.GetMeta().GetUid())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if fresh := r.freshLocked(records); len(r.waiting)+fresh > maxWaiting {
		return fault.New(fault.Exhausted, "report status: %d records wait for the coordinator already", len(r.waiting))
	}
	for _, rec := range records {
		uid := rec.GetMeta().GetUid()
		if old, ok := r.waiting[uid]; ok && seq(old) >= seq(rec) {
			continue
		}
		r.waiting[uid] = rec
		r.queue.Add(uid)
	}
	return nil
}

func (r *Reporter) freshLocked(records []*resourcev1.Resource) int {
	n := 0
	for _, rec := range records {
		if _, ok := r.waiting[rec.GetMeta().GetUid()]; !ok {
			n++
		}
	}
	return n
}

// Hurry sends at once what waits for its next try: the coordinator is reached again.
func (r *Reporter) Hurry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range r.waiting {
		r.queue.Forget(uid)
		r.queue.Add(uid)
	}
}

// Waiting is the number of records of which a status waits.
func (r *Reporter) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}

// Run sends until ctx ends.
func (r *Reporter) Run(ctx context.Context, ready func()) error {
	ready()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { // ends with the queue; waited for below
			for r.step(ctx) {
			}
		})
	}
	<-ctx.Done()
	r.queue.ShutDown()
	wg.Wait()
	return context.Cause(ctx)
}

// step sends one status. The queue never gives the same uid to two workers.
func (r *Reporter) step(ctx context.Context) bool {
	uid, down := r.queue.Get()
	if down {
		return false
	}
	defer r.queue.Done(uid)
	record := r.newest(uid)
	if record == nil {
		return true
	}
	err := r.coordinator.UpdateStatus(ctx, record)
	switch {
	case err == nil:
		r.sent(uid, record)
	case final(err):
		r.log.Warn("status refused", recordAttr(record), logging.Err(err))
		r.sent(uid, record)
	case ctx.Err() == nil:
		r.log.Debug("status waits", recordAttr(record), logging.Err(err))
		r.queue.AddRateLimited(uid)
	}
	return true
}

func (r *Reporter) newest(uid string) *resourcev1.Resource {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting[uid]
}

// sent forgets a status unless a newer one has come meanwhile, which is queued.
func (r *Reporter) sent(uid string, record *resourcev1.Resource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue.Forget(uid)
	if r.waiting[uid] == record {
		delete(r.waiting, uid)
	}
}

// duplicateNode is the reason of a refusal that passes: the session of the boot before,
// or of a copy of this node, is still open at the coordinator.
const duplicateNode = "DUPLICATE_NODE"

// final tells an answer from a failed question, and from an answer that is for now.
func final(err error) bool {
	switch fault.KindOf(err) {
	case fault.Denied:
		return fault.Reason(err) != duplicateNode
	case fault.NotFound, fault.Conflict, fault.Invalid:
		return true
	default:
		return false
	}
}

func recordAttr(r *resourcev1.Resource) slog.Attr {
	uid := r.GetMeta().GetUid()
	switch r.GetMeta().GetKind() {
	case resourcev1.Kind_KIND_NODE:
		return id.Node(uid).Attr()
	case resourcev1.Kind_KIND_SANDBOX:
		return id.Sandbox(uid).Attr()
	default:
		return id.Disk(uid).Attr()
	}
}
