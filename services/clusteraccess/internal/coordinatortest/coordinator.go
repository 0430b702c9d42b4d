// Package coordinatortest is a coordinator in memory, for tests of what talks to
// one: records with a history, sessions, and statuses, as the contract says.
//
// It behaves and does not record. Tests may compact its history, change its
// incarnation, and make it refuse. It must never be linked into a process.
package coordinatortest

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Coordinator is the fake. All methods may be called from any goroutine.
type Coordinator struct {
	coordinatorv1.UnimplementedResourceServiceServer
	coordinatorv1.UnimplementedSessionServiceServer

	mu          sync.Mutex // guards all below
	incarnation string
	term        string
	revision    uint64
	compacted   uint64
	records     map[string]*resourcev1.Resource
	history     []*coordinatorv1.WatchResourcesResponse
	changed     chan struct{} // closed and replaced at each change
	snapshots   int
	resumes     int
	session     int64
	refuse      error
	broken      int // snapshots still to be broken off before their marker
}

// New returns an empty coordinator.
func New() *Coordinator {
	return &Coordinator{incarnation: "one", term: id.New(), records: map[string]*resourcev1.Resource{}, changed: make(chan struct{})}
}

// Register puts it on a server.
func (c *Coordinator) Register(s *grpc.Server) {
	coordinatorv1.RegisterResourceServiceServer(s, c)
	coordinatorv1.RegisterSessionServiceServer(s, c)
}

// Put makes or changes a record.
func (c *Coordinator) Put(r *resourcev1.Resource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(proto.CloneOf(r))
}

func (c *Coordinator) putLocked(r *resourcev1.Resource) {
	c.revision++
	r.Meta.Revision = c.revision
	c.records[r.GetMeta().GetUid()] = r
	c.tellLocked(&coordinatorv1.WatchResourcesResponse{Event: &coordinatorv1.WatchResourcesResponse_Changed{Changed: r}})
}

// Delete removes a record.
func (c *Coordinator) Delete(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.records[uid]
	delete(c.records, uid)
	c.revision++
	c.tellLocked(&coordinatorv1.WatchResourcesResponse{Event: &coordinatorv1.WatchResourcesResponse_Deleted{Deleted: r}})
}

func (c *Coordinator) tellLocked(msg *coordinatorv1.WatchResourcesResponse) {
	msg.Revision = c.revision
	c.history = append(c.history, msg)
	close(c.changed)
	c.changed = make(chan struct{})
}

// Compact forgets the history so far.
func (c *Coordinator) Compact() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compacted, c.history = c.revision, nil
}

// Restore makes it another history with other records.
func (c *Coordinator) Restore(incarnation string, revision uint64, records ...*resourcev1.Resource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.incarnation, c.term, c.revision, c.history, c.compacted = incarnation, id.New(), revision, nil, 0
	c.records = map[string]*resourcev1.Resource{}
	for _, r := range records {
		c.records[r.GetMeta().GetUid()] = proto.CloneOf(r)
	}
}

// Refuse makes every call fail with err, until it is called with nil.
func (c *Coordinator) Refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = err
}

// BreakSnapshots breaks off the next n snapshots before their marker.
func (c *Coordinator) BreakSnapshots(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = n
}

// Record returns a record, or nil.
func (c *Coordinator) Record(uid string) *resourcev1.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.records[uid]
}

// Watches returns how many watches began with a snapshot, and how many resumed.
func (c *Coordinator) Watches() (snapshots, resumes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snapshots, c.resumes
}

// GetResource serves the contract.
func (c *Coordinator) GetResource(_ context.Context, req *coordinatorv1.GetResourceRequest) (*coordinatorv1.GetResourceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return nil, c.refuse
	}
	r, ok := c.records[req.GetUid()]
	if at := req.GetPosition(); !ok && at != nil && !c.containsLocked(at.GetTerm(), at.GetRevision()) {
		return nil, otherHistory()
	}
	if !ok {
		return nil, fault.New(fault.NotFound, "get record %s: there is none", req.GetUid())
	}
	return &coordinatorv1.GetResourceResponse{Resource: r}, nil
}

// containsLocked says whether a position is in the history: each has one term.
func (c *Coordinator) containsLocked(term string, revision uint64) bool {
	return term == c.term && revision <= c.revision
}

func otherHistory() error {
	return fault.WithReason(fault.New(fault.Conflict, "this is another history"), "OTHER_HISTORY")
}

// Term is that of all positions of the history.
func (c *Coordinator) Term() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.term
}

