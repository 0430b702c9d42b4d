package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/run"
)

const testService = "staddle.kittest.v1.TestService"

func full(method string) string { return "/" + testService + "/" + method }

// contract is what the test service's proto file would say.
var contract = []struct {
	name          string
	level         descriptorpb.MethodOptions_IdempotencyLevel
	stream        bool
	rule          bool
	local, remote []optionsv1.Role
}{
	{name: "Read", level: descriptorpb.MethodOptions_NO_SIDE_EFFECTS, rule: true, local: roles(operator, storage), remote: roles(operator)},
	{name: "Ensure", level: descriptorpb.MethodOptions_IDEMPOTENT, rule: true, local: roles(operator)},
	{name: "Change", rule: true, local: roles(operator)},
	{name: "AgentOnly", rule: true, local: roles(agent)},
	{name: "RemoteOnly", rule: true, remote: roles(optionsv1.Role_ROLE_NODE)},
	{name: "Join", rule: true, remote: roles(operator)},
	{name: "NoRule"},
	{name: "Follow", level: descriptorpb.MethodOptions_NO_SIDE_EFFECTS, stream: true, rule: true, local: roles(operator)},
	{name: "Talk", stream: true, rule: true, local: roles(operator)},
}

const (
	operator = optionsv1.Role_ROLE_OPERATOR
	storage  = optionsv1.Role_ROLE_STORAGE
	agent    = optionsv1.Role_ROLE_SANDBOX_AGENT
)

func roles(r ...optionsv1.Role) []optionsv1.Role { return r }

func init() {
	svc := &descriptorpb.ServiceDescriptorProto{Name: proto.String("TestService")}
	for _, c := range contract {
		opts := &descriptorpb.MethodOptions{IdempotencyLevel: c.level.Enum()}
		if c.rule {
			proto.SetExtension(opts, optionsv1.E_Access, &optionsv1.AccessRule{Local: c.local, Remote: c.remote})
		}
		svc.Method = append(svc.Method, &descriptorpb.MethodDescriptorProto{
			Name: proto.String(c.name), Options: opts,
			InputType: proto.String(".google.protobuf.StringValue"), OutputType: proto.String(".google.protobuf.StringValue"),
			ServerStreaming: proto.Bool(c.stream), ClientStreaming: proto.Bool(c.stream),
		})
	}
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String("staddle/kittest/v1/test.proto"), Package: proto.String("staddle.kittest.v1"), Syntax: proto.String("proto3"),
		Dependency: []string{"google/protobuf/wrappers.proto", "staddle/options/v1/options.proto"},
		Service:    []*descriptorpb.ServiceDescriptorProto{svc},
	}
	fd, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err == nil {
		err = protoregistry.GlobalFiles.RegisterFile(fd)
	}
	if err != nil {
		panic(err)
	}
}

// behaviour is what the test service does; nil answers with the request.
type behaviour struct {
	unary  func(ctx context.Context, method, in string) (string, error)
	stream func(method string, ss grpc.ServerStream) error
}

func (b behaviour) desc() *grpc.ServiceDesc {
	d := &grpc.ServiceDesc{ServiceName: testService, HandlerType: (*any)(nil)}
	for _, c := range contract {
		if c.stream {
			d.Streams = append(d.Streams, grpc.StreamDesc{
				StreamName: c.name, ServerStreams: true, ClientStreams: true,
				Handler: func(_ any, ss grpc.ServerStream) error { return b.stream(c.name, ss) },
			})
			continue
		}
		d.Methods = append(d.Methods, grpc.MethodDesc{MethodName: c.name, Handler: b.handler(c.name)})
	}
	return d
}

func (b behaviour) handler(name string) grpc.MethodHandler {
	return func(_ any, ctx context.Context, dec func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.StringValue)
		if err := dec(in); err != nil {
			return nil, err
		}
		handle := func(ctx context.Context, req any) (any, error) {
			text := req.(*wrapperspb.StringValue).GetValue()
			if b.unary == nil {
				return wrapperspb.String(text), nil
			}
			out, err := b.unary(ctx, name, text)
			return wrapperspb.String(out), err
		}
		if intercept == nil {
			return handle(ctx, in)
		}
		return intercept(ctx, in, &grpc.UnaryServerInfo{FullMethod: full(name)}, handle)
	}
}

func call(ctx context.Context, conn grpc.ClientConnInterface, method, in string, opts ...grpc.CallOption) (string, error) {
	out := new(wrapperspb.StringValue)
	err := conn.Invoke(ctx, full(method), wrapperspb.String(in), out, opts...)
	return out.GetValue(), err
}

