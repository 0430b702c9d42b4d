package api

import (
	"context"

	"google.golang.org/grpc"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// eventSource keeps what happened; an *event.Store.
type eventSource interface {
	After(seq uint64, uid string, limit int) ([]*sandboxhostv1.Event, <-chan struct{})
}

// eventServer implements EventService.
type eventServer struct {
	sandboxhostv1.UnimplementedEventServiceServer
	source eventSource
}

// RegisterEvents serves the events that s keeps on a server.
func RegisterEvents(on grpc.ServiceRegistrar, s eventSource) {
	sandboxhostv1.RegisterEventServiceServer(on, &eventServer{source: s})
}

// ReadEvents sends what is kept, and with follow what comes.
func (s *eventServer) ReadEvents(req *sandboxhostv1.ReadEventsRequest, stream grpc.ServerStreamingServer[sandboxhostv1.ReadEventsResponse]) error {
	ctx, seq, limit := stream.Context(), req.GetAfterSeq(), int(req.GetLimit())
	for {
		events, changed := s.source.After(seq, req.GetUid(), limit)
		for _, e := range events {
			if err := stream.Send(&sandboxhostv1.ReadEventsResponse{Event: e}); err != nil {
				return err
			}
			seq = e.GetSeq()
		}
		if !req.GetFollow() {
			return nil
		}
		limit = 0
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
