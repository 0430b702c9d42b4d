// Package gateway owns the node's one door for other machines: it takes calls over
// mutual TLS and passes them on to the sockets of the node's processes.
//
// A call goes to the process that serves its service, if the service is on the
// allow-list. Messages, headers, trailers, statuses, deadlines, cancellation and
// back-pressure pass through as they are; messages are never looked into. The
// identity that the caller's certificate proves is passed on, and the process
// decides by it what the caller may do. Metadata of our own is never taken from
// outside.
//
// It must never let in anybody without a certificate of this cluster, nor decide for
// a process, nor hold up this one: a port that is taken is tried again. In the trail
// it is how an operator or a coordinator reaches one node.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/listening"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/telemetry"

	"staddle.internal/services/clusteraccess/internal/credentials"
)

// Bounds of what comes from other machines. A message may be as large as on a socket
// of the node.
const (
	maxCalls       = 256      // open at a time, per caller and per connection
	maxHeaders     = 16 << 10 // bytes of all metadata of a call
	maxConnections = 512
	maxHandshakes  = 64 // at a time: strangers get no further
	handshakeLimit = 5 * time.Second
	idleLimit      = 5 * time.Minute  // of a connection without calls
	pingAfter      = 15 * time.Second // so that who is cut off is noticed within 25 s
	pingTimeout    = 10 * time.Second
	minPing        = 10 * time.Second // from callers
	drainLimit     = 2 * time.Second  // for calls in flight when stopping
)

// StopTimeout is how long Run may take to return after its context is done.
const StopTimeout = drainLimit + 3*time.Second

var listenAgain = backoff.Policy{Initial: 500 * time.Millisecond, Cap: 10 * time.Second}

// Config says where the gateway is.
type Config struct {
	// Address is host:port to listen on. It is not looked at where a listener was
	// passed.
	Address string
}

// Deps is what the gateway needs.
type Deps struct {
	// Files are the node's credentials.
	Files credentials.Files
	// Listener was passed by whoever supervises. Nil means that the gateway makes its
	// own.
	Listener net.Listener
	// Keep is given a listener that the gateway made itself, so that a copy of it can
	// be left to whoever supervises for the next process. Nil means that none is.
	Keep func(net.Listener)
	// Dial returns a new connection to the socket of a process, on which statuses are
	// left as they are. It does not wait.
	Dial func(process string) (*grpc.ClientConn, error)
	// Refusals says who is let in no more, and ends the calls of who is not; a
	// *refusal.List.
	Refusals refusals
	// Serving is told whether calls are taken.
	Serving func(bool)
	// Log gets the line of each call.
	Log *slog.Logger
}

// refusals is what the gateway needs of the list of refused identities.
type refusals interface {
	Enter(identity string, end func()) (leave func(), err error)
}

// Gateway passes calls on.
type Gateway struct {
	cfg    Config
	deps   Deps
	routes routes
	limit  limit
	conns  map[string]*grpc.ClientConn // by process; written before calls are taken
	pumps  sync.WaitGroup              // of calls whose answer is complete already, too

	stopping, cutoff context.Context //nolint:containedctx // the ends of all calls, not a request's
	stop, cut        context.CancelFunc
}

// New returns a gateway that listens nowhere until Run.
func New(cfg Config, deps Deps) *Gateway {
	return newGateway(cfg, deps, routes{services: allowed(), processes: processes()}, maxCalls)
}

func newGateway(cfg Config, deps Deps, routes routes, mostCalls int) *Gateway {
	g := &Gateway{
		cfg: cfg, deps: deps, routes: routes, limit: limit{most: mostCalls, open: map[string]int{}},
		conns: map[string]*grpc.ClientConn{},
	}
	g.stopping, g.stop = context.WithCancel(context.Background())
	g.cutoff, g.cut = context.WithCancel(context.Background())
	return g
}

// Run takes calls until ctx ends. It is ready after the first try to listen: that the
// address is taken, or not there yet, holds nobody up.
func (g *Gateway) Run(ctx context.Context, ready func()) (err error) {
	defer g.stop()
	defer g.cut()
	for _, name := range g.routes.processes {
		conn, err := g.deps.Dial(name)
		if err != nil {
			return fmt.Errorf("dial %s: %w", name, err)
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		g.conns[name] = conn
	}
	l, err := g.listen(ctx, ready)
	if err != nil {
		return err
	}
	g.deps.Log.Info("gateway bound", logging.Path(l.Addr().String()))
	ready()
	return g.serve(ctx, l)
}

// listen returns the listener that was passed, or its own once there is one.
func (g *Gateway) listen(ctx context.Context, ready func()) (net.Listener, error) {
	return listening.Place{
		Address: g.cfg.Address, Passed: g.deps.Listener, Keep: g.deps.Keep, Again: listenAgain,
		Failed: func(err error) {
			ready()
			g.deps.Log.Warn("gateway not bound", logging.Path(g.cfg.Address), logging.Err(err))
		},
	}.Listen(ctx)
}

func (g *Gateway) serve(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer(g.options()...)
	served := make(chan error, 1)
	go func() { served <- server.Serve(&bounded{Listener: l, most: maxConnections}) }() // ends with the server; waited for below
	g.deps.Serving(true)
	defer g.deps.Serving(false)
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	g.end(server)
	if err := <-served; err != nil {
		g.deps.Log.Warn("listener lost", logging.Path(l.Addr().String()), logging.Err(err))
	}
	g.pumps.Wait()
	return context.Cause(ctx)
}

// end lets calls in flight finish within their limit; what has no end of its own is
// told at once that the gateway goes away.
func (g *Gateway) end(server *grpc.Server) {
	g.stop()
	done := make(chan struct{})
	go func() { // owned by end: Stop makes it end
		defer close(done)
		server.GracefulStop()
	}()
	timer := time.NewTimer(drainLimit)
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
	}
	g.deps.Log.Warn("calls cut off", logging.Duration(drainLimit))
	g.cut()
	timer.Reset(time.Second)
	select {
	case <-done:
		return
	case <-timer.C: // a caller that does not read
	}
	server.Stop()
	<-done
}

func (g *Gateway) options() []grpc.ServerOption {
	opts := []grpc.ServerOption{
		grpc.Creds(&door{files: g.deps.Files, log: g.deps.Log}),
		grpc.UnknownServiceHandler(g.handle),
		grpc.ForceServerCodecV2(raw{}),
		grpc.MaxRecvMsgSize(rpc.MaxMessageSize),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxCalls),
		grpc.ConnectionTimeout(handshakeLimit),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleLimit, Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.StreamInterceptor(recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(g.recovered))),
	}
	if telemetry.Enabled() {
		opts = append(opts, grpc.StatsHandler(otelgrpc.NewServerHandler()))
	}
	return opts
}

func (g *Gateway) recovered(_ context.Context, p any) error {
	g.deps.Log.Error("handler panicked", logging.Err(fmt.Errorf("panic: %v\n%s", p, debug.Stack())))
	return fault.ToStatus(fmt.Errorf("panic: %v", p))
}

// CallOptions are for connections that Dial returns: messages pass as they are.
func CallOptions() grpc.DialOption {
	return grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}))
}
