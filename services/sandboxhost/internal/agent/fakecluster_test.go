package agent

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/watch"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// fakeCluster is clusteraccess and the coordinator behind it: truth is what the
// coordinator holds, and the mirror is what the node was told of it.
type fakeCluster struct {
	clusteraccessv1.UnimplementedClusterAccessServiceServer

	mu       sync.Mutex // guards all below
	truth    map[string]*resourcev1.Resource
	state    *clusteraccessv1.MirrorState
	known    map[string]uint64 // how far the history has seen the terms before its own
	gets     int
	reports  int
	watched  int
	away     bool // the coordinator cannot be asked
	mirror   *watch.Hub[string, *resourcev1.Resource]
	states   *watch.Hub[struct{}, *clusteraccessv1.MirrorState]
	restarts *watch.Hub[struct{}, int]
}

func newFakeCluster() *fakeCluster {
	c := &fakeCluster{
		truth: map[string]*resourcev1.Resource{}, mirror: watch.New[string, *resourcev1.Resource](),
		states: watch.New[struct{}, *clusteraccessv1.MirrorState](), restarts: watch.New[struct{}, int](),
	}
	c.restarts.Set(struct{}{}, 0)
	c.become(&clusteraccessv1.MirrorState{})
	return c
}

func (c *fakeCluster) become(s *clusteraccessv1.MirrorState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = s
	c.states.Set(struct{}{}, s)
}

func (c *fakeCluster) live(term string, revision uint64) {
	c.become(&clusteraccessv1.MirrorState{Live: true, Incarnation: "one", Term: term, Revision: revision})
}

// knows says how far the history contains terms that are not its newest.
func (c *fakeCluster) knows(terms map[string]uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = terms
}

func (c *fakeCluster) containsLocked(at *resourcev1.Position) bool {
	if at.GetTerm() == c.state.GetTerm() {
		return true
	}
	return at.GetRevision() <= c.known[at.GetTerm()]
}

// put writes a record, which the mirror learns of.
func (c *fakeCluster) put(r *resourcev1.Resource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.truth[r.GetMeta().GetUid()] = r
	c.mirror.Set(r.GetMeta().GetUid(), r)
}

// drop removes a record, which the mirror learns of.
func (c *fakeCluster) drop(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.truth[uid]; ok {
		delete(c.truth, uid)
		c.mirror.Delete(uid, r)
	}
}

// empty makes the mirror empty without a word about any record, and begins all
// streams anew.
func (c *fakeCluster) empty() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mirror = watch.New[string, *resourcev1.Resource]()
	n, _ := c.restarts.Get(struct{}{})
	c.restarts.Set(struct{}{}, n+1)
}

func (c *fakeCluster) record(uid string) *resourcev1.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.truth[uid]
}

// lose takes the status out of a record, as if it had never come.
func (c *fakeCluster) lose(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := proto.CloneOf(c.truth[uid])
	r.GetSandbox().Status = nil
	c.truth[uid] = r
	c.mirror.Set(uid, r)
}

func (c *fakeCluster) watches() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watched
}

func (c *fakeCluster) counts() (gets, reports int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gets, c.reports
}

func (c *fakeCluster) setAway(away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = away
}

func (c *fakeCluster) GetResource(_ context.Context, req *clusteraccessv1.GetResourceRequest) (*clusteraccessv1.GetResourceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gets++
	if c.away {
		return nil, fault.New(fault.Unavailable, "the coordinator is away")
	}
	r, ok := c.truth[req.GetUid()]
	if !ok && !c.containsLocked(req.GetPosition()) {
		return nil, fault.WithReason(fault.New(fault.Conflict, "not in this history: %v", req.GetPosition()), reasonOtherHistory)
	}
	if !ok {
		return nil, fault.New(fault.NotFound, "no record %s", req.GetUid())
	}
	return &clusteraccessv1.GetResourceResponse{Resource: r}, nil
}

// ReportStatus passes statuses on: the truth has them, and the mirror.
func (c *fakeCluster) ReportStatus(_ context.Context, req *clusteraccessv1.ReportStatusRequest) (*clusteraccessv1.ReportStatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range req.GetResources() {
		c.reports++
		uid := r.GetMeta().GetUid()
		old, ok := c.truth[uid]
		if !ok || old.GetSandbox().GetStatus().GetSeq() >= r.GetSandbox().GetStatus().GetSeq() {
			continue
		}
		fresh := proto.CloneOf(old)
		fresh.GetSandbox().Status = r.GetSandbox().GetStatus()
		if fresh.GetMeta().GetDeletingAt() != nil && fresh.GetSandbox().GetStatus().GetTornDownAt() != nil {
			delete(c.truth, uid)
			c.mirror.Delete(uid, fresh)
			continue
		}
		c.truth[uid] = fresh
		c.mirror.Set(uid, fresh)
	}
	return &clusteraccessv1.ReportStatusResponse{}, nil
}

// WatchResources sends a snapshot, the state, and changes, and begins anew when
// the mirror was replaced.
func (c *fakeCluster) WatchResources(_ *clusteraccessv1.WatchResourcesRequest, stream grpc.ServerStreamingServer[clusteraccessv1.WatchResourcesResponse]) error {
	c.mu.Lock()
	c.watched++
	c.mu.Unlock()
	restarts := c.restarts.Read()
	defer restarts.Close()
	for again := true; again; {
		var err error
		if again, err = c.watchOnce(stream, restarts); err != nil {
			return err
		}
	}
	return nil
}

func (c *fakeCluster) watchOnce(stream grpc.ServerStreamingServer[clusteraccessv1.WatchResourcesResponse], restarts *watch.Reader[struct{}, int]) (bool, error) {
	for _, ok := restarts.Next(); ok; _, ok = restarts.Next() {
	}
	c.mu.Lock()
	records := c.mirror.Read()
	c.mu.Unlock()
	states := c.states.Read()
	defer records.Close()
	defer states.Close()
	if err := stream.Send(&clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Snapshot{Snapshot: &clusteraccessv1.SnapshotStart{}}}); err != nil {
		return false, err
	}
	for {
		if err := pass(stream, records, states); err != nil {
			return false, err
		}
		select {
		case <-records.Ready():
		case <-states.Ready():
		case <-restarts.Ready():
			return true, nil
		case <-stream.Context().Done():
			return false, context.Cause(stream.Context())
		}
	}
}

// pass sends all records that are owed, then the state.
func pass(stream grpc.ServerStreamingServer[clusteraccessv1.WatchResourcesResponse], records *watch.Reader[string, *resourcev1.Resource], states *watch.Reader[struct{}, *clusteraccessv1.MirrorState]) error {
	for ev, ok := records.Next(); ok; ev, ok = records.Next() {
		msg := &clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Changed{Changed: ev.Value}}
		switch ev.Kind {
		case watch.Synced:
			continue
		case watch.Deleted:
			msg.Event = &clusteraccessv1.WatchResourcesResponse_Deleted{Deleted: ev.Value}
		}
		if err := stream.Send(msg); err != nil {
			return err
		}
	}
	for ev, ok := states.Next(); ok; ev, ok = states.Next() {
		if ev.Kind == watch.Synced {
			continue
		}
		if err := stream.Send(&clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Mirror{Mirror: ev.Value}}); err != nil {
			return err
		}
	}
	return nil
}
