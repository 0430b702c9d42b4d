// Package forward lets people reach ports inside sandboxes: ForwardService over what
// connects there.
//
// A connection is one call: two directions that end each by itself. It ends with the
// attempt of the sandbox that it leads to: a socket of ours would keep the network of that
// from being removed, for as long as somebody elsewhere holds on to it. Run owns that.
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

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/watch"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// MaxConnections is how many connections to one sandbox may be open this way.
const MaxConnections = 256

// errEnded ends the connections of an attempt that has ended.
var errEnded = fault.WithReason(fault.New(fault.Unavailable, "the sandbox has ended, or was started anew"), "SANDBOX_ENDED")

// errStopping ends all when the host stops.
var errStopping = fault.WithReason(fault.New(fault.Unavailable, "the host of the sandbox stops"), "SANDBOX_ENDED")

// Host tells how sandboxes are; a *host.Host.
type Host interface {
	Get(uid id.Sandbox) (*sandboxhostv1.SandboxState, error)
	States() *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]
}

// Dialer connects inside of sandboxes; a *containerd.Engine.
type Dialer interface {
	// Dial connects by TCP. An error without a kind is the answer of that network.
	Dial(ctx context.Context, uid id.Sandbox, to netip.AddrPort) (net.Conn, error)
}

// Server implements ForwardService.
type Server struct {
	sandboxhostv1.UnimplementedForwardServiceServer
	host   Host
	dialer Dialer
	log    *slog.Logger
	pumps  sync.WaitGroup

	mu   sync.Mutex // guards what follows
	open map[id.Sandbox]map[*line]bool
	over bool // no more may be opened
}

// line is one connection, as far as its end from outside goes.
type line struct {
	attempt uint64
	cancel  context.CancelCauseFunc
}

// New returns the service. It does nothing before Run.
func New(host Host, dialer Dialer, log *slog.Logger) *Server {
	return &Server{host: host, dialer: dialer, log: log, open: map[id.Sandbox]map[*line]bool{}}
}

// Register serves it.
func (s *Server) Register(on grpc.ServiceRegistrar) {
	sandboxhostv1.RegisterForwardServiceServer(on, s)
}

// Run ends connections whose sandboxes have ended, and all when ctx does.
func (s *Server) Run(ctx context.Context, ready func()) error {
	ready()
	for ctx.Err() == nil { // begun anew when it was too slow
		for ev := range s.host.States().Subscribe(ctx) {
			if ev.Kind != watch.Synced {
				s.look(ev.Key, ev.Value, ev.Kind == watch.Deleted)
			}
		}
	}
	s.mu.Lock()
	s.over = true
	for _, lines := range s.open {
		for l := range lines {
			l.cancel(errStopping)
		}
	}
	s.mu.Unlock()
	s.pumps.Wait()
	return context.Cause(ctx)
}

// look ends the connections to a sandbox that is not as they found it any more.
func (s *Server) look(uid id.Sandbox, state *sandboxhostv1.SandboxState, gone bool) {
	attempt, runs := running(state)
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.open[uid] {
		if gone || !runs || l.attempt != attempt {
			l.cancel(errEnded)
		}
	}
}

// enter counts one more connection, unless there are too many.
func (s *Server) enter(uid id.Sandbox, l *line) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return errStopping
	}
	if len(s.open[uid]) >= MaxConnections {
		return fault.WithReason(fault.New(fault.Exhausted, "sandbox %s: %d connections to it are open, the most that there may be", uid, MaxConnections),
			"TOO_MANY_CONNECTIONS")
	}
	if s.open[uid] == nil {
		s.open[uid] = map[*line]bool{}
	}
	s.open[uid][l] = true
	return nil
}

func (s *Server) leave(uid id.Sandbox, l *line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.open[uid], l); len(s.open[uid]) == 0 {
		delete(s.open, uid)
	}
}

// running says whether any container of a sandbox runs, and in which attempt.
func running(state *sandboxhostv1.SandboxState) (attempt uint64, runs bool) {
	for _, c := range state.GetStatus().GetContainers() {
		runs = runs || c.GetPid() != 0 && c.GetExit() == nil
	}
	return state.GetStatus().GetAttempt(), runs && state.GetStatus().GetTornDownAt() == nil
}
