package forward_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/forward"
)

// limit bounds every wait.
const limit = 20 * time.Second

type stream = grpc.BidiStreamingServer[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse]

// node answers each connection by a script.
type node struct {
	sandboxhostv1.UnimplementedForwardServiceServer
	script func(*sandboxhostv1.ForwardStart, stream) error
}

func (n node) Forward(st stream) error {
	m, err := st.Recv()
	if err != nil {
		return err
	}
	return n.script(m.GetStart(), st)
}

// running is a forward that was begun.
type running struct {
	t         *testing.T
	at        string // its listener
	interrupt context.CancelCauseFunc
	result    chan error
	failed    chan string // each failure that was told of
}

func begin(t *testing.T, script func(*sandboxhostv1.ForwardStart, stream) error) *running {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.StreamInterceptor(fault.StreamServer))
	sandboxhostv1.RegisterForwardServiceServer(server, node{script: script})
	go func() { _ = server.Serve(l) }() // ends with Stop
	conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStreamInterceptor(fault.StreamClient),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background()) // ends in cleanup
	r := &running{t: t, interrupt: cancel, result: make(chan error, 1), failed: make(chan string, 64)}
	listening := make(chan string, 1)
	go func() { // waited for in cleanup
		r.result <- forward.Run(ctx, sandboxhostv1.NewForwardServiceClient(conn), forward.Request{
			UID: "uid", Ports: []forward.Port{{Remote: 80}}, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
			Listening: func(from net.Addr, _ uint16) { listening <- from.String() },
			Failed:    func(_ net.Addr, _ uint16, err error) { r.failed <- err.Error() },
		})
	}()
	r.at = <-listening
	t.Cleanup(func() {
		cancel(errOver)
		if err := <-r.result; !errors.Is(err, errOver) {
			t.Errorf("got %v of Run", err)
		}
		_ = conn.Close()
		server.Stop()
	})
	return r
}

var errOver = errors.New("the test is over")

// dial connects as a program of this machine does.
func (r *running) dial() *net.TCPConn {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.at)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		r.t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// broken wants a connection to end with a reset, after what it reads.
func (r *running) broken(what string, conn *net.TCPConn, read string) {
	r.t.Helper()
	got, err := io.ReadAll(conn)
	if string(got) != read || err == nil || errors.Is(err, context.DeadlineExceeded) {
		r.t.Errorf("%s: read %q and %v, want %q and a reset", what, got, err, read)
	}
}

// toldOfNothing wants no failure to be told of.
func (r *running) toldOfNothing() {
	r.t.Helper()
	select {
	case what := <-r.failed:
		r.t.Errorf("told of %q", what)
	default:
	}
}

func connected() *sandboxhostv1.ForwardResponse {
	return &sandboxhostv1.ForwardResponse{Frame: &sandboxhostv1.ForwardResponse_Connected{Connected: &sandboxhostv1.ForwardConnected{}}}
}

func data(b []byte) *sandboxhostv1.ForwardResponse {
	return &sandboxhostv1.ForwardResponse{Frame: &sandboxhostv1.ForwardResponse_Data{Data: b}}
}

func end() *sandboxhostv1.ForwardResponse {
	return &sandboxhostv1.ForwardResponse{Frame: &sandboxhostv1.ForwardResponse_DataEnd{DataEnd: true}}
}

// All arrives, in messages of the size that the contract grants, and each direction ends by itself.
func TestRun_EachDirectionEndsByItself(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	r := begin(t, func(start *sandboxhostv1.ForwardStart, st stream) error {
		if start.GetUid() != "uid" || start.GetPort() != 80 {
			return fault.New(fault.Invalid, "got %v", start)
		}
		if err := st.Send(connected()); err != nil {
			return err
		}
		var all []byte
		for {
			m, err := st.Recv()
			if err != nil {
				return err
			}
			if len(m.GetData()) > 32<<10 {
				return fault.New(fault.Invalid, "a message has %d bytes", len(m.GetData()))
			}
			all = append(all, m.GetData()...)
			if m.GetDataEnd() {
				break
			}
		}
		for part := range slices.Chunk(all, 32<<10) {
			if err := st.Send(data(part)); err != nil {
				return err
			}
		}
		return st.Send(end())
	})
	var all sync.WaitGroup
	for range 4 { // at once
		all.Go(func() {
			conn := r.dial()
			if _, err := conn.Write(large); err != nil {
				t.Error(err)
			}
			if err := conn.CloseWrite(); err != nil {
				t.Error(err)
			}
			if back, err := io.ReadAll(conn); err != nil || !bytes.Equal(back, large) {
				t.Errorf("got %d bytes and %v, want %d", len(back), err, len(large))
			}
		})
	}
	all.Wait()
	r.toldOfNothing()
}

