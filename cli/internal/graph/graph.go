// Package graph owns what the command line knows of the processes of a machine:
// where the boot graph is asked for, how it is drawn, and whether all of it is
// ready.
//
// With a supervisor the graph is the supervisor's. Without one it is put
// together from node.yaml and the answer of every process on its own socket. It
// must never start or stop anything. In the trail it serves "staddle status"
// and shows how "staddle up" gets on.
package graph

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/target"
)

// Supervisor is the name of the process that knows the graph.
const Supervisor = "supervisor"

// askTimeout bounds the question to one process; it answers from memory.
const askTimeout = 2 * time.Second

// pollPeriod spaces the questions where there is nobody who tells of changes.
const pollPeriod = time.Second

// Source is where the graph of one installation is asked for.
type Source struct {
	paths config.Paths
}

// New returns the source for an installation.
func New(paths config.Paths) *Source { return &Source{paths} }

// Now returns the graph as it is. Without a supervisor it asks every process.
func (s *Source) Now(ctx context.Context) (*supervisorv1.GetGraphResponse, error) {
	conn, err := target.Socket(ctx, Supervisor, s.paths.Socket(Supervisor))
	if fault.KindOf(err) == fault.Unavailable {
		return s.askAll(ctx)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	g, err := supervisorv1.NewSupervisorServiceClient(conn).GetGraph(ctx, &supervisorv1.GetGraphRequest{})
	err = errors.Join(err, conn.Close())
	if err != nil {
		return nil, s.refused(Supervisor, fmt.Errorf("get graph: %w", err))
	}
	return g, nil
}

// Watch calls show with the graph at once and after each change, until show
// fails or the context ends. It outlives the supervisor.
func (s *Source) Watch(ctx context.Context, show func(*supervisorv1.GetGraphResponse) error) error {
	for {
		err := s.WatchSupervisor(ctx, show)
		if fault.KindOf(err) != fault.Unavailable || ctx.Err() != nil {
			return err
		}
		g, err := s.askAll(ctx)
		if err == nil {
			err = show(g)
		}
		if err == nil {
			err = backoff.Wait(ctx, pollPeriod)
		}
		if err != nil {
			return err
		}
	}
}

// WatchSupervisor is Watch without the way round the supervisor: it fails with
// fault.Unavailable when there is none, and when it ends.
func (s *Source) WatchSupervisor(ctx context.Context, show func(*supervisorv1.GetGraphResponse) error) (err error) {
	conn, err := target.Socket(ctx, Supervisor, s.paths.Socket(Supervisor))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := supervisorv1.NewSupervisorServiceClient(conn).WatchGraph(ctx, &supervisorv1.WatchGraphRequest{})
	if err != nil {
		return fmt.Errorf("watch graph: %w", err)
	}
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return fault.New(fault.Unavailable, "watch graph: the supervisor ended")
		}
		if err != nil {
			return s.refused(Supervisor, fmt.Errorf("watch graph: %w", err))
		}
		if err := show(&supervisorv1.GetGraphResponse{Components: msg.GetComponents()}); err != nil {
			return err
		}
	}
}

// askAll puts the graph together from the processes themselves.
func (s *Source) askAll(ctx context.Context) (*supervisorv1.GetGraphResponse, error) {
	if _, err := os.Stat(s.paths.NodeFile()); errors.Is(err, os.ErrNotExist) {
		return nil, exit.Try(fault.New(fault.NotFound, "ask for status: there is no installation: %s does not exist", s.paths.NodeFile()), "staddle up")
	}
	node, err := config.LoadNode(s.paths.NodeFile())
	if err != nil {
		return nil, err
	}
	g := &supervisorv1.GetGraphResponse{}
	for _, c := range node.Graph() {
		if c.Name == config.ContainerdName {
			continue // it is no process of ours, and has no GetStatus; sandboxhost says how it is
		}
		component, err := s.ask(ctx, c)
		if err != nil {
			return nil, err
		}
		g.Components = append(g.Components, component)
	}
	return g, nil
}

// ask asks one process. That it cannot be reached is an answer here; that the
// caller may not ask is not.
func (s *Source) ask(ctx context.Context, c config.Component) (*supervisorv1.Component, error) {
	out := &supervisorv1.Component{
		Name: c.Name, Needs: without(c.Needs, config.ContainerdName), OrderOnly: c.OrderOnly,
		State: supervisorv1.ComponentState_COMPONENT_STATE_STOPPED,
	}
	if _, err := os.Lstat(s.paths.Socket(c.Name)); errors.Is(err, os.ErrNotExist) {
		return out, nil // it has no socket: stopped says it all
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := target.Socket(ctx, c.Name, s.paths.Socket(c.Name))
	var status *processv1.GetStatusResponse
	if err == nil {
		status, err = processv1.NewProcessServiceClient(conn).GetStatus(ctx, &processv1.GetStatusRequest{})
		err = errors.Join(err, conn.Close())
	}
	switch fault.KindOf(err) {
	case 0:
		fill(out, status)
	case fault.Unavailable:
		out.Reason = err.Error()
	default:
		return nil, s.refused(c.Name, fmt.Errorf("ask %s: %w", c.Name, err))
	}
	return out, nil
}

func (s *Source) refused(process string, err error) error {
	return target.Refused(process, s.paths.Socket(process), err)
}

var stateOf = map[processv1.ProcessState]supervisorv1.ComponentState{
	processv1.ProcessState_PROCESS_STATE_STARTING:  supervisorv1.ComponentState_COMPONENT_STATE_STARTING,
	processv1.ProcessState_PROCESS_STATE_READY:     supervisorv1.ComponentState_COMPONENT_STATE_READY,
	processv1.ProcessState_PROCESS_STATE_NOT_READY: supervisorv1.ComponentState_COMPONENT_STATE_NOT_READY,
	processv1.ProcessState_PROCESS_STATE_STOPPING:  supervisorv1.ComponentState_COMPONENT_STATE_STOPPING,
}

func fill(c *supervisorv1.Component, s *processv1.GetStatusResponse) {
	c.State, c.Since, c.Reason, c.Pid = stateOf[s.GetState()], s.GetSince(), s.GetReason(), s.GetPid()
}

func without(names []string, name string) []string {
	var out []string
	for _, n := range names {
		if n != name {
			out = append(out, n)
		}
	}
	return out
}

// Ready reports whether every component is ready; a graph without any is not.
func Ready(g *supervisorv1.GetGraphResponse) bool {
	for _, c := range g.GetComponents() {
		if c.GetState() != supervisorv1.ComponentState_COMPONENT_STATE_READY {
			return false
		}
	}
	return len(g.GetComponents()) > 0
}

// Stopped reports whether nothing runs at all.
func Stopped(g *supervisorv1.GetGraphResponse) bool {
	for _, c := range g.GetComponents() {
		if c.GetState() != supervisorv1.ComponentState_COMPONENT_STATE_STOPPED || c.GetReason() != "" {
			return false
		}
	}
	return true
}

// Same reports whether two components differ in nothing that is shown.
func Same(a, b *supervisorv1.Component) bool { return proto.Equal(a, b) }
