package exec

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/engine"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Exec runs one process.
func (s *Server) Exec(stream grpc.BidiStreamingServer[sandboxhostv1.ExecRequest, sandboxhostv1.ExecResponse]) error {
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return fault.New(fault.Invalid, "there is no start")
	}
	if err != nil {
		return err
	}
	if err := checkStart(first); err != nil {
		return err
	}
	start := first.GetStart()
	state, err := s.host.Get(id.Sandbox(start.GetUid()))
	if err != nil {
		return err
	}
	at, err := placeOf(state, start.GetContainer())
	if err != nil {
		return err
	}
	if err := s.enter(&s.open, at.uid); err != nil {
		return err
	}
	defer s.pumps.Done()
	p, err := s.runtime.Open(stream.Context(), besideOf(at, start))
	if err != nil {
		s.count(&s.open, at.uid, -1)
		return err
	}
	s.log.Info("process executed", at.uid.Attr(), logging.Component(at.containerID), logging.Attempt(int64(at.attempt)))
	defer s.part(stream.Context(), parting{at.uid, p, start.GetDetach()})
	return s.serve(stream, p, at, start)
}

// serve goes through one session, from the start of its process to the end.
func (s *Server) serve(
	stream grpc.BidiStreamingServer[sandboxhostv1.ExecRequest, sandboxhostv1.ExecResponse], p engine.Process, at place, start *sandboxhostv1.ExecStart,
) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	t := newSession(p, p.Stdin(), cancel)
	send := func(m *sandboxhostv1.ExecResponse) error { return t.send(func() error { return stream.Send(m) }) }
	t.recv = func() (word, error) { return wordOf(stream.Recv()) }
	t.silent = t.inbox.end
	t.taken = func(n uint64) error {
		return send(&sandboxhostv1.ExecResponse{Frame: &sandboxhostv1.ExecResponse_StdinTaken{StdinTaken: n}})
	}
	err := send(&sandboxhostv1.ExecResponse{Frame: &sandboxhostv1.ExecResponse_Started{
		Started: &sandboxhostv1.ExecStarted{Attempt: at.attempt},
	}})
	if err != nil || start.GetDetach() {
		return err
	}
	// Both end with the stream, or when the process is closed; Run waits for them.
	s.pumps.Go(func() { t.hear(ctx) })
	if t.stdin != nil {
		s.pumps.Go(func() { t.feed(ctx, 0) })
	}
	var outputs sync.WaitGroup
	outputs.Go(func() { t.tell(p.Stdout(), stdout, send) }) // end with the process or the stream; waited for below
	outputs.Go(func() { t.tell(p.Stderr(), stderr, send) })
	ended, err := p.Wait(ctx)
	if ctx.Err() != nil {
		t.close()
		s.pumps.Go(outputs.Wait) // they end when the process is closed
		return context.Cause(ctx)
	}
	p.Drain() // after a failure too: nothing more comes then
	outputs.Wait()
	if err != nil {
		return err
	}
	exit := &sandboxhostv1.ExecExit{Code: ended.Code}
	switch {
	case ended.ContainerEnded:
		exit.Reason = reasonOf(s.host.Get(at.uid))
	case ended.OOMKilled:
		exit.Reason = "it was ended for using more memory than the limit of its container"
	}
	defer t.close()
	return send(&sandboxhostv1.ExecResponse{Frame: &sandboxhostv1.ExecResponse_Exit{Exit: exit}})
}

func stdout(b []byte) *sandboxhostv1.ExecResponse {
	return &sandboxhostv1.ExecResponse{Frame: &sandboxhostv1.ExecResponse_Stdout{Stdout: b}}
}

func stderr(b []byte) *sandboxhostv1.ExecResponse {
	return &sandboxhostv1.ExecResponse{Frame: &sandboxhostv1.ExecResponse_Stderr{Stderr: b}}
}

// tell sends what the process writes to one output, until its end.
func (t *session) tell(output io.Reader, frame func([]byte) *sandboxhostv1.ExecResponse, send func(*sandboxhostv1.ExecResponse) error) {
	if output == nil {
		return
	}
	buf := make([]byte, chunk)
	for {
		n, err := output.Read(buf)
		if n > 0 {
			if sendErr := send(frame(buf[:n])); sendErr != nil {
				t.cancel(sendErr)
				return
			}
		}
		if err != nil {
			return // its end
		}
	}
}
