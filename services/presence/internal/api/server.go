// Package api serves PresenceService: the gRPC door of this process.
//
// It tells what the node's loop says, also before the process is ready, because
// that is when people ask. It must never decide anything. In the trail it is where
// the supervisor and people read whether the node may be given work.
package api

import (
	"context"

	"google.golang.org/grpc"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
)

// teller tells of the node.
type teller interface {
	Presence() *presencev1.Presence
	Follow(ctx context.Context, tell func(*presencev1.Presence) error) error
}

// Server is the service.
type Server struct {
	presencev1.UnimplementedPresenceServiceServer

	node teller
}

// New returns the service.
func New(node teller) *Server { return &Server{node: node} }

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