// UpdateResourceStatus serves the contract for nodes and sandboxes.
func (c *Coordinator) UpdateResourceStatus(_ context.Context, req *coordinatorv1.UpdateResourceStatusRequest) (*coordinatorv1.UpdateResourceStatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return nil, c.refuse
	}
	old, ok := c.records[req.GetResource().GetMeta().GetUid()]
	if !ok {
		return nil, fault.New(fault.NotFound, "update status: no such record")
	}
	fresh := proto.CloneOf(old)
	switch {
	case old.GetSandbox() != nil:
		if req.GetResource().GetSandbox().GetStatus().GetSeq() < old.GetSandbox().GetStatus().GetSeq() {
			return nil, fault.WithReason(fault.New(fault.Conflict, "update status: the seq is lower"), "STALE_STATUS")
		}
		fresh.GetSandbox().Status = req.GetResource().GetSandbox().GetStatus()
	case old.GetNode() != nil:
		fresh.GetNode().Status = req.GetResource().GetNode().GetStatus()
	}
	c.putLocked(fresh)
	return &coordinatorv1.UpdateResourceStatusResponse{Revision: c.revision}, nil
}

// RenewSession serves the contract: a known id is kept, another gets a new one.
func (c *Coordinator) RenewSession(_ context.Context, req *coordinatorv1.RenewSessionRequest) (*coordinatorv1.RenewSessionResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return nil, c.refuse
	}
	if req.GetSessionId() == 0 || req.GetSessionId() != c.session {
		c.session = int64(c.revision)*1000 + c.session + 1
	}
	return &coordinatorv1.RenewSessionResponse{SessionId: c.session, Ttl: req.GetTtl(), NodeUid: "01JNODE0000000000000000001"}, nil
}

// EndSession serves the contract.
func (c *Coordinator) EndSession(context.Context, *coordinatorv1.EndSessionRequest) (*coordinatorv1.EndSessionResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = 0
	return &coordinatorv1.EndSessionResponse{}, c.refuse
}

// WatchResources serves the contract.
func (c *Coordinator) WatchResources(req *coordinatorv1.WatchResourcesRequest, stream grpc.ServerStreamingServer[coordinatorv1.WatchResourcesResponse]) error {
	at, err := c.begin(req, stream)
	if err != nil {
		return err
	}
	for {
		c.mu.Lock()
		due, changed := after(c.history, at), c.changed
		c.mu.Unlock()
		for _, msg := range due {
			if err := stream.Send(msg); err != nil {
				return err
			}
			at = msg.GetRevision()
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
	}
}

// begin sends what comes up to the marker, and returns the revision of that.
func (c *Coordinator) begin(req *coordinatorv1.WatchResourcesRequest, stream grpc.ServerStreamingServer[coordinatorv1.WatchResourcesResponse]) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return 0, c.refuse
	}
	var msgs []*coordinatorv1.WatchResourcesResponse
	if from := req.GetResumeAfterRevision(); from > 0 {
		c.resumes++
		if !c.containsLocked(req.GetResumeTerm(), from) {
			return 0, otherHistory()
		}
		if from < c.compacted {
			return 0, fault.WithReason(fault.New(fault.Conflict, "watch: the history since %d is gone", from), "COMPACTED")
		}
		msgs = after(c.history, from)
	} else {
		c.snapshots++
		for _, r := range c.records {
			msgs = append(msgs, &coordinatorv1.WatchResourcesResponse{
				Event: &coordinatorv1.WatchResourcesResponse_Changed{Changed: r}, Revision: c.revision,
			})
		}
		if c.broken > 0 {
			c.broken--
			return 0, errors.Join(sendAll(stream, msgs), fault.New(fault.Unavailable, "broken off"))
		}
	}
	msgs = append(msgs, &coordinatorv1.WatchResourcesResponse{
		Event: &coordinatorv1.WatchResourcesResponse_Synced{
			Synced: &coordinatorv1.SnapshotMarker{Incarnation: c.incarnation, Term: c.term},
		},
		Revision: c.revision,
	})
	return c.revision, sendAll(stream, msgs)
}

func sendAll(stream grpc.ServerStreamingServer[coordinatorv1.WatchResourcesResponse], msgs []*coordinatorv1.WatchResourcesResponse) error {
	for _, msg := range msgs {
		if err := stream.Send(msg); err != nil {
			return err
		}
	}
	return nil
}

func after(history []*coordinatorv1.WatchResourcesResponse, revision uint64) []*coordinatorv1.WatchResourcesResponse {
	for i, msg := range history {
		if msg.GetRevision() > revision {
			return history[i:]
		}
	}
	return nil
}
