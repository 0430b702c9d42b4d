// Package api is the gRPC door of the supervisor: the contract on one side, the
// loop on the other.
//
// It must never hold a rule about components: it turns tables and transitions into
// messages and calls into wishes. In the trail it is what a person's status,
// restart and look into the logs meet.
package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/services/supervisor/internal/child"
	"staddle.internal/services/supervisor/internal/machine"
	"staddle.internal/services/supervisor/internal/supervise"
)

// maxName is the bound of the contract on a component's name.
const maxName = 63

// graph is what the loop knows and does.
type graph interface {
	Table() machine.Table
	Changed() <-chan struct{}
	Start(ctx context.Context, name string) error
	Stop(ctx context.Context, name string) error
	Restart(ctx context.Context, name string) error
	History() *supervise.History
}

// outputs is what is kept of what the components wrote.
type outputs interface {
	ReadOutput(ctx context.Context, name string, how child.Reading, emit func(data []byte, missed int64) error) error
}

// Deps are what a Server needs from others.
type Deps struct {
	Graph    graph
	Outputs  outputs
	Upgrades upgrader
	// SetLevel sets the level of one component, or of the supervisor itself. It is
	// not called for the foreign.
	SetLevel func(ctx context.Context, component string, req *processv1.SetLogLevelRequest) (*processv1.SetLogLevelResponse, error)
	// Foreign reports whether a component is a program that is not of Staddle.
	Foreign func(component string) bool
	// Drain returns when every sandbox of the node is dead and kept so for this boot;
	// after a time, if one is given, what still lives is killed.
	Drain func(ctx context.Context, killAfter *durationpb.Duration) error
	// Own is the program of the supervisor itself.
	Own own
	// Shutdown begins the stop of this process and does not wait for it.
	Shutdown func()
}

// Server serves SupervisorService.
type Server struct {
	supervisorv1.UnimplementedSupervisorServiceServer

	plan machine.Plan
	deps Deps
}

// New returns a server over the components of the plan.
func New(plan machine.Plan, deps Deps) *Server { return &Server{plan: plan, deps: deps} }

// GetGraph answers from memory.
func (s *Server) GetGraph(context.Context, *supervisorv1.GetGraphRequest) (*supervisorv1.GetGraphResponse, error) {
	return &supervisorv1.GetGraphResponse{Components: s.components()}, nil
}

// WatchGraph sends the newest graph whenever it differs from the last one sent.
func (s *Server) WatchGraph(_ *supervisorv1.WatchGraphRequest, stream grpc.ServerStreamingServer[supervisorv1.WatchGraphResponse]) error {
	for {
		changed := s.deps.Graph.Changed()
		if err := stream.Send(&supervisorv1.WatchGraphResponse{Components: s.components()}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
	}
}

// StopComponent waits for the end of the process.
func (s *Server) StopComponent(ctx context.Context, req *supervisorv1.StopComponentRequest) (*supervisorv1.StopComponentResponse, error) {
	if err := do(ctx, "stop component", req.GetName(), s.deps.Graph.Stop); err != nil {
		return nil, err
	}
	return &supervisorv1.StopComponentResponse{}, nil
}

// StartComponent waits for nothing.
func (s *Server) StartComponent(ctx context.Context, req *supervisorv1.StartComponentRequest) (*supervisorv1.StartComponentResponse, error) {
	if err := do(ctx, "start component", req.GetName(), s.deps.Graph.Start); err != nil {
		return nil, err
	}
	return &supervisorv1.StartComponentResponse{}, nil
}

// RestartComponent waits for the end of the old process.
func (s *Server) RestartComponent(ctx context.Context, req *supervisorv1.RestartComponentRequest) (*supervisorv1.RestartComponentResponse, error) {
	if err := do(ctx, "restart component", req.GetName(), s.deps.Graph.Restart); err != nil {
		return nil, err
	}
	return &supervisorv1.RestartComponentResponse{}, nil
}

// do bounds the name and does one thing to the component.
func do(ctx context.Context, what, name string, thing func(context.Context, string) error) error {
	if err := checkName(what, name); err != nil {
		return err
	}
	return thing(ctx, name)
}

func checkName(what, name string) error {
	if n := len(name); n == 0 || n > maxName {
		return fault.New(fault.Invalid, "%s: name has %d characters, write 1 to %d", what, n, maxName)
	}
	return nil
}

// Shutdown begins the stop, after the node was drained if that is asked for.
func (s *Server) Shutdown(ctx context.Context, req *supervisorv1.ShutdownRequest) (*supervisorv1.ShutdownResponse, error) {
	if req.GetMode() == supervisorv1.ShutdownMode_SHUTDOWN_MODE_DRAIN {
		if err := s.deps.Drain(ctx, req.GetKillAfter()); err != nil {
			return nil, err
		}
	}
	s.deps.Shutdown()
	return &supervisorv1.ShutdownResponse{}, nil
}

// components turns the table into messages, in the order of the plan.
func (s *Server) components() []*supervisorv1.Component {
	table := s.deps.Graph.Table()
	out := make([]*supervisorv1.Component, len(s.plan.Components))
	for i, c := range s.plan.Components {
		m := table.Members[c.Name]
		out[i] = &supervisorv1.Component{
			Name: c.Name, Needs: c.Needs, OrderOnly: c.OrderOnly,
			State: state(m.State), Since: timestamppb.New(m.Since), Reason: m.Reason,
			Pid: int32(m.PID), Starts: m.Starts, LastExit: m.LastExit.How,
		}
		if m.State == machine.BackingOff {
			out[i].NextStartAt = timestamppb.New(m.NextStart)
		}
	}
	return out
}

var states = map[machine.State]supervisorv1.ComponentState{
	machine.Waiting:    supervisorv1.ComponentState_COMPONENT_STATE_WAITING,
	machine.Starting:   supervisorv1.ComponentState_COMPONENT_STATE_STARTING,
	machine.Ready:      supervisorv1.ComponentState_COMPONENT_STATE_READY,
	machine.NotReady:   supervisorv1.ComponentState_COMPONENT_STATE_NOT_READY,
	machine.Stopping:   supervisorv1.ComponentState_COMPONENT_STATE_STOPPING,
	machine.Stopped:    supervisorv1.ComponentState_COMPONENT_STATE_STOPPED,
	machine.BackingOff: supervisorv1.ComponentState_COMPONENT_STATE_BACKING_OFF,
}

func state(s machine.State) supervisorv1.ComponentState { return states[s] }
