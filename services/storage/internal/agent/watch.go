package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/logging"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// follow keeps one watch open; one that ends, also without an error, is opened
// again after a wait.
func (a *Agent) follow(ctx context.Context, what string, watch func(context.Context) error) {
	for failures := 1; ; {
		opened := time.Now()
		err := watch(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it ended")
		}
		a.deps.Log.Warn("watch ended", logging.Watch(what), logging.Err(err))
		failures = retry.Next(failures, time.Since(opened))
		if backoff.Wait(ctx, retry.Delay(failures, rand.Float64())) != nil {
			return
		}
	}
}

// followRecords keeps the view of records as the mirror has them.
func (a *Agent) followRecords(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx) // ends the stream with this function
	defer cancel()
	defer a.change(func(v *view) { v.live = false })
	stream, err := a.deps.Cluster.WatchResources(ctx, &clusteraccessv1.WatchResourcesRequest{
		Kinds: []resourcev1.Kind{resourcev1.Kind_KIND_DISK, resourcev1.Kind_KIND_DISK_LEASE},
	})
	if err != nil {
		return err
	}
	a.change(func(v *view) { v.live, v.records = false, map[key]*resourcev1.Resource{} })
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		a.takeRecord(m)
	}
}

func (a *Agent) takeRecord(m *clusteraccessv1.WatchResourcesResponse) {
	switch e := m.GetEvent().(type) {
	case *clusteraccessv1.WatchResourcesResponse_Snapshot:
		a.change(func(v *view) { v.live, v.records = false, map[key]*resourcev1.Resource{} })
	case *clusteraccessv1.WatchResourcesResponse_Changed:
		a.change(func(v *view) { v.records[keyOf(e.Changed)] = e.Changed })
		a.enqueueDisk(diskOf(e.Changed))
	case *clusteraccessv1.WatchResourcesResponse_Deleted:
		a.change(func(v *view) { delete(v.records, keyOf(e.Deleted)) })
		a.forgetSeq(e.Deleted.GetMeta().GetUid())
		a.enqueueDisk(diskOf(e.Deleted))
	case *clusteraccessv1.WatchResourcesResponse_Mirror:
		var was bool
		a.change(func(v *view) { was, v.live = v.live, e.Mirror.GetLive() })
		if e.Mirror.GetLive() && !was { // changes of a live mirror were looked at as they came
			a.enqueueAll()
		}
	}
}

// followGrants keeps the view of grants as the sandbox host has them.
func (a *Agent) followGrants(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer a.change(func(v *view) { v.synced = false })
	stream, err := a.deps.Grants.WatchGrants(ctx, &sandboxhostv1.WatchGrantsRequest{})
	if err != nil {
		return err
	}
	a.change(func(v *view) { v.synced, v.grants = false, map[string]*sandboxhostv1.Grant{} })
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		switch e := m.GetEvent().(type) {
		case *sandboxhostv1.WatchGrantsResponse_Changed:
			a.change(func(v *view) { v.grants[e.Changed.GetDiskUid()] = e.Changed })
			a.enqueueDisk(e.Changed.GetDiskUid())
		case *sandboxhostv1.WatchGrantsResponse_Forgotten:
			a.change(func(v *view) { delete(v.grants, e.Forgotten.GetDiskUid()) })
			a.enqueueDisk(e.Forgotten.GetDiskUid())
		case *sandboxhostv1.WatchGrantsResponse_Synced:
			a.change(func(v *view) { v.synced = true })
			a.enqueueAll()
		}
	}
}

func (a *Agent) change(fn func(v *view)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fn(&a.view)
}

func (a *Agent) forgetSeq(uid string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.lastSeq, uid)
}

// enqueueDisk looks again at all that is about one disk.
func (a *Agent) enqueueDisk(uid string) {
	a.mu.Lock()
	keys := a.view.ofDisk(uid)
	a.mu.Unlock()
	for _, k := range keys {
		a.queue.Add(k)
	}
}

func diskOf(r *resourcev1.Resource) string {
	if lease := r.GetDiskLease(); lease != nil {
		return lease.GetSpec().GetDiskUid()
	}
	return r.GetMeta().GetUid()
}
