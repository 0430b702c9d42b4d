// Package api is the door of sandboxhost: SandboxHostService over a Host and the
// store of logs.
//
// It turns requests into wishes and states into answers. It holds no rule about
// sandboxes: those of the contract stand in the proto file, all others in
// internal/host. In the trail it comes after the agent's loop, or a person's
// command, and before internal/host.
package api

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/host"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Bounds of a page.
const (
	defaultPage = 100
	largestPage = 1000
	// maxPageBytes keeps a page well below the 4 MiB of one message.
	maxPageBytes = 2 << 20
)

// Host is what the door opens to; a *host.Host.
type Host interface {
	Ensure(ctx context.Context, wish *sandboxhostv1.Wish) (*sandboxhostv1.SandboxState, error)
	Remove(ctx context.Context, uid id.Sandbox, manager string) error
	Forget(ctx context.Context, uid id.Sandbox, manager string) error
	Get(uid id.Sandbox) (*sandboxhostv1.SandboxState, error)
	List() (map[id.Sandbox]*sandboxhostv1.SandboxState, error)
	States() *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]
}

// Server implements SandboxHostService.
type Server struct {
	sandboxhostv1.UnimplementedSandboxHostServiceServer
	host Host
	logs logSource
}

// Register serves the sandboxes of h and their output on a server.
func Register(on grpc.ServiceRegistrar, h Host, logs logSource) {
	sandboxhostv1.RegisterSandboxHostServiceServer(on, &Server{host: h, logs: logs})
}

// EnsureSandbox accepts a wish.
func (s *Server) EnsureSandbox(
	ctx context.Context, req *sandboxhostv1.EnsureSandboxRequest,
) (*sandboxhostv1.EnsureSandboxResponse, error) {
	if err := check(ctx, req.GetUid(), req.GetManager(), false); err != nil {
		return nil, err
	}
	state, err := s.host.Ensure(ctx, &sandboxhostv1.Wish{
		Uid:        req.GetUid(),
		Name:       req.GetName(),
		Manager:    req.GetManager(),
		Generation: req.GetGeneration(),
		Spec:       req.GetSpec(),
		Position:   req.GetPosition(),
		Labels:     req.GetLabels(),
	})
	if err != nil {
		return nil, err
	}
	return &sandboxhostv1.EnsureSandboxResponse{Sandbox: state}, nil
}

// RemoveSandbox ends a wish.
func (s *Server) RemoveSandbox(
	ctx context.Context, req *sandboxhostv1.RemoveSandboxRequest,
) (*sandboxhostv1.RemoveSandboxResponse, error) {
	if err := check(ctx, req.GetUid(), req.GetManager(), req.GetLost()); err != nil {
		return nil, err
	}
	if err := s.host.Remove(ctx, id.Sandbox(req.GetUid()), req.GetManager()); err != nil {
		return nil, err
	}
	return &sandboxhostv1.RemoveSandboxResponse{}, nil
}

// ForgetSandbox drops what is known of a removed sandbox.
func (s *Server) ForgetSandbox(
	ctx context.Context, req *sandboxhostv1.ForgetSandboxRequest,
) (*sandboxhostv1.ForgetSandboxResponse, error) {
	if err := check(ctx, req.GetUid(), req.GetManager(), req.GetLost()); err != nil {
		return nil, err
	}
	if err := s.host.Forget(ctx, id.Sandbox(req.GetUid()), req.GetManager()); err != nil {
		return nil, err
	}
	return &sandboxhostv1.ForgetSandboxResponse{}, nil
}

// check is what the three changes have in common.
func check(ctx context.Context, uid, manager string, lost bool) error {
	if err := id.CheckUID(uid); err != nil {
		return err
	}
	return host.CheckCaller(rpc.Caller(ctx).Role, manager, lost)
}

// GetSandbox returns one sandbox.
func (s *Server) GetSandbox(
	_ context.Context, req *sandboxhostv1.GetSandboxRequest,
) (*sandboxhostv1.GetSandboxResponse, error) {
	state, err := s.host.Get(id.Sandbox(req.GetUid()))
	if err != nil {
		return nil, err
	}
	return &sandboxhostv1.GetSandboxResponse{Sandbox: state}, nil
}

// ListSandboxes returns a page of sandboxes by uid. The token of a page is the
// last uid before it.
func (s *Server) ListSandboxes(
	_ context.Context, req *sandboxhostv1.ListSandboxesRequest,
) (*sandboxhostv1.ListSandboxesResponse, error) {
	after := req.GetPageToken()
	if after != "" {
		if err := id.CheckUID(after); err != nil {
			return nil, fault.New(fault.Invalid, "page token was not made by this method: %w", err)
		}
	}
	states, err := s.host.List()
	if err != nil {
		return nil, err
	}
	size := min(int(req.GetPageSize()), largestPage)
	if size <= 0 {
		size = defaultPage
	}
	res, bytes := &sandboxhostv1.ListSandboxesResponse{}, 0
	for _, uid := range slices.Sorted(maps.Keys(states)) {
		state := states[uid]
		if string(uid) <= after || req.GetManager() != "" && state.GetManager() != req.GetManager() {
			continue
		}
		bytes += proto.Size(state)
		if n := len(res.GetSandboxes()); n == size || n > 0 && bytes > maxPageBytes {
			res.NextPageToken = res.GetSandboxes()[n-1].GetUid()
			break
		}
		res.Sandboxes = append(res.Sandboxes, state)
	}
	return res, nil
}

// WatchSandboxes sends all sandboxes, and then every change.
func (s *Server) WatchSandboxes(
	req *sandboxhostv1.WatchSandboxesRequest, stream grpc.ServerStreamingServer[sandboxhostv1.WatchSandboxesResponse],
) error {
	if _, err := s.host.List(); err != nil { // not before adoption: what is unknown would look like "none"
		return err
	}
	for ev := range s.host.States().Subscribe(stream.Context()) {
		if ev.Kind != watch.Synced && !asked(req, ev.Value) {
			continue
		}
		if err := stream.Send(message(ev)); err != nil {
			return err
		}
	}
	if stream.Context().Err() != nil {
		return context.Cause(stream.Context())
	}
	return fault.New(fault.Unavailable, "the reader is too far behind, watch again")
}

func asked(req *sandboxhostv1.WatchSandboxesRequest, s *sandboxhostv1.SandboxState) bool {
	return (req.GetManager() == "" || req.GetManager() == s.GetManager()) &&
		(req.GetUid() == "" || req.GetUid() == s.GetUid())
}

func message(ev watch.Event[id.Sandbox, *sandboxhostv1.SandboxState]) *sandboxhostv1.WatchSandboxesResponse {
	switch ev.Kind {
	case watch.Synced:
		return &sandboxhostv1.WatchSandboxesResponse{Event: &sandboxhostv1.WatchSandboxesResponse_Synced{Synced: true}}
	case watch.Deleted:
		return &sandboxhostv1.WatchSandboxesResponse{Event: &sandboxhostv1.WatchSandboxesResponse_Forgotten{Forgotten: ev.Value}}
	}
	return &sandboxhostv1.WatchSandboxesResponse{Event: &sandboxhostv1.WatchSandboxesResponse_Changed{Changed: ev.Value}}
}
