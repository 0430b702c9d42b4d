package api

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/services/supervisor/internal/machine"
	"staddle.internal/services/supervisor/internal/supervise"
)

// Bounds of the contract.
const (
	maxEvents = 1000
	maxLife   = 64
)

// ListEvents answers from memory.
func (s *Server) ListEvents(_ context.Context, req *supervisorv1.ListEventsRequest) (*supervisorv1.ListEventsResponse, error) {
	if err := s.checkEvents("list events", req.GetComponent()); err != nil {
		return nil, err
	}
	if n := req.GetLimit(); n > maxEvents {
		return nil, fault.New(fault.Invalid, "list events: limit is %d, write at most %d", n, maxEvents)
	}
	history := s.deps.Graph.History()
	out := &supervisorv1.ListEventsResponse{Life: history.Life()}
	found, _, _ := history.After(0)
	for _, t := range found {
		if of(t, req.GetComponent()) {
			out.Events = append(out.Events, event(t))
		}
	}
	if n := int(req.GetLimit()); n > 0 && n < len(out.GetEvents()) {
		out.Events = out.GetEvents()[len(out.GetEvents())-n:]
	}
	return out, nil
}

// WatchEvents sends what is kept and then what comes.
func (s *Server) WatchEvents(req *supervisorv1.WatchEventsRequest, stream grpc.ServerStreamingServer[supervisorv1.WatchEventsResponse]) error {
	if err := s.checkEvents("watch events", req.GetComponent()); err != nil {
		return err
	}
	if n := len(req.GetLife()); n > maxLife {
		return fault.New(fault.Invalid, "watch events: life has %d characters, write at most %d", n, maxLife)
	}
	history := s.deps.Graph.History()
	after := req.GetAfterSeq()
	if life := req.GetLife(); life != "" && life != history.Life() {
		after = 0
	}
	var missed uint64
	for {
		found, gap, changed := history.After(after)
		missed += gap
		for _, t := range found {
			after = t.Seq
			if !of(t, req.GetComponent()) {
				continue
			}
			if err := stream.Send(&supervisorv1.WatchEventsResponse{Event: event(t), Life: history.Life(), Missed: missed}); err != nil {
				return err
			}
			missed = 0
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
	}
}

// checkEvents allows what checkFilter does, and the supervisor itself.
func (s *Server) checkEvents(what, name string) error {
	if name == ownName {
		return nil
	}
	return s.checkFilter(what, name)
}

// checkFilter allows the name of a component of the plan, or none.
func (s *Server) checkFilter(what, name string) error {
	if name == "" {
		return nil
	}
	if err := checkName(what, name); err != nil {
		return err
	}
	return s.exists(what, name)
}

func (s *Server) exists(what, name string) error {
	if !slices.ContainsFunc(s.plan.Components, func(c machine.Component) bool { return c.Name == name }) {
		return fault.New(fault.NotFound, "%s of component %s: there is none of that name", what, name)
	}
	return nil
}

func of(t supervise.Transition, component string) bool {
	return component == "" || component == t.Component
}

// event turns a transition into a message.
func event(t supervise.Transition) *supervisorv1.ComponentEvent {
	out := &supervisorv1.ComponentEvent{
		Seq: t.Seq, At: timestamppb.New(t.At), Component: t.Component, From: state(t.From), To: state(t.To),
		Cause: t.Cause, Attempt: t.Attempt, Pid: int32(t.PID),
	}
	if t.Exit != nil {
		out.ExitSignal = t.Exit.Signal
		if t.Exit.Code != nil {
			code := int32(*t.Exit.Code)
			out.ExitCode = &code
		}
	}
	if t.To == machine.BackingOff {
		out.NextDelay = durationpb.New(t.NextDelay)
	}
	return out
}