func open(ctx context.Context, conn grpc.ClientConnInterface, method string) (grpc.ClientStream, error) {
	ss, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full(method))
	if err != nil {
		return nil, err
	}
	if err := ss.SendMsg(wrapperspb.String("hello")); !errors.Is(err, io.EOF) { // the end says why when it is read
		return ss, err
	}
	return ss, nil
}

// logBuffer is a log that a test can read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// shortDir is a folder whose name leaves room for a socket, that every user may
// enter.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// node is one running server.
type node struct {
	*Server
	path string
	stop func() error
}

type setup struct {
	path  string
	users config.Users
	do    behaviour
	cold  bool // not ready
	with  func(*ServerConfig)
	after func(*Server)
}

func (s setup) start(t testing.TB) *node {
	t.Helper()
	if s.path == "" {
		s.path = filepath.Join(shortDir(t), "s.sock")
	}
	cfg := ServerConfig{Process: "storage", Version: "test", Log: slog.New(slog.DiscardHandler), Peers: NewPeers(s.users)}
	if s.with != nil {
		s.with(&cfg)
	}
	server, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if s.after != nil {
		s.after(server)
	}
	server.GRPC().RegisterService(s.do.desc(), nil)
	if !s.cold {
		server.Status().SetReady()
	}
	l, err := Listen(s.path, DefaultSocketMode)
	if err != nil {
		t.Fatal(err)
	}
	return &node{Server: server, path: s.path, stop: background(t, server.Member(l))}
}

// background runs a member until stop or the end of the test.
func background(t testing.TB, m run.Member) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan struct{})
	var err error
	go func() { // owned by stop
		defer close(done)
		err = m.Run(ctx, sync.OnceFunc(func() { close(ready) }))
	}()
	if m.Name == "api" {
		<-ready
	}
	stop = func() error { cancel(); <-done; return err }
	t.Cleanup(func() { stop() })
	return stop
}

func dial(t testing.TB, path string, cfg DialConfig) *grpc.ClientConn {
	t.Helper()
	conn, err := Dial(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// eventually waits for a condition and prints the last value it saw.
func eventually(t testing.TB, what string, check func() (value any, ok bool)) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		value, ok := check()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20s; last value: %v", what, value)
		}
		<-tick.C
	}
}

func wantKind(t testing.TB, err error, kind fault.Kind) {
	t.Helper()
	if err == nil || fault.KindOf(err) != kind {
		t.Fatalf("error %v has kind %v, want %v", err, fault.KindOf(err), kind)
	}
}

func wantText(t testing.TB, err error, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Fatalf("error %v does not say %q", err, p)
		}
	}
}

// TestMain lets the test binary play other processes.
func TestMain(m *testing.M) {
	if role := os.Getenv("KIT_TEST_ROLE"); role != "" {
		os.Exit(child(role))
	}
	os.Exit(m.Run())
}

func child(role string) int {
	f, ok := map[string]func() error{
		"call-all": childCallAll, "serve": childServe, "listen": childListen, "call": childCall,
	}[role]
	if !ok {
		fmt.Fprintln(os.Stderr, "no role", role)
		return 1
	}
	if err := f(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// reachableExe is the test binary at a place where every user may start it.
func reachableExe(t testing.TB) string {
	t.Helper()
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	path := filepath.Join(shortDir(t), "exe")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if closeErr := to.Close(); err != nil || closeErr != nil {
		t.Fatal(err, closeErr)
	}
	return path
}

// childListen serves nothing but holds the socket until it is killed.
func childListen() error {
	l, err := Listen(os.Getenv("KIT_TEST_SOCKET"), DefaultSocketMode)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		defer conn.Close()
	}
}

// childServe serves on a passed socket and notes each call in a file. A call with
// the text "hang once" hangs in the first process that gets it.
func childServe() error {
	f := os.NewFile(3, "socket")
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	server, err := NewServer(ServerConfig{Process: "storage", Log: slog.New(slog.DiscardHandler), Peers: NewPeers(config.Users{})})
	if err != nil {
		return err
	}
	notes := os.Getenv("KIT_TEST_NOTES")
	do := behaviour{unary: func(ctx context.Context, method, in string) (string, error) {
		before, err := os.ReadFile(notes)
		if err != nil && !os.IsNotExist(err) {
			return "", err
		}
		out, err := os.OpenFile(notes, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return "", err
		}
		defer out.Close()
		if in == "hang once" {
			if _, err := out.WriteString(method + "\n"); err != nil {
				return "", err
			}
			if !strings.Contains(string(before), method+"\n") {
				<-ctx.Done()
				return "", ctx.Err()
			}
		}
		return fmt.Sprint(os.Getpid()), nil
	}}
	server.GRPC().RegisterService(do.desc(), nil)
	server.Status().SetReady()
	ctx, stop := run.Signal(context.Background())
	defer stop()
	return server.Member(l).Run(ctx, func() {})
}
