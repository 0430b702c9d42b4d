package agent

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/watch"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// fakeHost keeps wishes as sandboxhost does: they run at once, and a removal is
// done at once.
type fakeHost struct {
	sandboxhostv1.UnimplementedSandboxHostServiceServer

	hub *watch.Hub[string, *sandboxhostv1.SandboxState]

	mu       sync.Mutex // guards all below
	ensured  int
	given    map[string][]uint64 // generations, by uid
	inside   map[string]int      // calls of Ensure that wait, by name
	watched  int
	removed  map[string]bool
	refusals map[string]error         // by name
	stuck    map[string]chan struct{} // by name: Ensure waits for it
}

func newFakeHost() *fakeHost {
	return &fakeHost{
		hub: watch.New[string, *sandboxhostv1.SandboxState](), removed: map[string]bool{},
		refusals: map[string]error{}, stuck: map[string]chan struct{}{},
		given: map[string][]uint64{}, inside: map[string]int{},
	}
}

func (h *fakeHost) refuse(name string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refusals[name] = err
}

func (h *fakeHost) stick(name string) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := make(chan struct{})
	h.stuck[name] = held
	return func() { close(held) }
}

// unstick lets those pass that come from now on.
func (h *fakeHost) unstick(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.stuck, name)
}

func (h *fakeHost) waiting(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inside[name]
}

func (h *fakeHost) generations(uid string) []uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.given[uid]
}

func (h *fakeHost) watches() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watched
}

func (h *fakeHost) state(uid string) *sandboxhostv1.SandboxState {
	s, _ := h.hub.Get(uid)
	return s
}

func (h *fakeHost) ensures() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ensured
}

// change moves a sandbox on and raises its seq.
func (h *fakeHost) change(uid string, move func(*sandboxhostv1.SandboxState)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.hub.Get(uid)
	if !ok {
		return
	}
	s = proto.CloneOf(s)
	s.Status.Seq++
	move(s)
	h.hub.Set(uid, s)
}

func (h *fakeHost) EnsureSandbox(ctx context.Context, req *sandboxhostv1.EnsureSandboxRequest) (*sandboxhostv1.EnsureSandboxResponse, error) {
	h.mu.Lock()
	refusal, held := h.refusals[req.GetName()], h.stuck[req.GetName()]
	h.mu.Unlock()
	if held != nil {
		h.count(req.GetName(), 1)
		defer h.count(req.GetName(), -1)
		select {
		case <-held:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if refusal != nil {
		return nil, refusal
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ensured++
	h.given[req.GetUid()] = append(h.given[req.GetUid()], req.GetGeneration())
	if h.removed[req.GetUid()] {
		return nil, fault.WithReason(fault.New(fault.Conflict, "removed"), "TOMBSTONE")
	}
	old, ok := h.hub.Get(req.GetUid())
	if ok && old.GetGeneration() >= req.GetGeneration() && !waits(old) {
		return &sandboxhostv1.EnsureSandboxResponse{Sandbox: old}, nil
	}
	s := &sandboxhostv1.SandboxState{
		Uid: req.GetUid(), Name: req.GetName(), Manager: req.GetManager(), Generation: req.GetGeneration(), Spec: req.GetSpec(),
		Position: req.GetPosition(),
		Status: &resourcev1.SandboxStatus{
			Seq: old.GetStatus().GetSeq() + 1, ObservedGeneration: req.GetGeneration(), Attempt: 1,
			Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING,
		},
	}
	h.hub.Set(req.GetUid(), s)
	return &sandboxhostv1.EnsureSandboxResponse{Sandbox: s}, nil
}

func (h *fakeHost) count(name string, by int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inside[name] += by
}

func (h *fakeHost) RemoveSandbox(_ context.Context, req *sandboxhostv1.RemoveSandboxRequest) (*sandboxhostv1.RemoveSandboxResponse, error) {
	h.mu.Lock()
	h.removed[req.GetUid()] = true
	h.mu.Unlock()
	h.change(req.GetUid(), func(s *sandboxhostv1.SandboxState) {
		s.Removing, s.Status.TornDownAt = true, timestamppb.Now()
	})
	return &sandboxhostv1.RemoveSandboxResponse{}, nil
}

func (h *fakeHost) ForgetSandbox(_ context.Context, req *sandboxhostv1.ForgetSandboxRequest) (*sandboxhostv1.ForgetSandboxResponse, error) {
	if s := h.state(req.GetUid()); s != nil {
		if s.GetStatus().GetTornDownAt() == nil {
			return nil, fault.WithReason(fault.New(fault.Conflict, "something is left"), "NOT_TORN_DOWN")
		}
		h.hub.Delete(req.GetUid(), s)
	}
	return &sandboxhostv1.ForgetSandboxResponse{}, nil
}

func (h *fakeHost) GetSandbox(_ context.Context, req *sandboxhostv1.GetSandboxRequest) (*sandboxhostv1.GetSandboxResponse, error) {
	s := h.state(req.GetUid())
	if s == nil {
		return nil, fault.New(fault.NotFound, "no sandbox %s", req.GetUid())
	}
	return &sandboxhostv1.GetSandboxResponse{Sandbox: s}, nil
}

func (h *fakeHost) WatchSandboxes(_ *sandboxhostv1.WatchSandboxesRequest, stream grpc.ServerStreamingServer[sandboxhostv1.WatchSandboxesResponse]) error {
	h.mu.Lock()
	h.watched++
	h.mu.Unlock()
	for ev := range h.hub.Subscribe(stream.Context()) {
		msg := &sandboxhostv1.WatchSandboxesResponse{Event: &sandboxhostv1.WatchSandboxesResponse_Changed{Changed: ev.Value}}
		switch ev.Kind {
		case watch.Synced:
			msg.Event = &sandboxhostv1.WatchSandboxesResponse_Synced{Synced: true}
		case watch.Deleted:
			msg.Event = &sandboxhostv1.WatchSandboxesResponse_Forgotten{Forgotten: ev.Value}
		}
		if err := stream.Send(msg); err != nil {
			return err
		}
	}
	return context.Cause(stream.Context())
}
