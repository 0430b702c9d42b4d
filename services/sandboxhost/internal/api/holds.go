package api

import (
	"context"

	"google.golang.org/grpc"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// holder keeps sandboxes stopped; a *host.Host.
type holder interface {
	EnsureHold(want *sandboxhostv1.Hold) (*sandboxhostv1.Hold, error)
	LiftHold(purpose sandboxhostv1.HoldPurpose) error
	Holds() ([]*sandboxhostv1.Hold, error)
	FollowHolds(ctx context.Context, tell func([]*sandboxhostv1.Hold) error) error
}

// holdServer implements HoldService.
type holdServer struct {
	sandboxhostv1.UnimplementedHoldServiceServer
	host holder
}

// RegisterHolds serves the holds of h on a server.
func RegisterHolds(on grpc.ServiceRegistrar, h holder) {
	sandboxhostv1.RegisterHoldServiceServer(on, &holdServer{host: h})
}

// EnsureHold keeps sandboxes stopped.
func (s *holdServer) EnsureHold(_ context.Context, req *sandboxhostv1.EnsureHoldRequest) (*sandboxhostv1.EnsureHoldResponse, error) {
	hold, err := s.host.EnsureHold(req.GetHold())
	if err != nil {
		return nil, err
	}
	return &sandboxhostv1.EnsureHoldResponse{Hold: hold}, nil
}

// LiftHold lets sandboxes go on.
func (s *holdServer) LiftHold(_ context.Context, req *sandboxhostv1.LiftHoldRequest) (*sandboxhostv1.LiftHoldResponse, error) {
	if err := s.host.LiftHold(req.GetPurpose()); err != nil {
		return nil, err
	}
	return &sandboxhostv1.LiftHoldResponse{}, nil
}

// ListHolds tells which holds stand.
func (s *holdServer) ListHolds(context.Context, *sandboxhostv1.ListHoldsRequest) (*sandboxhostv1.ListHoldsResponse, error) {
	all, err := s.host.Holds()
	if err != nil {
		return nil, err
	}
	return &sandboxhostv1.ListHoldsResponse{Holds: all}, nil
}

// WatchHolds tells which holds stand, and of each change.
func (s *holdServer) WatchHolds(_ *sandboxhostv1.WatchHoldsRequest, stream grpc.ServerStreamingServer[sandboxhostv1.WatchHoldsResponse]) error {
	return s.host.FollowHolds(stream.Context(), func(all []*sandboxhostv1.Hold) error {
		return stream.Send(&sandboxhostv1.WatchHoldsResponse{Holds: all})
	})
}
