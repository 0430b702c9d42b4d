package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
)

// away is how long a host may be away before a session with it is given up.
const away = 60 * time.Second

// retry spaces the tries to reach a host that is away.
var retry = backoff.Policy{Initial: 100 * time.Millisecond, Cap: 2 * time.Second}

// AttachRequest says to which main process, with which streams.
type AttachRequest struct {
	// Start is how the session begins. With stdin it has an input_id, or a session
	// with input does not outlive its connection.
	Start *sandboxhostv1.AttachStart
	// Stdin is read if start says so. ErrDetached from it leaves the process, and ErrNoEnd is
	// no end. See Keys.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Sizes of the terminal, Size the present one, and Signals for the process. Nil for none.
	Sizes   <-chan *sandboxhostv1.TerminalSize
	Size    func() *sandboxhostv1.TerminalSize
	Signals <-chan os.Signal
	// Note tells the person something beside the output.
	Note func(format string, args ...any)
}

// attachment is one session, over as many connections as it takes.
type attachment struct {
	client sandboxhostv1.ExecServiceClient
	req    AttachRequest
	person person
	start  *sandboxhostv1.AttachStart // of the next connection
	read   func()                     // has input be read, once
	begun  bool                       // the process was reached once
	heard  time.Time                  // when it was last
}

// Attach goes along with a main process until it ends, over restarts of its host. An error
// says that nobody knows how it ended; it may go on.
func Attach(ctx context.Context, client sandboxhostv1.ExecServiceClient, req AttachRequest) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &attachment{
		client: client, req: req, start: proto.CloneOf(req.Start),
		person: person{input: newBacklog(), sizes: req.Sizes, signals: req.Signals},
	}
	a.read = sync.OnceFunc(func() { a.person.read(ctx, req.Stdin, cancel) })
	for tries := 1; ; tries++ {
		before := a.heard
		result, err := a.connect(ctx)
		if err == nil {
			return result, nil
		}
		if errors.Is(context.Cause(ctx), ErrDetached) {
			return Result{Detached: true}, nil
		}
		if !a.worthTrying(ctx, err) {
			return Result{}, whyBroken(ctx, err)
		}
		if a.heard != before {
			tries = 1
		}
		if waitErr := backoff.Wait(ctx, retry.Delay(tries, rand.Float64())); waitErr != nil {
			return Result{}, whyBroken(ctx, err)
		}
	}
}

// worthTrying says whether a session may go on over another connection.
func (a *attachment) worthTrying(ctx context.Context, err error) bool {
	gone := errors.Is(err, io.EOF) || fault.KindOf(err) == fault.Unavailable && fault.Reason(err) != "EXIT_UNKNOWN"
	resumable := !a.start.GetStdin() || a.start.GetInputId() != ""
	return gone && a.begun && resumable && ctx.Err() == nil && time.Since(a.heard) < away
}

// connect goes along over one connection, from where the one before ended.
func (a *attachment) connect(ctx context.Context) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := a.client.Attach(ctx)
	if err != nil {
		return Result{}, err
	}
	if a.req.Size != nil {
		a.start.Size = a.req.Size()
	}
	to := &attachUp{sender[*sandboxhostv1.AttachRequest]{stream: st}}
	if err := to.send(&sandboxhostv1.AttachRequest{Frame: &sandboxhostv1.AttachRequest_Start{Start: a.start}}); err != nil {
		return Result{}, err
	}
	for {
		m, err := st.Recv()
		if err != nil {
			return Result{}, err
		}
		a.heard = time.Now()
		if exit := m.GetExit(); exit != nil {
			return Result{Code: int(exit.GetCode()), Reason: exit.GetReason()}, nil
		}
		if err := a.obey(ctx, to, m); err != nil {
			return Result{}, err
		}
	}
}

// obey does what one message asks for.
func (a *attachment) obey(ctx context.Context, to up, m *sandboxhostv1.AttachResponse) error {
	if started := m.GetStarted(); started != nil {
		return a.begin(ctx, to, started)
	}
	if a.start.GetFrom() == nil {
		return fault.New(fault.Internal, "the host sent something before it said that there is a session")
	}
	switch f := m.GetFrame().(type) {
	case *sandboxhostv1.AttachResponse_Stdout:
		return a.show(a.req.Stdout, "standard output", &a.start.From.StdoutOffset, f.Stdout)
	case *sandboxhostv1.AttachResponse_Stderr:
		return a.show(a.req.Stderr, "standard error", &a.start.From.StderrOffset, f.Stderr)
	case *sandboxhostv1.AttachResponse_StdinTaken:
		if !a.person.input.take(f.StdinTaken) {
			return errUnsent
		}
	}
	return nil
}

// begin has input, signals and sizes go out, where an earlier connection left off.
func (a *attachment) begin(ctx context.Context, to up, started *sandboxhostv1.AttachStarted) error {
	if a.start.From == nil {
		a.start.From, a.start.TailLines = &sandboxhostv1.AttachFrom{Attempt: started.GetAttempt()}, nil
	}
	a.begun, a.start.Resumed = true, a.start.GetInputId() != ""
	if a.start.GetStdin() && !started.GetEnded() {
		if !a.person.input.take(started.GetStdinTaken()) {
			return fault.WithReason(fault.New(fault.Conflict, "the host does not know how much of the input it took"), "INPUT_LOST")
		}
		a.person.pump(ctx, to, started.GetStdinTaken())
		a.read()
	}
	a.person.watch(ctx, to)
	return nil
}

// show shows a piece of one stream, which was shown up to an offset.
func (a *attachment) show(w io.Writer, name string, shown *int64, piece *sandboxhostv1.AttachOutput) error {
	if gap := piece.GetOffset() - *shown; gap > 0 && len(piece.GetData()) > 0 {
		a.req.Note("%d bytes of %s are not kept any more", gap, name)
	}
	*shown = piece.GetOffset() + int64(len(piece.GetData()))
	if _, err := w.Write(piece.GetData()); err != nil {
		return fmt.Errorf("show output: %w", err)
	}
	return nil
}
