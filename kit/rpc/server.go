// Package rpc owns how processes of Staddle talk: their sockets, their servers,
// their clients, who may call what, and how a process says whether it is ready.
//
// A server turns the kernel's word about its peer, or a verified certificate,
// into a role, and admits a call only where the access rule of the method in the
// contract names that role. A client repeats only what the contract calls
// repeatable. It must never know a domain, never trust metadata from anybody but
// clusteraccess, and never let the environment redirect a local call. In the
// trail every arrow between two processes passes here.
package rpc

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"

	"staddle.internal/kit/logging"
	"staddle.internal/kit/run"
	"staddle.internal/kit/telemetry"
)

// Limits of every server and client.
const (
	// MaxMessageSize bounds a message in either direction.
	MaxMessageSize = 4 << 20

	maxStreams       = 1024 // per connection
	maxHeaderSize    = 64 << 10
	handshakeTimeout = 10 * time.Second
	drainTimeout     = 3 * time.Second // for calls in flight when stopping
)

// The windows of a local connection. Without fixed ones gRPC looks for the size that a
// link needs by a ping with each message that comes, and its answer: on one machine
// there is no distance to find out, and the pings are most of what a small call costs.
// A stream holds back its sender when so much is unread.
const (
	localStreamWindow = 512 << 10
	localWindow       = 1 << 20 // of all streams of a connection together
)

// keepalivePolicy is what a server allows and a client does. The client must
// stay slower than the server allows, or idle connections are cut.
type keepalivePolicy struct {
	clientTime, clientTimeout time.Duration
	serverMinTime             time.Duration
}

var keepaliveDefault = keepalivePolicy{
	clientTime: 30 * time.Second, clientTimeout: 10 * time.Second,
	serverMinTime: 10 * time.Second,
}

// keepaliveForeign is for servers of others, which by default allow a sign of life
// every five minutes.
var keepaliveForeign = keepalivePolicy{
	clientTime: 6 * time.Minute, clientTimeout: 10 * time.Second,
	serverMinTime: 5 * time.Minute,
}

func (k keepalivePolicy) server() grpc.ServerOption {
	return grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: k.serverMinTime, PermitWithoutStream: true})
}

func (k keepalivePolicy) client() grpc.DialOption {
	return grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: k.clientTime, Timeout: k.clientTimeout})
}

// Interceptor is a pair of interceptors that do one thing.
type Interceptor struct {
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
}

// ServerConfig says what a server is.
type ServerConfig struct {
	// Process and Version are what GetStatus answers.
	Process, Version string
	// Log gets one line per call.
	Log *slog.Logger
	// Level is what SetLogLevel changes. Nil means that it cannot be changed.
	Level *logging.Level
	// Peers turns local peers into roles.
	Peers *Peers
	// TLS is for listeners other than unix sockets. Nil refuses their
	// connections. A certificate that was not verified gives no role.
	TLS *tls.Config
	// Status is shared with another server of the same process. Nil makes one.
	Status *Status
	// AnonymousRemote lists the full methods that a remote caller without
	// certificate may call, such as the one to join.
	AnonymousRemote []string
	// AlwaysServed lists the services that answer before the process is ready.
	// GetStatus, health and reflection always do.
	AlwaysServed []string
	// Options are further options, such as a handler of unknown services.
	Options []grpc.ServerOption
}

// Server is a gRPC server with the interceptors of every process.
type Server struct {
	cfg          ServerConfig
	grpc         *grpc.Server
	status       *Status
	methods      map[string]method
	alwaysServed map[string]bool
	extra        []Interceptor // the first is the outermost
	build        func() *grpc.Server
	guardPeriod  time.Duration
	stop         context.CancelFunc
	stopped      context.Context //nolint:containedctx // the end of all streams, not a request's
}

// NewServer makes a server that serves nothing yet. It fails if a contract linked
// into this binary is wrong.
func NewServer(cfg ServerConfig) (*Server, error) {
	creds := &handshaker{peers: cfg.Peers}
	if cfg.TLS != nil {
		creds.tls = credentials.NewTLS(cfg.TLS)
	}
	return newServer(cfg, creds, keepaliveDefault)
}

