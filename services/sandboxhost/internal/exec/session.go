package exec

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/engine"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// chunk is how much is moved at a time.
	chunk = 32 << 10
	// askLimit bounds a signal or a new size: longer than containerd takes to start anew.
	askLimit = 20 * time.Second
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
	if err := s.enter(at.uid); err != nil {
		return err
	}
	defer s.pumps.Done()
	p, err := s.runtime.Open(stream.Context(), besideOf(at, start))
	if err != nil {
		s.count(at.uid, -1)
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
	t := &session{stream: stream, process: p, cancel: cancel, inbox: newInbox()}
	err := t.send(&sandboxhostv1.ExecResponse{Frame: &sandboxhostv1.ExecResponse_Started{
		Started: &sandboxhostv1.ExecStarted{Attempt: at.attempt},
	}})
	if err != nil || start.GetDetach() {
		return err
	}
	// Both end with the stream, or when the process is closed; Run waits for them.
	s.pumps.Go(func() { t.hear(ctx) })
	if p.Stdin() != nil {
		s.pumps.Go(func() { t.feed(ctx) })
	}
	var outputs sync.WaitGroup
	outputs.Go(func() { t.tell(p.Stdout(), stdout) }) // end with the process or the stream; waited for below
	outputs.Go(func() { t.tell(p.Stderr(), stderr) })
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
	return t.send(&sandboxhostv1.ExecResponse{Frame: &sandboxhostv1.ExecResponse_Exit{Exit: exit}})
}

// session is one call with its process.
type session struct {
	stream  grpc.BidiStreamingServer[sandboxhostv1.ExecRequest, sandboxhostv1.ExecResponse]
	process engine.Process
	cancel  context.CancelCauseFunc
	inbox   *inbox

	mu   sync.Mutex // held while a message is sent: a stream takes one at a time
	over bool       // nothing is sent any more; guarded by mu
}

// errOver is why a message was not sent.
var errOver = errors.New("the session is over")

func (t *session) send(m *sandboxhostv1.ExecResponse) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return errOver
	}
	return t.stream.Send(m)
}

// close makes the message before it the last one.
func (t *session) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

// hear does what the caller says, until the caller says no more. One who goes ends
// the session.
func (t *session) hear(ctx context.Context) {
	over := false // the input
	for {
		m, err := t.stream.Recv()
		if errors.Is(err, io.EOF) {
			t.inbox.end()
			return
		}
		if err == nil {
			err = t.obey(ctx, m, &over)
		}
		if err != nil {
			t.cancel(err)
			return
		}
	}
}

func (t *session) obey(ctx context.Context, m *sandboxhostv1.ExecRequest, over *bool) error {
	switch f := m.GetFrame().(type) {
	case *sandboxhostv1.ExecRequest_Stdin:
		switch {
		case t.process.Stdin() == nil:
			return fault.New(fault.Invalid, "stdin: start does not say that there is any; set start.stdin")
		case *over:
			return fault.New(fault.Invalid, "stdin: it is at its end already")
		}
		return t.inbox.put(ctx, f.Stdin)
	case *sandboxhostv1.ExecRequest_StdinEnd:
		*over = true
		t.inbox.end()
		return nil
	case *sandboxhostv1.ExecRequest_Resize:
		return ask(ctx, func(ctx context.Context) error { return t.process.Resize(ctx, sizeOf(f.Resize)) })
	case *sandboxhostv1.ExecRequest_Signal:
		return ask(ctx, func(ctx context.Context) error { return t.process.Signal(ctx, syscall.Signal(f.Signal)) })
	}
	return fault.New(fault.Invalid, "a second start: a stream runs one process")
}

// ask asks the engine for something, again for a while when it cannot be asked.
func ask(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	for try := 1; ; try++ {
		err := fn(ctx)
		if !errors.Is(err, fault.Unavailable) || backoff.Wait(ctx, closeAgain.Delay(try, rand.Float64())) != nil {
			return err
		}
	}
}

// feed hands input on, and says how much of it was taken. What nobody reads any more
// is dropped.
func (t *session) feed(ctx context.Context) {
	buf := make([]byte, chunk)
	taken, broken := uint64(0), false
	for {
		n, err := t.inbox.take(ctx, buf)
		if errors.Is(err, io.EOF) {
			err = t.process.EndStdin(ctx)
			if err != nil && !broken {
				t.cancel(err)
			}
			return
		}
		if err != nil {
			return // the session is over
		}
		if !broken {
			_, err := t.process.Stdin().Write(buf[:n])
			broken = err != nil
		}
		taken += uint64(n)
		if t.send(&sandboxhostv1.ExecResponse{Frame: &sandboxhostv1.ExecResponse_StdinTaken{StdinTaken: taken}}) != nil {
			return // the same
		}
	}
}

func stdout(b []byte) *sandboxhostv1.ExecResponse {
	return &sandboxhostv1.ExecResponse{Frame: &sandboxhostv1.ExecResponse_Stdout{Stdout: b}}
}

func stderr(b []byte) *sandboxhostv1.ExecResponse {
	return &sandboxhostv1.ExecResponse{Frame: &sandboxhostv1.ExecResponse_Stderr{Stderr: b}}
}

// tell sends what the process writes to one output, until its end.
func (t *session) tell(output io.Reader, frame func([]byte) *sandboxhostv1.ExecResponse) {
	if output == nil {
		return
	}
	buf := make([]byte, chunk)
	for {
		n, err := output.Read(buf)
		if n > 0 {
			if sendErr := t.send(frame(buf[:n])); sendErr != nil {
				t.cancel(sendErr)
				return
			}
		}
		if err != nil {
			return // its end
		}
	}
}
