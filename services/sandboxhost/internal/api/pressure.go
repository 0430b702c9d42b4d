package api

import (
	"context"
	"strings"
	"time"

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

// confining says since when it is known whether workloads have a profile of AppArmor, and
// what is lacking if they have none; an *containerd.Engine.
type confining interface {
	AppArmor() (lacking string, since time.Time)
}

type pressureServer struct {
	sandboxhostv1.UnimplementedPressureServiceServer
	monitor measured
	engine  confining
}

// RegisterPressure serves what m measures, and how e can confine, on a server.
func RegisterPressure(on grpc.ServiceRegistrar, m measured, e confining) {
	sandboxhostv1.RegisterPressureServiceServer(on, &pressureServer{monitor: m, engine: e})
}

// WatchPressure tells how the machine is, and of each change. It is asked only once the
// process is ready: the engine is open then, and how it confines stays as it is.
func (s *pressureServer) WatchPressure(
	_ *sandboxhostv1.WatchPressureRequest, stream grpc.ServerStreamingServer[sandboxhostv1.WatchPressureResponse],
) error {
	return s.monitor.Follow(stream.Context(), func(tracks map[pressure.Resource]pressure.Track) error {
		res := &sandboxhostv1.WatchPressureResponse{Confinement: []*resourcev1.Condition{appArmor(s.engine.AppArmor())}}
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
	return &resourcev1.Condition{Type: string(r), State: stateOf[t.State], Reason: clipped(t.Reason), Since: timestamppb.New(t.Since)}
}

// appArmor is the condition of that.
func appArmor(lacking string, since time.Time) *resourcev1.Condition {
	state := resourcev1.ConditionState_CONDITION_STATE_TRUE
	if lacking != "" {
		state = resourcev1.ConditionState_CONDITION_STATE_FALSE
	}
	return &resourcev1.Condition{Type: "AppArmor", State: state, Reason: clipped(lacking), Since: timestamppb.New(since)}
}

// clipped is a reason within its bound, as valid text.
func clipped(reason string) string {
	return strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
}