func newServer(cfg ServerConfig, creds credentials.TransportCredentials, ka keepalivePolicy) (*Server, error) {
	methods, err := contracts()
	if err != nil {
		return nil, err
	}
	if cfg.Status == nil {
		cfg.Status = NewStatus(cfg.Process, cfg.Version)
	}
	s := &Server{
		cfg: cfg, status: cfg.Status, methods: methods, guardPeriod: guardPeriod,
		alwaysServed: map[string]bool{processv1.ProcessService_ServiceDesc.ServiceName: true},
	}
	s.AlwaysServe(cfg.AlwaysServed...)
	s.stopped, s.stop = context.WithCancel(context.Background())
	s.build = func() *grpc.Server { return grpc.NewServer(s.options(creds, ka)...) }
	return s, nil
}

func (s *Server) options(creds credentials.TransportCredentials, ka keepalivePolicy) []grpc.ServerOption {
	opts := []grpc.ServerOption{
		grpc.Creds(creds),
		ka.server(),
		grpc.MaxRecvMsgSize(MaxMessageSize),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaderSize),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.ChainUnaryInterceptor(s.unary()...),
		grpc.ChainStreamInterceptor(s.stream()...),
	}
	if s.cfg.TLS == nil {
		opts = append(opts, grpc.StaticStreamWindowSize(localStreamWindow), grpc.StaticConnWindowSize(localWindow))
	}
	if telemetry.Enabled() {
		opts = append(opts, grpc.StatsHandler(otelgrpc.NewServerHandler()))
	}
	return append(opts, s.cfg.Options...)
}

// GRPC is where services are registered, before the member runs. The first call
// makes it, with the interceptors added until then.
func (s *Server) GRPC() *grpc.Server {
	if s.grpc == nil {
		s.grpc = s.build()
		healthv1.RegisterHealthServer(s.grpc, s.status.health)
		processv1.RegisterProcessServiceServer(s.grpc, &processServer{Status: s.status, level: s.cfg.Level})
		reflection.RegisterV1(s.grpc)
	}
	return s.grpc
}

// Status is the state that health and GetStatus tell.
func (s *Server) Status() *Status { return s.status }

// Use adds an interceptor behind access, in the order of the calls. Validation is
// added this way. It panics after the first call of GRPC, when it would come too
// late to be asked.
func (s *Server) Use(i Interceptor) {
	if s.grpc != nil {
		panic("rpc: Use after GRPC")
	}
	s.extra = append(s.extra, i)
}

// AlwaysServe exempts services from the refusal before the process is ready, by
// full name, before the member runs.
func (s *Server) AlwaysServe(services ...string) {
	for _, name := range services {
		s.alwaysServed[name] = true
	}
}

// Member serves on the listeners until it is stopped. It is ready when they are
// served, which is before the process is: health and GetStatus say why. When it
// stops, open streams end with Unavailable at once, and calls in flight have
// three seconds.
func (s *Server) Member(listeners ...net.Listener) run.Member {
	return run.Member{Name: "api", StopTimeout: drainTimeout + 2*time.Second, Run: func(ctx context.Context, ready func()) error {
		return s.serve(ctx, ready, listeners)
	}}
}

func (s *Server) serve(ctx context.Context, ready func(), listeners []net.Listener) error {
	var names []string
	for name := range s.GRPC().GetServiceInfo() {
		names = append(names, name)
	}
	s.status.follow(names)

	serving := &servers{grpc: s.grpc, errs: make(chan error, 1)}
	for _, l := range listeners {
		serving.add(l)
	}
	ready()
	err := s.guard(ctx, serving, listeners)
	s.status.Stopping()
	s.stop()
	s.drain()
	serving.wait()
	return err
}

// drain lets calls in flight finish, within its limit.
func (s *Server) drain() {
	done := make(chan struct{})
	go func() { // owned by drain: Stop makes it end
		defer close(done)
		s.grpc.GracefulStop()
	}()
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		s.cfg.Log.Warn("calls cut off", logging.Duration(drainTimeout))
		s.grpc.Stop()
		<-done
	}
}
