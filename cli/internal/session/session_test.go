package session_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/session"
)

type (
	request  = sandboxhostv1.ExecRequest
	response = sandboxhostv1.ExecResponse
	stream   = grpc.BidiStreamingServer[request, response]
	attached = grpc.BidiStreamingServer[sandboxhostv1.AttachRequest, sandboxhostv1.AttachResponse]
)

// host answers a session by a script.
type host struct {
	sandboxhostv1.UnimplementedExecServiceServer
	script func(stream) error
	attach func(attached) error
}

// Attach answers by another script.
func (h host) Attach(st attached) error { return h.attach(st) }

func (h host) Exec(st stream) error {
	if m, err := st.Recv(); err != nil || m.GetStart() == nil {
		return errors.New("there is no start")
	}
	return h.script(st)
}

// against runs a session with a host that answers by a script.
func against(t *testing.T, req session.Request, script func(stream) error) (session.Result, error) {
	t.Helper()
	if req.Start == nil {
		req.Start = &sandboxhostv1.ExecStart{}
	}
	return session.Run(t.Context(), clientOf(t, host{script: script}), req)
}

// clientOf connects to a host.
func clientOf(t *testing.T, h host) sandboxhostv1.ExecServiceClient {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.StreamInterceptor(fault.StreamServer))
	sandboxhostv1.RegisterExecServiceServer(server, h)
	go func() { _ = server.Serve(l) }() // ends with Stop
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStreamInterceptor(fault.StreamClient),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return sandboxhostv1.NewExecServiceClient(conn)
}

func started() *response {
	return &response{Frame: &sandboxhostv1.ExecResponse_Started{Started: &sandboxhostv1.ExecStarted{}}}
}

func exit(code uint32) *response {
	return &response{Frame: &sandboxhostv1.ExecResponse_Exit{Exit: &sandboxhostv1.ExecExit{Code: code, Reason: "why"}}}
}

// A stream that ends without an exit is a failure, however it ends. (EXE-4)
func TestRun_EXE4_AStreamWithoutAnExitIsAFailure(t *testing.T) {
	for name, script := range map[string]func(stream) error{
		"at once, well":   func(stream) error { return nil },
		"started, well":   func(st stream) error { return st.Send(started()) },
		"started, broken": func(st stream) error { return errors.Join(st.Send(started()), fault.New(fault.Unavailable, "gone")) },
		"refused":         func(stream) error { return fault.New(fault.Conflict, "it does not run") },
	} {
		if got, err := against(t, session.Request{}, script); err == nil {
			t.Errorf("%s: got %+v and no error", name, got)
		}
	}
	got, err := against(t, session.Request{}, func(st stream) error { return errors.Join(st.Send(started()), st.Send(exit(7))) })
	if err != nil || got != (session.Result{Code: 7, Reason: "why"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = against(t, session.Request{Start: &sandboxhostv1.ExecStart{Detach: true}}, func(st stream) error { return st.Send(started()) })
	if err != nil || got.Code != 0 {
		t.Errorf("detached: got %+v, %v", got, err)
	}
}

// All input arrives in order, with its end, and never more at a time than is granted; a signal
// passes it.
func TestRun_SendsInputWithinTheWindow(t *testing.T) {
	const size, granted = 1 << 20, 256 << 10
	text := strings.Repeat("0123456789abcdef", size/16)
	signals := make(chan os.Signal)
	var out bytes.Buffer
	req := session.Request{
		Start: &sandboxhostv1.ExecStart{Stdin: true}, Stdin: strings.NewReader(text), Stdout: &out, Stderr: &out, Signals: signals,
	}
	got, err := against(t, req, func(st stream) error {
		if err := st.Send(started()); err != nil {
			return err
		}
		received, signalled, taken := 0, false, 0
		for {
			m, err := st.Recv()
			if err != nil {
				return err
			}
			received += len(m.GetStdin())
			switch {
			case received-taken > granted:
				return fault.New(fault.Invalid, "%d bytes are under way", received-taken)
			case m.GetStdin() != nil:
				if err := st.Send(&response{Frame: &sandboxhostv1.ExecResponse_Stdout{Stdout: m.GetStdin()}}); err != nil {
					return err
				}
			case m.GetSignal() == uint32(syscall.SIGTERM):
				signalled = true
			case m.GetStdinEnd() && received == size && signalled:
				return st.Send(exit(3))
			case m.GetStdinEnd():
				return fault.New(fault.Invalid, "the end comes after %d bytes, signalled: %t", received, signalled)
			}
			if received == granted && !signalled { // now nothing but the signal can come
				signals <- syscall.SIGTERM
			}
			if signalled {
				taken = received
				if err := st.Send(&response{Frame: &sandboxhostv1.ExecResponse_StdinTaken{StdinTaken: uint64(taken)}}); err != nil {
					return err
				}
			}
		}
	})
	if err != nil || got.Code != 3 || out.String() != text {
		t.Errorf("got %+v, %v and %d bytes back", got, err, out.Len())
	}
}

// Input that breaks off is no input that is at its end.
func TestRun_EXE2_InputThatBreaksOffIsAFailure(t *testing.T) {
	broken := errors.New("broken off")
	req := session.Request{
		Start: &sandboxhostv1.ExecStart{Stdin: true}, Stdin: io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)),
	}
	got, err := against(t, req, func(st stream) error {
		if err := st.Send(started()); err != nil {
			return err
		}
		for {
			m, err := st.Recv()
			if err != nil {
				return err
			}
			if m.GetStdinEnd() {
				return st.Send(exit(0))
			}
		}
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %+v, %v, want %v", got, err, broken)
	}
}
