// Package forward lets people reach ports inside sandboxes: ForwardService over what
// connects there.
//
// A connection is one call: two directions that end each by itself. It ends with the
// attempt of the sandbox that it leads to: a socket of ours would keep the network of that
// from being removed, for as long as somebody elsewhere holds on to it.
//
// It must hold no rule about how sandboxes live, and never turn a connection that broke
// into one that ended well. Beside the trail, it comes after a person's command and before the
// engine.
package forward

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/tied"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// MaxConnections is how many connections to one sandbox may be open this way.
const MaxConnections = 256

// Dialer connects inside of sandboxes; a *containerd.Engine.
type Dialer interface {
	// Dial connects by TCP. An error without a kind is the answer of that network.
	Dial(ctx context.Context, uid id.Sandbox, to netip.AddrPort) (net.Conn, error)
}

// Server implements ForwardService.
type Server struct {
	sandboxhostv1.UnimplementedForwardServiceServer
	calls  *tied.Calls
	dialer Dialer
	log    *slog.Logger
	pumps  sync.WaitGroup
}

// New returns the service. It does nothing before Run.
func New(host tied.Host, dialer Dialer, log *slog.Logger) *Server {
	limit := tied.Limit{Sandbox: MaxConnections, What: "connections to it open", Reason: "TOO_MANY_CONNECTIONS"}
	return &Server{calls: tied.New(host, limit), dialer: dialer, log: log}
}

// Register serves it.
func (s *Server) Register(on grpc.ServiceRegistrar) {
	sandboxhostv1.RegisterForwardServiceServer(on, s)
}

// Run ends connections whose sandboxes have ended, and all when ctx does.
func (s *Server) Run(ctx context.Context, ready func()) error {
	defer s.pumps.Wait()
	return s.calls.Run(ctx, ready)
}
