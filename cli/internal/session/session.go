// Package session owns one process that a person runs inside a sandbox, as seen from the
// person's side: what goes in, what comes out, and how it ended.
//
// It keeps the rules of the stream: input within the window that the other side grants,
// signals and sizes of the terminal beside it, and above all that a stream which
// breaks is a failure, never a process that ended well. It must never decide what to run,
// and never leave a terminal in another mode than it found it. In the trail it is the end
// of "staddle exec".
package session

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"
)

const (
	// chunk is how much input goes into one message, by the contract.
	chunk = 32 << 10
	// window is how much may be under way that was not taken yet, by the contract.
	window = 256 << 10
)

// Request says what to run, with which streams.
type Request struct {
	Start *sandboxhostv1.ExecStart
	// Stdin is read if start says so.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Sizes of the terminal, and Signals for the process. Nil for none.
	Sizes   <-chan *sandboxhostv1.TerminalSize
	Signals <-chan os.Signal
}

// Result is how it ended.
type Result struct {
	// Code of the process.
	Code int
	// Reason why, where that was not its own doing; else empty.
	Reason string
}

// stream is the part of a client's stream that is used.
type stream interface {
	Send(*sandboxhostv1.ExecRequest) error
	Recv() (*sandboxhostv1.ExecResponse, error)
}

// Run runs a process to its end, or, detached, until it runs. An error says that nobody
// knows how it ended, or that it was not begun.
func Run(ctx context.Context, client sandboxhostv1.ExecServiceClient, req Request) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // ends the stream, and with it a process that has not ended
	st, err := client.Exec(ctx)
	if err != nil {
		return Result{}, err
	}
	s := &session{req: req, stream: st, credit: newCredit(), fail: cancel}
	if err := s.send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Start{Start: req.Start}}); err != nil {
		return Result{}, err
	}
	return s.hear(ctx)
}

type session struct {
	req    Request
	stream stream
	credit *credit
	fail   context.CancelCauseFunc // ends the session

	mu sync.Mutex // held while a message is sent
}

// send sends a message. That the other side has ended is no error here: its reason is what
// is heard.
func (s *session) send(m *sandboxhostv1.ExecRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.stream.Send(m)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// hear goes through what the other side says.
func (s *session) hear(ctx context.Context) (Result, error) {
	for {
		m, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			return Result{}, fault.New(fault.Unavailable, "the connection ended before the process did")
		}
		if err != nil {
			if unread, ok := errors.AsType[*inputError](context.Cause(ctx)); ok {
				err = unread
			}
			return Result{}, err
		}
		switch f := m.GetFrame().(type) {
		case *sandboxhostv1.ExecResponse_Started:
			if s.req.Start.GetDetach() {
				return Result{}, nil
			}
			s.begin(ctx)
		case *sandboxhostv1.ExecResponse_Stdout:
			_, err = s.req.Stdout.Write(f.Stdout)
		case *sandboxhostv1.ExecResponse_Stderr:
			_, err = s.req.Stderr.Write(f.Stderr)
		case *sandboxhostv1.ExecResponse_StdinTaken:
			s.credit.taken(f.StdinTaken)
		case *sandboxhostv1.ExecResponse_Exit:
			return Result{int(f.Exit.GetCode()), f.Exit.GetReason()}, nil
		}
		if err != nil {
			return Result{}, err
		}
	}
}

// begin has input, signals and sizes go out beside what comes in. Each ends with ctx, but
// for a read of the person's input, which ends with this program.
func (s *session) begin(ctx context.Context) {
	if s.req.Start.GetStdin() {
		go s.pump(ctx)
	}
	go s.watch(ctx)
}

// inputError says that the person's input broke off: what came of it is not all, and must
// not look so to the process.
type inputError struct{ err error }

// Error says why.
func (e *inputError) Error() string { return "read standard input: " + e.err.Error() }

// Unwrap returns what the read returned.
func (e *inputError) Unwrap() error { return e.err }

// pump sends the input to its end.
func (s *session) pump(ctx context.Context) {
	buf := make([]byte, chunk)
	for {
		n, err := s.req.Stdin.Read(buf)
		if n > 0 {
			if !s.credit.spend(ctx, n) || s.send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Stdin{Stdin: buf[:n]}}) != nil {
				return // hear says why
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			s.fail(&inputError{err})
			return
		}
		if err != nil {
			_ = s.send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_StdinEnd{StdinEnd: true}}) // hear says why
			return
		}
	}
}

// watch sends signals and sizes.
func (s *session) watch(ctx context.Context) {
	for {
		m := &sandboxhostv1.ExecRequest{}
		select {
		case size := <-s.req.Sizes:
			m.Frame = &sandboxhostv1.ExecRequest_Resize{Resize: size}
		case signal := <-s.req.Signals:
			m.Frame = &sandboxhostv1.ExecRequest_Signal{Signal: numberOf(signal)}
		case <-ctx.Done():
			return
		}
		if s.send(m) != nil {
			return // hear says why
		}
	}
}
