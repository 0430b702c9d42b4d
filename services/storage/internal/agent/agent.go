// Package agent is the loop of storage-agent: it makes this node's volumes and
// leases match desired state.
//
// It alone sees lease, volume and sandbox together, so it alone grants a disk to
// a sandbox and takes it back. It must never mount or delete anything itself, act
// on records that are not live on this connection, or read a failed question as
// an answer. One keyed queue holds what to look at; a key is looked at by one
// worker at a time and everything is read again before acting.
package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/util/workqueue"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	storagev1 "staddle.internal/proto/gen/staddle/storage/v1"
)

// Bounds of the loop.
const (
	stepTimeout = 30 * time.Second // of one look at one record
	resync      = 5 * time.Minute  // everything is looked at again this often
)

// retry is the wait after a failure, of a look or of a watch.
var retry = backoff.Policy{Initial: 100 * time.Millisecond, Cap: 30 * time.Second, Stable: time.Minute}

// workers look at records side by side, so that one that hangs leaves the others.
const workers = 3

// Deps are the neighbours.
type Deps struct {
	Log     *slog.Logger
	Cluster clusteraccessv1.ClusterAccessServiceClient
	Storage storagev1.StorageServiceClient
	Grants  sandboxhostv1.GrantServiceClient
	Hosts   sandboxhostv1.SandboxHostServiceClient
}

// key names what to look at.
type key struct {
	kind resourcev1.Kind
	uid  string
}

// attr is the id of what a key names, under its own log key.
func (k key) attr() slog.Attr {
	if k.kind == resourcev1.Kind_KIND_DISK {
		return id.Disk(k.uid).Attr()
	}
	return logging.LeaseUID(k.uid)
}

// Agent is the loop. Make it with New and let it Run once.
type Agent struct {
	node string
	deps Deps

	queue workqueue.TypedRateLimitingInterface[key]

	mu      sync.Mutex // guards what follows, for microseconds
	view    view
	lastSeq map[string]uint64
}

// New makes an agent for the node of that name.
func New(node string, deps Deps) *Agent {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[key](retry.Initial, retry.Cap)
	return &Agent{
		node: node, deps: deps,
		queue:   workqueue.NewTypedRateLimitingQueue(limiter),
		view:    newView(),
		lastSeq: map[string]uint64{},
	}
}

// Run works until ctx ends. It calls ready at once: without live records it acts
// on nothing, and that is its job then.
func (a *Agent) Run(ctx context.Context, ready func()) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer a.queue.ShutDown()
	wg.Go(func() { a.follow(ctx, "records", a.followRecords) }) // owned by this Run, like the rest
	wg.Go(func() { a.follow(ctx, "grants", a.followGrants) })
	wg.Go(func() { a.sweep(ctx) })
	for range workers {
		wg.Go(func() { a.work(ctx) })
	}
	ready()
	<-ctx.Done()
	return context.Cause(ctx)
}

// sweep looks at everything now and then; watches are not restarted for it.
func (a *Agent) sweep(ctx context.Context) {
	tick := time.NewTicker(resync)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.enqueueAll()
		}
	}
}

func (a *Agent) enqueueAll() {
	a.mu.Lock()
	keys := a.view.keys()
	a.mu.Unlock()
	for _, k := range keys {
		a.queue.Add(k)
	}
}

// work looks at what the queue gives until it is shut down.
func (a *Agent) work(ctx context.Context) {
	for {
		k, stop := a.queue.Get()
		if stop {
			return
		}
		err := a.look(ctx, k)
		switch {
		case err == nil:
			a.queue.Forget(k)
		case ctx.Err() == nil:
			a.deps.Log.Warn("step failed", k.attr(), logging.Err(err))
			a.queue.AddRateLimited(k)
		}
		a.queue.Done(k)
	}
}

// look reads one record from the mirror and does the next thing for it.
func (a *Agent) look(ctx context.Context, k key) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	a.mu.Lock()
	record, live := a.view.record(k)
	a.mu.Unlock()
	if record == nil || !live {
		return nil // it comes again with the next record or state
	}
	switch k.kind {
	case resourcev1.Kind_KIND_DISK_LEASE:
		return a.lease(ctx, record)
	case resourcev1.Kind_KIND_DISK:
		return a.disk(ctx, record)
	}
	return nil
}

// report sends the status of one record, with a seq above all that were seen.
func (a *Agent) report(ctx context.Context, record *resourcev1.Resource, seen uint64, set func(r *resourcev1.Resource, seq uint64)) error {
	uid := record.GetMeta().GetUid()
	a.mu.Lock()
	seq := max(seen, a.lastSeq[uid]) + 1
	a.lastSeq[uid] = seq
	a.mu.Unlock()
	r := &resourcev1.Resource{Meta: &resourcev1.Metadata{Kind: record.GetMeta().GetKind(), Name: record.GetMeta().GetName(), Uid: uid}}
	set(r, seq)
	_, err := a.deps.Cluster.ReportStatus(ctx, &clusteraccessv1.ReportStatusRequest{Resources: []*resourcev1.Resource{r}})
	if err != nil {
		return fmt.Errorf("report status of %s %s: %w", r.GetMeta().GetKind(), r.GetMeta().GetName(), err)
	}
	return nil
}

func (a *Agent) reportLease(ctx context.Context, record *resourcev1.Resource, want *resourcev1.DiskLeaseStatus) error {
	have := record.GetDiskLease().GetStatus()
	if sameLease(have, want) {
		return nil
	}
	return a.report(ctx, record, have.GetSeq(), func(r *resourcev1.Resource, seq uint64) {
		status := proto.CloneOf(want)
		status.Seq = seq
		r.Kind = &resourcev1.Resource_DiskLease{DiskLease: &resourcev1.DiskLease{Status: status}}
	})
}

func (a *Agent) reportDisk(ctx context.Context, record *resourcev1.Resource, want *resourcev1.DiskStatus) error {
	have := record.GetDisk().GetStatus()
	want.ObservedGeneration = record.GetMeta().GetGeneration()
	if sameDisk(have, want) {
		return nil
	}
	return a.report(ctx, record, have.GetSeq(), func(r *resourcev1.Resource, seq uint64) {
		status := proto.CloneOf(want)
		status.Seq = seq
		r.Kind = &resourcev1.Resource_Disk{Disk: &resourcev1.Disk{Status: status}}
	})
}
