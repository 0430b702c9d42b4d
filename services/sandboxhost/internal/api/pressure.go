package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/services/sandboxhost/internal/pressure"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// measured tells what the machine runs short of; a *pressure.Monitor.
type measured interface {
	Follow(ctx context.Context, tell func(map[pressure.Resource]pressure.Track) error) error
}

type pressureServer struct {
	sandboxhostv1.UnimplementedPressureServiceServer
	monitor measured
}

// RegisterPressure serves what m measures on a server.
func RegisterPressure(on grpc.ServiceRegistrar, m measured) {
	sandboxhostv1.RegisterPressureServiceServer(on, &pressureServer{monitor: m})
}

// WatchPressure tells how the machine is, and of each change.
func (s *pressureServer) WatchPressure(
	_ *sandboxhostv1.WatchPressureRequest, stream grpc.ServerStreamingServer[sandboxhostv1.WatchPressureResponse],
) error {
	return s.monitor.Follow(stream.Context(), func(tracks map[pressure.Resource]pressure.Track) error {
		res := &sandboxhostv1.WatchPressureResponse{}
		for _, r := range pressure.Resources {
			res.Conditions = append(res.Conditions, condition(r, tracks[r]))
		}
		return stream.Send(res)
	})
}

var stateOf = map[pressure.State]resourcev1.ConditionState{
	pressure.Unknown: resourcev1.ConditionState_CONDITION_STATE_UNKNOWN,
	pressure.Well:    resourcev1.ConditionState_CONDITION_STATE_FALSE,
	pressure.Short:   resourcev1.ConditionState_CONDITION_STATE_TRUE,
}

// maxReason is the contract's bound.
const maxReason = 1024

func condition(r pressure.Resource, t pressure.Track) *resourcev1.Condition {
	return &resourcev1.Condition{
		Type: string(r), State: stateOf[t.State], Reason: t.Reason[:min(len(t.Reason), maxReason)], Since: timestamppb.New(t.Since),
	}
}