// A stream that breaks, or ends before its data did, is a reset here and one line; the next connection is
// served all the same. (EXE-4)
func TestRun_EXE4_ABrokenStreamIsNoEnd(t *testing.T) {
	scripts := make(chan func(stream) error, 1)
	r := begin(t, func(_ *sandboxhostv1.ForwardStart, st stream) error { return (<-scripts)(st) })
	refused := fault.WithReason(fault.New(fault.Unavailable, "nobody listens at port 80"), "CONNECTION_REFUSED")
	for _, c := range []struct {
		name   string
		script func(stream) error
		read   string
	}{
		{"refused", func(stream) error { return refused }, ""},
		{"ended before it began", func(stream) error { return nil }, ""},
		{"something else first", func(st stream) error { return st.Send(data([]byte("x"))) }, ""},
		{"cut", func(st stream) error { return errors.Join(st.Send(connected()), refused) }, ""},
		{"no end", func(st stream) error { return st.Send(connected()) }, ""},
		{"an end, and then cut", func(st stream) error { return errors.Join(st.Send(connected()), st.Send(end()), refused) }, ""},
	} {
		conn := r.dial()
		scripts <- c.script // only now: a reset that comes while it connects would be a failure to connect
		if _, err := io.ReadAll(conn); err == nil && !strings.HasPrefix(c.name, "an end") {
			t.Errorf("%s: the connection ended well, want a reset", c.name)
		}
		_ = conn.Close()
		select {
		case <-r.failed:
		case <-time.After(limit):
			t.Fatalf("%s: told of nothing", c.name)
		}
	}
	scripts <- func(st stream) error {
		if err := errors.Join(st.Send(connected()), st.Send(data([]byte("well"))), st.Send(end())); err != nil {
			return err
		}
		for {
			if m, err := st.Recv(); err != nil || m.GetDataEnd() {
				return err
			}
		}
	}
	conn := r.dial()
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "well" {
		t.Errorf("afterwards: got %q and %v", got, err)
	}
}

// A host that is away for a moment is waited for, by who has sent nothing yet.
func TestRun_WaitsForAHostThatIsAway(t *testing.T) {
	tries := make(chan struct{}, 64)
	r := begin(t, func(_ *sandboxhostv1.ForwardStart, st stream) error {
		if tries <- struct{}{}; len(tries) < 3 {
			return fault.New(fault.Unavailable, "not ready")
		}
		return errors.Join(st.Send(connected()), st.Send(end()))
	})
	conn := r.dial()
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("got %d bytes and %v after %d tries", n, err, len(tries))
	}
	if len(tries) != 3 {
		t.Errorf("asked %d times, want 3", len(tries))
	}
}

// The end of the program on this machine ends the stream, and is not told of.
func TestRun_TheNearEndIsNoFailure(t *testing.T) {
	gone := make(chan error, 1)
	r := begin(t, func(_ *sandboxhostv1.ForwardStart, st stream) error {
		err := st.Send(connected())
		for err == nil {
			_, err = st.Recv()
		}
		gone <- err
		return err
	})
	conn := r.dial()
	if _, err := conn.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(conn.SetLinger(0), conn.Close()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-gone:
		if errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the stream to be broken off", err)
		}
	case <-time.After(limit):
		t.Fatal("the stream goes on")
	}
	r.toldOfNothing()
}

// All end when the forward does.
func TestRun_EndsWithItsConnections(t *testing.T) {
	r := begin(t, func(_ *sandboxhostv1.ForwardStart, st stream) error {
		err := st.Send(connected())
		for err == nil {
			_, err = st.Recv()
		}
		return err
	})
	conn := r.dial()
	r.interrupt(errOver)
	r.broken("forward ended", conn, "")
	if err := <-r.result; !errors.Is(err, errOver) {
		t.Errorf("got %v", err)
	}
	r.result <- errOver // for the cleanup
}

// A sandbox that was removed ends the forward; a port that is taken begins none.
func TestRun_SaysWhyNot(t *testing.T) {
	connection := make(chan struct{})
	r := begin(t, func(*sandboxhostv1.ForwardStart, stream) error {
		<-connection // a reset that comes while it connects would be a failure to connect
		return fault.New(fault.NotFound, "it is gone")
	})
	conn := r.dial()
	close(connection)
	r.broken("removed", conn, "")
	if err := <-r.result; !errors.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
	r.result <- errOver // for the cleanup
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	port := uint16(taken.Addr().(*net.TCPAddr).Port)
	err = forward.Run(t.Context(), nil, forward.Request{
		Ports: []forward.Port{{Remote: 1}, {Local: port, Remote: 2}}, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
	})
	if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a port that is taken: got %v", err)
	}
}
