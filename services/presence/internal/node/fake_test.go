package node

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/watch"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/presence/internal/condition"
)

const nodeUID = "01JNODE0000000000000000001"

// fakeCluster is clusteraccess and the coordinator behind it.
type fakeCluster struct {
	hub *watch.Hub[string, *clusteraccessv1.WatchResourcesResponse]

	mu      sync.Mutex // guards all below
	session int64
	opened  int64
	renewed int
	writes  int
	ended   bool
	refuse  error
	deaf    bool // statuses are taken and do not arrive
	record  *resourcev1.Resource
}

func newFakeCluster() *fakeCluster {
	return &fakeCluster{hub: watch.New[string, *clusteraccessv1.WatchResourcesResponse]()}
}

func (c *fakeCluster) Renew(_ context.Context, id int64, ttl time.Duration) (Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return Session{}, c.refuse
	}
	c.renewed++
	if c.session == 0 || id != c.session {
		c.opened++
		c.session, c.ended = 100+c.opened, false
		status := c.record.GetNode().GetStatus()
		c.showLocked(&resourcev1.Node{
			Placement: &resourcev1.NodePlacement{SessionId: c.session, StatusSeq: status.GetSeq()}, Status: status,
		})
	}
	return Session{ID: c.session, TTL: ttl, NodeUID: nodeUID}, nil
}

func (c *fakeCluster) End(_ context.Context, id int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id == c.session {
		c.session, c.ended = 0, true
	}
	return c.refuse
}

func (c *fakeCluster) Report(_ context.Context, r *resourcev1.Resource) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deaf {
		return nil
	}
	status := r.GetNode().GetStatus()
	if status.GetSeq() < c.record.GetNode().GetStatus().GetSeq() {
		return fault.WithReason(fault.New(fault.Conflict, "lower"), "STALE_STATUS")
	}
	c.writes++
	c.showLocked(&resourcev1.Node{Placement: c.record.GetNode().GetPlacement(), Status: proto.CloneOf(status)})
	return nil
}

func (c *fakeCluster) showLocked(n *resourcev1.Node) {
	c.record = &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_NODE, Name: "node1", Uid: nodeUID},
		Kind: &resourcev1.Resource_Node{Node: n},
	}
	c.hub.Set("record", &clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Changed{Changed: c.record}})
}

func (c *fakeCluster) Watch(ctx context.Context, tell func(*clusteraccessv1.WatchResourcesResponse)) error {
	for ev := range c.hub.Subscribe(ctx) {
		if ev.Kind != watch.Synced {
			tell(ev.Value)
		}
	}
	return context.Cause(ctx)
}

// look returns the status of the record, and counts.
func (c *fakeCluster) look() (status *resourcev1.NodeStatus, writes int, opened int64, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record.GetNode().GetStatus(), c.writes, c.opened, c.ended
}

func (c *fakeCluster) set(change func(*fakeCluster)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

// fakeCapability says what it is told to say.
type fakeCapability struct {
	hub *watch.Hub[struct{}, condition.Observation]
}

func newFakeCapability() *fakeCapability {
	return &fakeCapability{hub: watch.New[struct{}, condition.Observation]()}
}

func (f *fakeCapability) say(a condition.Answer, reason string) {
	f.hub.Set(struct{}{}, condition.Observation{Answer: a, Reason: reason})
}

func (f *fakeCapability) Follow(ctx context.Context, tell func(condition.Observation)) {
	for ev := range f.hub.Subscribe(ctx) {
		if ev.Kind != watch.Synced {
			tell(ev.Value)
		}
	}
}

// fakeAdmission says what it is told to say, and hears what the record shows.
type fakeAdmission struct {
	hub  *watch.Hub[struct{}, *presencev1.Admission]
	told *watch.Hub[struct{}, bool]
}

func newFakeAdmission() *fakeAdmission {
	f := &fakeAdmission{hub: watch.New[struct{}, *presencev1.Admission](), told: watch.New[struct{}, bool]()}
	f.hub.Set(struct{}{}, &presencev1.Admission{})
	return f
}

func (f *fakeAdmission) Follow(ctx context.Context, tell func(*presencev1.Admission) error) error {
	for ev := range f.hub.Subscribe(ctx) {
		if ev.Kind == watch.Synced {
			continue
		}
		if err := tell(ev.Value); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

func (f *fakeAdmission) Told(cordoned bool) { f.told.Set(struct{}{}, cordoned) }
