package api

import (
	"context"
	"sync"

	"google.golang.org/grpc"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"

	"staddle.internal/services/supervisor/internal/child"
)

// maxTail is the bound of the contract on the lines from the end.
const maxTail = 1_000_000

// ownName is the name that this process has for the callers of SetLogLevel and of
// the events.
const ownName = "supervisor"

// ReadComponentLogs streams what is kept, and goes on if that is wanted.
func (s *Server) ReadComponentLogs(req *supervisorv1.ReadComponentLogsRequest, stream grpc.ServerStreamingServer[supervisorv1.ReadComponentLogsResponse]) error {
	if err := checkName("read logs", req.GetName()); err != nil {
		return err
	}
	how := child.Reading{Tail: -1, Follow: req.GetFollow()}
	if req.TailLines != nil {
		if n := req.GetTailLines(); n > maxTail {
			return fault.New(fault.Invalid, "read logs: tail of %d lines is too long, write at most %d", n, maxTail)
		}
		how.Tail = int(req.GetTailLines())
	}
	return s.deps.Outputs.ReadOutput(stream.Context(), req.GetName(), how, func(data []byte, missed int64) error {
		return stream.Send(&supervisorv1.ReadComponentLogsResponse{Data: data, MissedBytes: uint64(max(missed, 0))})
	})
}

// SetLogLevel asks all processes at the same time; each has its own outcome.
func (s *Server) SetLogLevel(ctx context.Context, req *supervisorv1.SetLogLevelRequest) (*supervisorv1.SetLogLevelResponse, error) {
	names, err := s.named(req.GetComponent())
	if err != nil {
		return nil, err
	}
	wish := &processv1.SetLogLevelRequest{Level: req.GetLevel(), Period: req.GetPeriod()}
	if err := rpc.CheckLogLevel(wish); err != nil {
		return nil, err
	}
	outcomes := make([]*supervisorv1.LogLevelOutcome, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { outcomes[i] = s.setLevel(ctx, name, wish) }) // waited for below
	}
	wg.Wait()
	return &supervisorv1.SetLogLevelResponse{Outcomes: outcomes}, nil
}

// named lists whose level is meant.
func (s *Server) named(component string) ([]string, error) {
	const what = "set log level"
	if component != "" && component != ownName {
		if err := s.checkFilter(what, component); err != nil {
			return nil, err
		}
		if s.deps.Foreign(component) {
			return nil, fault.New(fault.Conflict, "set log level of component %s: it is no process of Staddle", component)
		}
	}
	if component != "" {
		return []string{component}, nil
	}
	var names []string
	for _, c := range s.plan.Components {
		if !s.deps.Foreign(c.Name) {
			names = append(names, c.Name)
		}
	}
	return append(names, ownName), nil
}

// setLevel sets one level. A component without a process is not asked: its socket
// would hold the question until there is one.
func (s *Server) setLevel(ctx context.Context, name string, wish *processv1.SetLogLevelRequest) *supervisorv1.LogLevelOutcome {
	out := &supervisorv1.LogLevelOutcome{Component: name}
	if m, ok := s.deps.Graph.Table().Members[name]; ok && m.PID == 0 {
		out.Failure = "it has no process: it is " + m.State.String()
		return out
	}
	answer, err := s.deps.SetLevel(ctx, name, wish)
	if err != nil {
		out.Failure = err.Error()
	}
	out.Previous = answer.GetPrevious()
	return out
}
