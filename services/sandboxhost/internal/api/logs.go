package api

import (
	"context"
	"errors"
	"time"

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
	// Removed lists the removed sandboxes of which output is kept, in the order in which
	// they were removed.
	Removed() ([]logs.Removed, error)
	// Containers lists those of a sandbox of which output is kept, by name.
	Containers(uid id.Sandbox) ([]string, error)
	// Attempts returns the attempts of which output is kept, ascending.
	Attempts(uid id.Sandbox, container string) ([]uint64, error)
	// Read emits what is kept from a position on. With Follow it goes on until
	// the streams are closed or ctx ends.
	Read(ctx context.Context, at logs.Position, mode logs.Mode, emit func(logs.Chunk) error) error
}

// ReadLogs streams what a container wrote.
func (s *Server) ReadLogs(
	req *sandboxhostv1.ReadLogsRequest, stream grpc.ServerStreamingServer[sandboxhostv1.ReadLogsResponse],
) error {
	state, err := s.present(req)
	if errors.Is(err, fault.NotFound) {
		return s.readRemoved(req, stream, err)
	}
	if err != nil {
		return err
	}
	container, err := host.ContainerOf(state, req.GetContainer())
	if err != nil {
		return err
	}
	at := positionOf(req, id.Sandbox(state.GetUid()), container)
	mode := modeOf(req)
	if req.GetPrevious() {
		return s.readPrevious(stream, at, state.GetStatus().GetAttempt(), mode)
	}
	if req.GetAttempt() != 0 {
		return s.readAttempt(stream, at, state.GetStatus().GetAttempt(), mode)
	}
	return s.readNewest(stream, at, mode)
}

// positionOf is where a request begins.
func positionOf(req *sandboxhostv1.ReadLogsRequest, uid id.Sandbox, container string) logs.Position {
	return logs.Position{
		UID:          uid,
		Container:    container,
		Attempt:      req.GetAttempt(),
		Stdout:       req.GetStream() != sandboxhostv1.LogStream_LOG_STREAM_STDERR,
		Stderr:       req.GetStream() != sandboxhostv1.LogStream_LOG_STREAM_STDOUT,
		StdoutOffset: req.GetStdoutOffset(),
		StderrOffset: req.GetStderrOffset(),
	}
}

// modeOf is what a request says about how much is read.
func modeOf(req *sandboxhostv1.ReadLogsRequest) logs.Mode {
	mode := logs.Mode{Follow: req.GetFollow(), Timed: req.GetTimed(), Tail: everything}
	if req.TailLines != nil {
		mode.Tail = int(req.GetTailLines())
	}
	if req.GetSince() != nil {
		mode.Since = req.GetSince().AsTime()
	}
	return mode
}

// everything is the Tail that leaves out nothing.
const everything = -1

// readPrevious reads the newest attempt before the current one.
func (s *Server) readPrevious(
	stream grpc.ServerStreamingServer[sandboxhostv1.ReadLogsResponse], at logs.Position, current uint64, mode logs.Mode,
) error {
	kept, err := s.logs.Attempts(at.UID, at.Container)
	if err != nil {
		return err
	}
	for _, attempt := range kept {
		if attempt < current {
			at.Attempt = attempt
		}
	}
	if at.Attempt == 0 {
		return fault.New(fault.NotFound, "sandbox %s: nothing is kept of an attempt of container %s before %d", at.UID, at.Container, current)
	}
	return s.logs.Read(stream.Context(), at, mode, sender(stream, at))
}

// readAttempt reads one attempt that the caller has named.
func (s *Server) readAttempt(
	stream grpc.ServerStreamingServer[sandboxhostv1.ReadLogsResponse], at logs.Position, current uint64, mode logs.Mode,
) error {
	kept, err := s.logs.Attempts(at.UID, at.Container)
	if err != nil {
		return err
	}
	for _, attempt := range kept {
		if attempt == at.Attempt {
			return s.logs.Read(stream.Context(), at, mode, sender(stream, at))
		}
	}
	if at.Attempt == current { // it has written nothing yet
		if !mode.Follow {
			return nil
		}
		first, err := s.await(stream.Context(), at, at.Attempt-1, endedBy(at.Attempt))
		if err != nil || first != at.Attempt { // it ended before it had a container
			return err
		}
		return s.logs.Read(stream.Context(), at, mode, sender(stream, at))
	}
	return fault.New(fault.NotFound, "sandbox %s: nothing is kept of attempt %d of container %s", at.UID, at.Attempt, at.Container)
}

// readNewest reads the newest attempt, and with follow those that come after it
// until the sandbox is removed.
func (s *Server) readNewest(
	stream grpc.ServerStreamingServer[sandboxhostv1.ReadLogsResponse], at logs.Position, mode logs.Mode,
) error {
	kept, err := s.logs.Attempts(at.UID, at.Container)
	if err != nil {
		return err
	}
	if len(kept) > 0 {
		at.Attempt = kept[len(kept)-1]
		if err := s.logs.Read(stream.Context(), at, mode, sender(stream, at)); err != nil || !mode.Follow {
			return err
		}
	}
	for mode.Follow {
		at.StdoutOffset, at.StderrOffset = 0, 0
		mode.Since, mode.Tail = time.Time{}, everything // the rest is new as a whole
		if at.Attempt, err = s.await(stream.Context(), at, at.Attempt, removed); err != nil || at.Attempt == 0 {
			return err
		}
		if err := s.logs.Read(stream.Context(), at, mode, sender(stream, at)); err != nil {
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

// sender sends chunks of the attempt at a position.
func sender(stream grpc.ServerStreamingServer[sandboxhostv1.ReadLogsResponse], at logs.Position) func(logs.Chunk) error {
	return func(c logs.Chunk) error {
		res := &sandboxhostv1.ReadLogsResponse{
			Attempt: at.Attempt,
			Stream:  sandboxhostv1.LogStream_LOG_STREAM_STDOUT,
			Offset:  c.Offset,
			Data:    c.Data,
		}
		if c.Stderr {
			res.Stream = sandboxhostv1.LogStream_LOG_STREAM_STDERR
		}
		if len(c.Data) == 0 {
			res.Container = at.Container
		}
		if !c.At.IsZero() {
			res.ReadAt = timestamppb.New(c.At)
		}
		return stream.Send(res)
	}
}
