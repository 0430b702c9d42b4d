package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"

	"staddle.internal/kit/rpc"

	"staddle.internal/services/clusteraccess/internal/coordinatortest"
	"staddle.internal/services/clusteraccess/internal/credentials"
	"staddle.internal/services/clusteraccess/internal/refusal"
)

const (
	domain   = "staddle.test"
	alice    = "spiffe://staddle.test/user/alice"
	echo     = "/test.Echo/Say"    // a unary method of "target"
	flow     = "/test.Echo/Flow"   // one that answers with a stream
	anywhere = "/test.Common/Look" // of a service that every process has
)

// plain is a codec of bytes: what a test sends is what is on the wire.
type plain struct{}

func (plain) Name() string { return "proto" }

func (plain) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(bytes.Clone(*v.(*[]byte)))}, nil
}

func (plain) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// process is a process behind the gateway, whose every method is do.
type process struct {
	t      *testing.T
	do     func(method string, ss grpc.ServerStream) error
	server *grpc.Server

	mu  sync.Mutex
	lis *bufconn.Listener // nil while it is away
}

func (p *process) start() {
	lis := bufconn.Listen(256 << 10)
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(plain{}), grpc.MaxRecvMsgSize(rpc.MaxMessageSize),
		grpc.UnknownServiceHandler(func(_ any, ss grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(ss)
			return p.do(method, ss)
		}))
	p.mu.Lock()
	p.lis = lis
	p.mu.Unlock()
	server := p.server
	go func() { _ = server.Serve(lis) }() // ends with Stop
}

// die ends it without a word.
func (p *process) die() {
	p.mu.Lock()
	p.lis = nil
	p.mu.Unlock()
	p.server.Stop()
}

func (p *process) dial(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	lis := p.lis
	p.mu.Unlock()
	if lis == nil {
		return nil, errors.New("dial unix /run/target.sock: connect: connection refused")
	}
	return lis.DialContext(ctx)
}

// rig is a gateway with two processes behind it, in memory.
type rig struct {
	t         *testing.T
	authority *coordinatortest.Authority
	lis       *bufconn.Listener
	log       *lines
	refused   *refusal.List
	target    *process
	other     *process
	stop      func()
}

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// testRoutes are what the gateway of a rig passes on.
func testRoutes() routes {
	return routes{
		processes: []string{"target", self},
		services: []service{
			{desc: &grpc.ServiceDesc{
				ServiceName: "test.Echo", Methods: []grpc.MethodDesc{{MethodName: "Say"}},
				Streams: []grpc.StreamDesc{{StreamName: "Flow", ServerStreams: true}, {StreamName: "Collect", ClientStreams: true}},
			}, process: "target"},
			{desc: &grpc.ServiceDesc{ServiceName: "test.Common", Methods: []grpc.MethodDesc{{MethodName: "Look"}}}},
		},
	}
}

func newRig(t *testing.T, do func(method string, ss grpc.ServerStream) error) *rig {
	t.Helper()
	return newRigWith(t, maxCalls, do)
}

func newRigWith(t *testing.T, mostCalls int, do func(method string, ss grpc.ServerStream) error) *rig {
	t.Helper()
	authority, err := coordinatortest.NewAuthority()
	must(t, err)
	dir := t.TempDir()
	must(t, authority.WriteNode(dir, "spiffe://staddle.test/node/node1"))
	r := &rig{
		t: t, authority: authority, lis: bufconn.Listen(256 << 10), log: &lines{},
		target: &process{t: t, do: do}, other: &process{t: t, do: do},
		refused: refusal.Open(refusal.Config{Path: filepath.Join(dir, "refused")}, slog.New(slog.DiscardHandler)),
	}
	r.target.start()
	r.other.start()
	g := newGateway(Config{}, Deps{
		Files: credentials.Files{
			CA: filepath.Join(dir, "ca.crt"), Certificate: filepath.Join(dir, "node.crt"), Key: filepath.Join(dir, "node.key"),
		},
		Listener: r.lis, Dial: r.dial, Refusals: r.refused, Serving: func(bool) {},
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}, testRoutes(), mostCalls)
	r.run(g)
	return r
}

// run runs a gateway until stop, at the latest at the end of the test.
func (r *rig) run(g *Gateway) {
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- g.Run(ctx, sync.OnceFunc(func() { close(ready) })) }()
	<-ready
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			r.t.Errorf("the gateway ended with %v, want the end of its context", err)
		}
	})
	r.t.Cleanup(func() {
		r.stop()
		r.target.server.Stop()
		r.other.server.Stop()
	})
}

func (r *rig) dial(name string) (*grpc.ClientConn, error) {
	p := r.target
	if name == self {
		p = r.other
	}
	return rpc.Dial("/run/"+name+".sock", rpc.DialConfig{
		Process: self, FailFast: true, Verbatim: true, Options: []grpc.DialOption{
			CallOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.dial(ctx) }),
		},
	})
}

// as connects to the gateway with an identity of its cluster.
func (r *rig) as(identity string) *grpc.ClientConn {
	r.t.Helper()
	cert, err := r.authority.Issue(identity)
	must(r.t, err)
	return r.with(cert)
}

// with connects with a certificate, or without any.
func (r *rig) with(certs ...tls.Certificate) *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///gateway",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(grpccredentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: certs, InsecureSkipVerify: true,
			VerifyConnection: func(s tls.ConnectionState) error {
				if got := s.PeerCertificates[0].URIs[0].String(); got != "spiffe://staddle.test/node/node1" {
					return fmt.Errorf("the gateway shows itself as %s", got)
				}
				return nil
			},
		})),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(plain{}), grpc.MaxCallRecvMsgSize(2*rpc.MaxMessageSize)))
	must(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() }) // some tests have closed it
	return conn
}

// straight connects to the target without a gateway between.
func (r *rig) straight() *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///target", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.target.dial(ctx) }),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(plain{})))
	must(r.t, err)
	r.t.Cleanup(func() { must(r.t, conn.Close()) })
	return conn
}

// say makes a unary call.
func say(ctx context.Context, conn *grpc.ClientConn, method, text string, opts ...grpc.CallOption) (string, error) {
	in, out := []byte(text), []byte{}
	err := conn.Invoke(ctx, method, &in, &out, opts...)
	return string(out), err
}

// open begins a stream in both directions.
func open(t *testing.T, ctx context.Context, conn *grpc.ClientConn, method string) grpc.ClientStream {
	t.Helper()
	ss, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	must(t, err)
	return ss
}

func send(t *testing.T, s interface{ SendMsg(any) error }, text string) {
	t.Helper()
	data := []byte(text)
	must(t, s.SendMsg(&data))
}

func receive(s interface{ RecvMsg(any) error }) (string, error) {
	var data []byte
	err := s.RecvMsg(&data)
	return string(data), err
}

// echoes answers each message with itself.
func echoes(_ string, ss grpc.ServerStream) error {
	for {
		var data []byte
		if err := ss.RecvMsg(&data); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := ss.SendMsg(&data); err != nil {
			return err
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hour is longer than anything that a test waits for.
const hour = time.Hour
