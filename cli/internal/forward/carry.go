package forward

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
)

const (
	// chunk is how much goes into one message, by the contract.
	chunk = 32 << 10
	// connectLimit bounds the wait for a host that is being restarted, and for its answer.
	connectLimit = 15 * time.Second
)

// again is the wait between questions to a host that is away.
var again = backoff.Policy{Initial: 50 * time.Millisecond, Cap: time.Second}

// nearError is a failure of the connection on this machine, of which its own program knows.
type nearError struct{ err error }

// Error says why.
func (e *nearError) Error() string {
	return "the program on this machine broke it off: " + e.err.Error()
}

// Unwrap returns what reading or writing returned.
func (e *nearError) Unwrap() error { return e.err }

// stream is one connection on its way.
type stream = grpc.BidiStreamingClient[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse]

// carry moves bytes between a connection and a port inside a sandbox until both
// directions have ended. It closes the connection; one that broke it resets.
func carry(ctx context.Context, client sandboxhostv1.ForwardServiceClient, conn *net.TCPConn, start *sandboxhostv1.ForwardStart) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	reset := context.AfterFunc(ctx, func() { // wakes who reads or writes
		_ = conn.SetLinger(0)
		_ = conn.Close()
	})
	defer func() {
		if err == nil && reset() {
			_ = conn.Close() // both directions have ended: nothing is lost with it
		}
		cancel(nil) // ends the stream
	}()
	st, err := connect(ctx, cancel, client, start)
	if err != nil {
		return err
	}
	sent := make(chan struct{})
	go func() { // ends with the connection, which ends at the latest with this call; waited for below
		defer close(sent)
		if err := upward(conn, st); err != nil {
			cancel(err)
		}
	}()
	if err = downward(st, conn); err != nil {
		err = cause(ctx, err)
		cancel(err)
	}
	<-sent
	return err
}

// connect begins the stream. A host that is being restarted is asked again for a while:
// nothing was sent yet that could come twice.
func connect(ctx context.Context, cancel context.CancelCauseFunc, client sandboxhostv1.ForwardServiceClient, start *sandboxhostv1.ForwardStart) (stream, error) {
	last := fault.New(fault.Unavailable, "its node does not answer")
	late := time.AfterFunc(connectLimit, func() { cancel(errLate) })
	defer late.Stop()
	for try := 1; ; try++ {
		st, err := ask(ctx, client, start)
		switch {
		case err == nil:
			return st, nil
		case errors.Is(context.Cause(ctx), errLate):
			return nil, last
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !away(err):
			return nil, err
		}
		last = err
		if backoff.Wait(ctx, again.Delay(try, rand.Float64())) != nil {
			continue // the next question says why
		}
	}
}

// errLate ends what took longer than it may.
var errLate = errors.New("no answer in time")

// away says whether a failure is that of a host which may be there in a moment.
func away(err error) bool {
	reason := fault.Reason(err)
	return fault.KindOf(err) == fault.Unavailable && slices.Contains([]string{"", "NOT_READY", "PROCESS_DOWN"}, reason)
}

// ask begins the stream and waits for the first word.
func ask(ctx context.Context, client sandboxhostv1.ForwardServiceClient, start *sandboxhostv1.ForwardStart) (stream, error) {
	st, err := client.Forward(ctx, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	if err := st.Send(&sandboxhostv1.ForwardRequest{Frame: &sandboxhostv1.ForwardRequest_Start{Start: start}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	m, err := st.Recv()
	switch {
	case errors.Is(err, io.EOF):
		return nil, fault.New(fault.Internal, "its node ended the stream before it was connected")
	case err != nil:
		return nil, err
	case m.GetConnected() == nil:
		return nil, fault.New(fault.Internal, "its node began with something else than that it is connected")
	}
	return st, nil
}

// cause is why ctx ended, if that is why err is there.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// upward sends what comes from this machine. That the other side has ended is no error here:
// its reason is what downward hears.
func upward(conn *net.TCPConn, st stream) error {
	buf := make([]byte, chunk)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if sendErr := st.Send(&sandboxhostv1.ForwardRequest{Frame: &sandboxhostv1.ForwardRequest_Data{Data: buf[:n]}}); sendErr != nil {
				return over(sendErr)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return over(st.Send(&sandboxhostv1.ForwardRequest{Frame: &sandboxhostv1.ForwardRequest_DataEnd{DataEnd: true}}))
		case err != nil:
			return &nearError{err}
		}
	}
}

func over(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// downward hands on what comes from the sandbox, to the good end of the stream.
func downward(st stream, conn *net.TCPConn) error {
	for ended := false; ; {
		m, err := st.Recv()
		switch {
		case errors.Is(err, io.EOF) && ended:
			return nil
		case errors.Is(err, io.EOF):
			return fault.New(fault.Unavailable, "the stream ended before the connection did")
		case err != nil:
			return err
		}
		switch f := m.GetFrame().(type) {
		case *sandboxhostv1.ForwardResponse_Data:
			_, err = conn.Write(f.Data)
		case *sandboxhostv1.ForwardResponse_DataEnd:
			ended, err = true, conn.CloseWrite()
		}
		if err != nil {
			return &nearError{err}
		}
	}
}
