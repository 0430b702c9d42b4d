// Package session owns one process inside a sandbox that a person runs, or is attached to, as
// seen from the person's side: what goes in, what comes out, and how it ended.
//
// It keeps the rules of the stream: input within the window that the other side grants,
// signals and sizes of the terminal beside it, and above all that a stream which
// breaks is a failure, never a process that ended well. It must never decide what to run,
// and never leave a terminal in another mode than it found it. In the trail it is the end
// of "staddle exec" and "staddle attach".
package session

import (
	"context"
	"errors"
	"io"
	"os"

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
	// Detached is true for one that goes on, since the person has left it.
	Detached bool
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
	to := &execUp{sender[*sandboxhostv1.ExecRequest]{stream: st}}
	if err := to.send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Start{Start: req.Start}}); err != nil {
		return Result{}, err
	}
	p := &person{input: newBacklog(), sizes: req.Sizes, signals: req.Signals}
	for {
		m, err := st.Recv()
		if err != nil {
			return Result{}, whyBroken(ctx, err)
		}
		switch f := m.GetFrame().(type) {
		case *sandboxhostv1.ExecResponse_Started:
			if req.Start.GetDetach() {
				return Result{}, nil
			}
			if req.Start.GetStdin() {
				p.read(ctx, req.Stdin, cancel)
				p.pump(ctx, to, 0)
			}
			p.watch(ctx, to)
		case *sandboxhostv1.ExecResponse_Stdout:
			_, err = req.Stdout.Write(f.Stdout)
		case *sandboxhostv1.ExecResponse_Stderr:
			_, err = req.Stderr.Write(f.Stderr)
		case *sandboxhostv1.ExecResponse_StdinTaken:
			p.input.take(f.StdinTaken)
		case *sandboxhostv1.ExecResponse_Exit:
			return Result{Code: int(f.Exit.GetCode()), Reason: f.Exit.GetReason()}, nil
		}
		if err != nil {
			return Result{}, err
		}
	}
}

// whyBroken is why a stream has ended without an exit.
func whyBroken(ctx context.Context, err error) error {
	if errors.Is(err, io.EOF) {
		return fault.New(fault.Unavailable, "the connection ended before the process did")
	}
	if unread, ok := errors.AsType[*inputError](context.Cause(ctx)); ok {
		return unread
	}
	return err
}

// inputError says that the person's input broke off: what came of it is not all, and must
// not look so to the process.
type inputError struct{ err error }

// Error says why.
func (e *inputError) Error() string { return "read standard input: " + e.err.Error() }

// Unwrap returns what the read returned.
func (e *inputError) Unwrap() error { return e.err }
