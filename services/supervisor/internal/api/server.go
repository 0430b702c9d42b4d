// Package api is the gRPC door of the supervisor: the contract on one side, the
// loop on the other.
//
// It must never hold a rule about components: it turns tables into messages and
// calls into wishes. In the trail it is what a person's status and restart meet.
package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/services/supervisor/internal/machine"
	"staddle.internal/services/supervisor/internal/upgrade"
)

// maxName is the bound of the contract on a component's name.
const maxName = 63

// graph is what the loop knows and does.
type graph interface {
	Table() machine.Table
	Changed() <-chan struct{}
	Restart(ctx context.Context, name string) error
}

// Server serves SupervisorService.
type Server struct {
	supervisorv1.UnimplementedSupervisorServiceServer

	plan     machine.Plan
	graph    graph
	shutdown func()
	upgrades upgrader
}

// upgrader restarts everything, with the binaries of a folder if one is named.
type upgrader interface {
	Upgrade(ctx context.Context, folder string, tell func(upgrade.Note) error) error
}

// New returns a server over the graph. shutdown begins the stop of this process
// and does not wait for it.
func New(plan machine.Plan, g graph, shutdown func(), upgrades upgrader) *Server {
	return &Server{plan: plan, graph: g, shutdown: shutdown, upgrades: upgrades}
}

// GetGraph answers from memory.
func (s *Server) GetGraph(context.Context, *supervisorv1.GetGraphRequest) (*supervisorv1.GetGraphResponse, error) {
	return &supervisorv1.GetGraphResponse{Components: s.components()}, nil
}

// WatchGraph sends the newest graph whenever it differs from the last one sent.
func (s *Server) WatchGraph(_ *supervisorv1.WatchGraphRequest, stream grpc.ServerStreamingServer[supervisorv1.WatchGraphResponse]) error {
	for {
		changed := s.graph.Changed()
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

// RestartComponent waits for the end of the old process.
func (s *Server) RestartComponent(ctx context.Context, req *supervisorv1.RestartComponentRequest) (*supervisorv1.RestartComponentResponse, error) {
	if n := len(req.GetName()); n == 0 || n > maxName {
		return nil, fault.New(fault.Invalid, "restart component: name has %d characters, write 1 to %d", n, maxName)
	}
	if err := s.graph.Restart(ctx, req.GetName()); err != nil {
		return nil, err
	}
	return &supervisorv1.RestartComponentResponse{}, nil
}

// UpgradeRunner passes each step on as it comes.
func (s *Server) UpgradeRunner(req *supervisorv1.UpgradeRunnerRequest, stream grpc.ServerStreamingServer[supervisorv1.UpgradeRunnerResponse]) error {
	return s.upgrades.Upgrade(stream.Context(), req.GetFolder(), func(n upgrade.Note) error {
		return stream.Send(&supervisorv1.UpgradeRunnerResponse{
			Stage: stages[n.Stage], Component: n.Component, Message: n.Text, At: timestamppb.New(n.At),
		})
	})
}

var stages = map[upgrade.Stage]supervisorv1.UpgradeStage{
	upgrade.Checked:     supervisorv1.UpgradeStage_UPGRADE_STAGE_CHECKED,
	upgrade.Restarting:  supervisorv1.UpgradeStage_UPGRADE_STAGE_RESTARTING,
	upgrade.Ready:       supervisorv1.UpgradeStage_UPGRADE_STAGE_READY,
	upgrade.Failed:      supervisorv1.UpgradeStage_UPGRADE_STAGE_FAILED,
	upgrade.PuttingBack: supervisorv1.UpgradeStage_UPGRADE_STAGE_PUTTING_BACK,
	upgrade.Installed:   supervisorv1.UpgradeStage_UPGRADE_STAGE_INSTALLED,
}

// Shutdown begins the stop.
func (s *Server) Shutdown(context.Context, *supervisorv1.ShutdownRequest) (*supervisorv1.ShutdownResponse, error) {
	s.shutdown()
	return &supervisorv1.ShutdownResponse{}, nil
}

// components turns the table into messages, in the order of the plan.
func (s *Server) components() []*supervisorv1.Component {
	table := s.graph.Table()
	out := make([]*supervisorv1.Component, len(s.plan.Components))
	for i, c := range s.plan.Components {
		m := table.Members[c.Name]
		out[i] = &supervisorv1.Component{
			Name: c.Name, Needs: c.Needs, OrderOnly: c.OrderOnly,
			State: state(m.State), Since: timestamppb.New(m.Since), Reason: m.Reason,
			Pid: int32(m.PID), Starts: m.Starts, LastExit: m.LastExit,
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
