// Package api serves PresenceService: the gRPC door of this process.
//
// It tells what the node's loop says, and what the keeper of drains says, also before
// the process is ready, because that is when people ask. It must never decide
// anything. In the trail it is where the supervisor and people read whether the node
// may be given work, and take it out of use.
package api

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
)

// teller tells of the node.
type teller interface {
	Presence() *presencev1.Presence
	Follow(ctx context.Context, tell func(*presencev1.Presence) error) error
}

// drainer takes the node out of use; a *drain.Keeper.
type drainer interface {
	Cordon(reason string) (*presencev1.Admission, error)
	Uncordon(req *presencev1.UncordonRequest) (*presencev1.Admission, error)
	Drain(req *presencev1.DrainRequest) (*presencev1.Admission, error)
	Follow(ctx context.Context, tell func(*presencev1.Admission) error) error
}

// Server is the service.
type Server struct {
	presencev1.UnimplementedPresenceServiceServer

	node  teller
	drain drainer
}

// New returns the service.
func New(node teller, drain drainer) *Server { return &Server{node: node, drain: drain} }

// GetPresence answers from memory.
func (s *Server) GetPresence(context.Context, *presencev1.GetPresenceRequest) (*presencev1.GetPresenceResponse, error) {
	return &presencev1.GetPresenceResponse{Presence: s.node.Presence()}, nil
}

// WatchPresence streams the presence.
func (s *Server) WatchPresence(_ *presencev1.WatchPresenceRequest, stream grpc.ServerStreamingServer[presencev1.WatchPresenceResponse]) error {
	return s.node.Follow(stream.Context(), func(p *presencev1.Presence) error {
		return stream.Send(&presencev1.WatchPresenceResponse{Presence: p})
	})
}

// Cordon keeps new sandboxes away.
func (s *Server) Cordon(_ context.Context, req *presencev1.CordonRequest) (*presencev1.CordonResponse, error) {
	a, err := s.drain.Cordon(req.GetReason())
	if err != nil {
		return nil, err
	}
	return &presencev1.CordonResponse{Admission: a}, nil
}

// Uncordon opens the node again.
func (s *Server) Uncordon(_ context.Context, req *presencev1.UncordonRequest) (*presencev1.UncordonResponse, error) {
	a, err := s.drain.Uncordon(req)
	if err != nil {
		return nil, err
	}
	return &presencev1.UncordonResponse{Admission: a}, nil
}

// errDone ends a stream whose last message was sent.
var errDone = errors.New("done")

// Drain has the node drained and streams how far that is.
func (s *Server) Drain(req *presencev1.DrainRequest, stream grpc.ServerStreamingServer[presencev1.DrainResponse]) error {
	if _, err := s.drain.Drain(req); err != nil {
		return err
	}
	err := s.drain.Follow(stream.Context(), func(a *presencev1.Admission) error {
		progress := a.GetDrain()
		if req.GetShutdown() {
			progress = a.GetShutdown()
		}
		if progress == nil {
			return fault.WithReason(fault.New(fault.Conflict, "drain: the node was uncordoned meanwhile"), "UNCORDONED")
		}
		if err := stream.Send(&presencev1.DrainResponse{Progress: progress}); err != nil {
			return err
		}
		if progress.GetStep() == presencev1.DrainStep_DRAIN_STEP_DONE {
			return errDone
		}
		return nil
	})
	switch {
	case errors.Is(err, errDone):
		return nil
	case err == nil:
		return fault.New(fault.Unavailable, "drain: the reader is too far behind; call again")
	}
	return err
}
