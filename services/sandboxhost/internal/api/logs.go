package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/logs"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// logSource is where output is kept; a *logs.Store.
type logSource interface {
	// Attempts returns the attempts of which output is kept, ascending.
	Attempts(uid id.Sandbox, container string) ([]uint64, error)
	// Read emits what is kept from a position on. With follow it goes on until
	// the streams are closed or ctx ends.
	Read(ctx context.Context, at logs.Position, follow bool, emit func(logs.Chunk) error) error
}

// ReadLogs streams what a container wrote.
func (s *Server) ReadLogs(
	req *sandboxhostv1.ReadLogsRequest, stream grpc.ServerStreamingServer[sandboxhostv1.ReadLogsResponse],
) error {
	state, err := s.host.Get(id.Sandbox(req.GetUid()))
	if err != nil {
		return err
	}
	container, err := host.ContainerOf(state, req.GetContainer())
	if err != nil {
		return err
	}
	at := logs.Position{
		UID:          id.Sandbox(req.GetUid()),
		Container:    container,
		Attempt:      req.GetAttempt(),
		Stdout:       req.GetStream() != sandboxhostv1.LogStream_LOG_STREAM_STDERR,
		Stderr:       req.GetStream() != sandboxhostv1.LogStream_LOG_STREAM_STDOUT,
		StdoutOffset: req.GetStdoutOffset(),
		StderrOffset: req.GetStderrOffset(),
	}
	if req.GetAttempt() != 0 {
		return s.readAttempt(stream, at, state.GetStatus().GetAttempt(), req.GetFollow())
	}
	return s.readNewest(stream, at, req.GetFollow())
}

// readAttempt reads one attempt that the caller has named.
func (s *Server) readAttempt(
	stream grpc.ServerStreamingServer[sandboxhostv1.ReadLogsResponse], at logs.Position, current uint64, follow bool,
) error {
	kept, err := s.logs.Attempts(at.UID, at.Container)
	if err != nil {
		return err
	}
	for _, attempt := range kept {
		if attempt == at.Attempt {
			return s.logs.Read(stream.Context(), at, follow, sender(stream, at.Attempt))
		}
	}
	if at.Attempt == current { // it has written nothing yet
		if !follow {
			return nil
		}
		first, err := s.await(stream.Context(), at, at.Attempt-1, endedBy(at.Attempt))
		if err != nil || first != at.Attempt { // it ended before it had a container
			return err
		}
		return s.logs.Read(stream.Context(), at, true, sender(stream, at.Attempt))
	}
	return fault.New(fault.NotFound, "sandbox %s: nothing is kept of attempt %d of container %s", at.UID, at.Attempt, at.Container)
}

// readNewest reads the newest attempt, and with follow those that come after it
// until the sandbox is removed.
func (s *Server) readNewest(
	stream grpc.ServerStreamingServer[sandboxhostv1.ReadLogsResponse], at logs.Position, follow bool,
) error {
	kept, err := s.logs.Attempts(at.UID, at.Container)
	if err != nil {
		return err
	}
	if len(kept) > 0 {
		at.Attempt = kept[len(kept)-1]
		if err := s.logs.Read(stream.Context(), at, follow, sender(stream, at.Attempt)); err != nil || !follow {
			return err
		}
	}
	for follow {
		at.StdoutOffset, at.StderrOffset = 0, 0
		if at.Attempt, err = s.await(stream.Context(), at, at.Attempt, removed); err != nil || at.Attempt == 0 {
			return err
		}
		if err := s.logs.Read(stream.Context(), at, true, sender(stream, at.Attempt)); err != nil {
			return err
		}
	}
	return nil
}

// await returns the first attempt after the given one of which something is kept,
// or 0 when it is over before there is one.
func (s *Server) await(
	ctx context.Context, at logs.Position, after uint64, over func(*sandboxhostv1.SandboxState) bool,
) (uint64, error) {
	for ev := range s.host.States().Subscribe(ctx) {
		if ev.Kind == watch.Synced || ev.Key != at.UID {
			continue
		}
		if ev.Kind == watch.Deleted || removed(ev.Value) {
			return 0, nil
		}
		kept, err := s.logs.Attempts(at.UID, at.Container)
		if err != nil {
			return 0, err
		}
		for _, attempt := range kept {
			if attempt > after {
				return attempt, nil
			}
		}
		if over(ev.Value) {
			return 0, nil
		}
	}
	return 0, context.Cause(ctx)
}

func removed(s *sandboxhostv1.SandboxState) bool { return s.GetStatus().GetTornDownAt() != nil }

// endedBy says of a sandbox that one of its attempts has ended.
func endedBy(attempt uint64) func(*sandboxhostv1.SandboxState) bool {
	return func(s *sandboxhostv1.SandboxState) bool {
		status := s.GetStatus()
		return status.GetAttempt() > attempt || status.GetPhase() >= resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	}
}

// sender sends chunks of one attempt.
func sender(stream grpc.ServerStreamingServer[sandboxhostv1.ReadLogsResponse], attempt uint64) func(logs.Chunk) error {
	return func(c logs.Chunk) error {
		res := &sandboxhostv1.ReadLogsResponse{
			Attempt: attempt,
			Stream:  sandboxhostv1.LogStream_LOG_STREAM_STDOUT,
			Offset:  c.Offset,
			Data:    c.Data,
		}
		if c.Stderr {
			res.Stream = sandboxhostv1.LogStream_LOG_STREAM_STDERR
		}
		if !c.At.IsZero() {
			res.ReadAt = timestamppb.New(c.At)
		}
		return stream.Send(res)
	}
}
