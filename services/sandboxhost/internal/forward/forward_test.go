package forward_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/forward"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const uid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

// limit bounds every wait.
const limit = 20 * time.Second

// host has one sandbox.
type host struct {
	hub *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]
}

func (h host) States() *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState] { return h.hub }

func (h host) Get(uid id.Sandbox) (*sandboxhostv1.SandboxState, error) {
	state, ok := h.hub.Get(uid)
	if !ok {
		return nil, fault.New(fault.NotFound, "sandbox %s: not found", uid)
	}
	return state, nil
}

func box(attempt uint64, pid uint32) *sandboxhostv1.SandboxState {
	return &sandboxhostv1.SandboxState{
		Uid: uid, Name: "box", Status: &resourcev1.SandboxStatus{
			Attempt: attempt, Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING,
			Containers: []*resourcev1.ContainerStatus{{Name: "main", Pid: pid}},
		},
	}
}

// here connects on this machine.
type here struct{}

func (here) Dial(ctx context.Context, _ id.Sandbox, to netip.AddrPort) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", to.String())
}

// setup is a service, a client of it and a port that is listened at.
type setup struct {
	host   host
	client sandboxhostv1.ForwardServiceClient
	listen *net.TCPListener
	stop   context.CancelFunc // ends the service
}

func begin(t *testing.T) setup {
	t.Helper()
	h := host{watch.New[id.Sandbox, *sandboxhostv1.SandboxState]()}
	h.hub.Set(uid, box(3, 7))
	s := forward.New(h, here{}, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	over, ready := make(chan error, 1), make(chan struct{})
	go func() { over <- s.Run(ctx, func() { close(ready) }) }() // waited for in cleanup
	<-ready
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.StreamInterceptor(fault.StreamServer))
	s.Register(server)
	go func() { _ = server.Serve(l) }() // ends with Stop
	conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStreamInterceptor(fault.StreamClient),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = listen.Close(), conn.Close()
		stop()
		server.Stop()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v of Run", err)
		}
	})
	return setup{h, sandboxhostv1.NewForwardServiceClient(conn), listen.(*net.TCPListener), stop}
}

func (s setup) port() uint32 { return uint32(s.listen.Addr().(*net.TCPAddr).Port) }

// open begins a connection to a port.
func (s setup) open(t *testing.T, port uint32) grpc.BidiStreamingClient[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	st, err := s.client.Forward(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send(t, st, &sandboxhostv1.ForwardRequest{Frame: &sandboxhostv1.ForwardRequest_Start{Start: &sandboxhostv1.ForwardStart{Uid: uid, Port: port}}})
	return st
}

func send(t *testing.T, st grpc.BidiStreamingClient[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse], m *sandboxhostv1.ForwardRequest) {
	t.Helper()
	if err := st.Send(m); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

// connected is open with the other end.
func (s setup) connected(t *testing.T) (grpc.BidiStreamingClient[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse], *net.TCPConn) {
	t.Helper()
	st := s.open(t, s.port())
	if m, err := st.Recv(); err != nil || m.GetConnected().GetAttempt() != 3 {
		t.Fatalf("got %v, %v first", m, err)
	}
	conn, err := s.listen.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	return st, conn
}

func data(b []byte) *sandboxhostv1.ForwardRequest {
	return &sandboxhostv1.ForwardRequest{Frame: &sandboxhostv1.ForwardRequest_Data{Data: b}}
}

func end() *sandboxhostv1.ForwardRequest {
	return &sandboxhostv1.ForwardRequest{Frame: &sandboxhostv1.ForwardRequest_DataEnd{DataEnd: true}}
}

// rest reads what comes to the end of the stream; ended tells whether the data had one.
func rest(st grpc.BidiStreamingClient[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse]) (all []byte, ended bool, err error) {
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return all, ended, nil
		}
		if err != nil {
			return all, ended, err
		}
		all, ended = append(all, m.GetData()...), ended || m.GetDataEnd()
	}
}

// Each direction carries all, and ends by itself.
func TestForward_EachDirectionEndsByItself(t *testing.T) {
	s := begin(t)
	st, conn := s.connected(t)
	large := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	go func() { // ends with the stream
		for part := range slices.Chunk(large, 32<<10) {
			_ = st.Send(data(part))
		}
		_ = st.Send(end())
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, large) {
		t.Fatalf("got %d bytes, %v, want %d", len(got), err, len(large))
	}
	if _, err := conn.Write(large); err != nil { // the other direction goes on
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if back, ended, err := rest(st); err != nil || !ended || !bytes.Equal(back, large) {
		t.Errorf("got %d bytes, ended: %t, %v, want all of %d and a good end", len(back), ended, err, len(large))
	}
}

// A connection that breaks on one side breaks on the other, and is never one that ended.
func TestForward_ABrokenConnectionIsNoEnd(t *testing.T) {
	s := begin(t)
	st, conn := s.connected(t)
	if err := errors.Join(conn.SetLinger(0), conn.Close()); err != nil {
		t.Fatal(err)
	}
	if _, ended, err := rest(st); ended || fault.Reason(err) != "CONNECTION_BROKEN" {
		t.Errorf("reset inside: got ended: %t, %v", ended, err)
	}
	for name, leave := range map[string]func(setup, grpc.BidiStreamingClient[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse]){
		"half a stream": func(_ setup, st grpc.BidiStreamingClient[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse]) {
			_ = st.CloseSend()
		},
		"another start": func(s setup, st grpc.BidiStreamingClient[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse]) {
			_ = st.Send(&sandboxhostv1.ForwardRequest{Frame: &sandboxhostv1.ForwardRequest_Start{Start: &sandboxhostv1.ForwardStart{}}})
		},
		"its attempt ended": func(s setup, _ grpc.BidiStreamingClient[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse]) {
			s.host.hub.Set(uid, box(4, 8))
		},
		"its sandbox ended": func(s setup, _ grpc.BidiStreamingClient[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse]) {
			s.host.hub.Set(uid, box(3, 0))
		},
		"its sandbox is forgotten": func(s setup, _ grpc.BidiStreamingClient[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse]) {
			s.host.hub.Delete(uid, box(3, 7))
		},
		"the host stops": func(s setup, _ grpc.BidiStreamingClient[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse]) {
			s.stop()
		},
	} {
		s := begin(t)
		st, conn := s.connected(t)
		leave(s, st)
		if n, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: read %d bytes inside, %v, want a reset", name, n, err)
		}
		if _, ended, err := rest(st); ended || err == nil {
			t.Errorf("%s: got ended: %t, %v, want a failure", name, ended, err)
		}
	}
}

// Whoever does not read has the other side wait, and is not in the way of an end.
func TestForward_IsNotHeldUpByWhoDoesNotRead(t *testing.T) {
	s := begin(t)
	st, _ := s.connected(t)
	sent := make(chan struct{})
	go func() { // ends when the stream does
		defer close(sent)
		for st.Send(data(make([]byte, 32<<10))) == nil {
			continue
		}
	}()
	s.host.hub.Set(uid, box(4, 8))
	if _, _, err := rest(st); fault.Reason(err) != "SANDBOX_ENDED" {
		t.Errorf("got %v", err)
	}
	<-sent
}

func TestForward_SaysWhyNot(t *testing.T) {
	s := begin(t)
	port := s.port()
	if err := s.listen.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.open(t, port).Recv(); fault.Reason(err) != "CONNECTION_REFUSED" || !errors.Is(err, fault.Unavailable) {
		t.Errorf("nobody listens: got %v", err)
	}
	stopped := proto.CloneOf(box(3, 0))
	s.host.hub.Set(uid, stopped)
	if _, err := s.open(t, port).Recv(); fault.Reason(err) != "NOT_RUNNING" || !errors.Is(err, fault.Conflict) {
		t.Errorf("it does not run: got %v", err)
	}
	s.host.hub.Delete(uid, stopped)
	if _, err := s.open(t, port).Recv(); !errors.Is(err, fault.NotFound) {
		t.Errorf("it is not there: got %v", err)
	}
	st, err := s.client.Forward(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, st, end())
	if _, err := st.Recv(); !errors.Is(err, fault.Invalid) {
		t.Errorf("no start: got %v", err)
	}
}

// A program that listens at ::1 only is found too.
func TestForward_FindsTheOtherLoopback(t *testing.T) {
	s := begin(t)
	six, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = six.Close() }()
	if m, err := s.open(t, uint32(six.Addr().(*net.TCPAddr).Port)).Recv(); err != nil || m.GetConnected() == nil {
		t.Errorf("got %v, %v", m, err)
	}
}

// There are only so many at a time, and one that ended makes room.
func TestForward_IsBounded(t *testing.T) {
	s := begin(t)
	for range forward.MaxConnections - 1 {
		if _, err := s.open(t, s.port()).Recv(); err != nil {
			t.Fatal(err)
		}
	}
	last := s.open(t, s.port())
	if _, err := last.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.open(t, s.port()).Recv(); fault.Reason(err) != "TOO_MANY_CONNECTIONS" || !errors.Is(err, fault.Exhausted) {
		t.Errorf("one more: got %v", err)
	}
	send(t, last, &sandboxhostv1.ForwardRequest{Frame: &sandboxhostv1.ForwardRequest_Start{Start: &sandboxhostv1.ForwardStart{}}})
	if _, _, err := rest(last); err == nil {
		t.Error("the last one has not ended")
	}
	if _, err := s.open(t, s.port()).Recv(); err != nil {
		t.Errorf("after the end of one: got %v", err)
	}
}
