// Package dns owns the resolver of a node's sandboxes: it answers for the names of
// sandboxes itself and passes other questions on to the name servers of the node.
//
// Names come from what the keepers show, never from notes: one that does not run has no
// address. Until it is known what runs, a question about a sandbox waits. It must never
// answer anybody but sandboxes and the node itself, ask itself, or change a sandbox. In
// the trail it stands beside the host.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/watch"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// knownLimit is how long a question waits for the end of the adoption.
	knownLimit = 3 * time.Second
	// maxQuestions bounds how many questions are answered at once, maxConns how many
	// connections are open.
	maxQuestions = 1024
	maxConns     = 256
	// idleLimit ends a connection on which nothing is asked.
	idleLimit = 5 * time.Second
	// stopLimit bounds the end of questions that are being answered.
	stopLimit = time.Second
)

// again is the wait between tries to listen.
var again = backoff.Policy{Initial: 200 * time.Millisecond, Cap: 5 * time.Second, Stable: time.Minute}

// Config says what a resolver is.
type Config struct {
	// Address on which it listens, on udp and tcp.
	Address netip.AddrPort
	// Subnet of the sandboxes: who asks from elsewhere gets no answer.
	Subnet netip.Prefix
	// Subnet6 is their IPv6 network; the zero Prefix if they have none.
	Subnet6 netip.Prefix
	// Prefixes are the networks of the addresses of services.
	Prefixes []netip.Prefix
	// Domain of all names, like staddle.internal.
	Domain string
	// Upstreams are asked for everything else. Empty means the servers of the node.
	Upstreams []netip.AddrPort
	// Files say what the servers of the node are. Empty means Files.
	Files []string
}

// Deps are what a resolver works with.
type Deps struct {
	// Log gets what goes wrong.
	Log *slog.Logger
	// Names answers for sandboxes.
	Names *Names
	// Services answers for services. Nil knows none.
	Services Services
	// States are followed to fill Names.
	States *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]
	// NotReady is told in one sentence why nobody is answered, and "" when all are.
	NotReady func(reason string)
	// Owner names who listens on a port, for that sentence. Nil names nobody.
	Owner func(network string, at netip.AddrPort) string
}

// Server is the resolver.
type Server struct {
	cfg       Config
	deps      Deps
	book      book
	questions chan struct{} // one for each that is being answered
}

// New returns a resolver that does nothing before Run.
func New(cfg Config, deps Deps) *Server {
	if len(cfg.Files) == 0 {
		cfg.Files = Files
	}
	return &Server{
		cfg: cfg, deps: deps, questions: make(chan struct{}, maxQuestions),
		book: book{domain: dns.CanonicalName(cfg.Domain), subnets: []netip.Prefix{cfg.Subnet, cfg.Subnet6}, names: deps.Names, prefixes: cfg.Prefixes, services: deps.Services},
	}
}

// Run answers until ctx ends. It calls ready when it listens, or when it is known that
// it cannot now: a port that somebody else has keeps no sandbox from being adopted.
func (s *Server) Run(ctx context.Context, ready func()) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.deps.Names.Follow(ctx, s.deps.States) }) // ends with ctx
	var once sync.Once
	up := func(reason string) {
		s.deps.NotReady(reason)
		once.Do(ready)
	}
	for try := 1; ctx.Err() == nil; {
		began := time.Now()
		err := s.serve(ctx, func() { up("") })
		if ctx.Err() != nil {
			break
		}
		wait := again.Delay(try, rand.Float64())
		try = again.Next(try, time.Since(began))
		s.deps.Log.Warn("names not served", logging.Err(err), logging.RetryIn(wait))
		up(fmt.Sprintf("the resolver of sandboxes does not listen: %v", err))
		if backoff.Wait(ctx, wait) != nil {
			break
		}
	}
	return context.Cause(ctx)
}

// serve listens and answers until ctx ends or it fails.
func (s *Server) serve(ctx context.Context, up func()) error {
	packets, conns, err := s.listen(ctx)
	if err != nil {
		return err
	}
	servers := []*dns.Server{
		{PacketConn: packets, Handler: s.handler(ctx, "udp")},
		{Listener: netutil.LimitListener(conns, maxConns), Handler: s.handler(ctx, "tcp"), IdleTimeout: func() time.Duration { return idleLimit }},
	}
	ended := make(chan error, len(servers))
	var wg sync.WaitGroup
	var started sync.WaitGroup
	for _, server := range servers {
		started.Add(1)
		server.NotifyStartedFunc = started.Done
		wg.Go(func() { ended <- server.ActivateAndServe() }) // ends with its socket; waited for below
	}
	started.Wait()
	up()
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	for _, server := range servers {
		_ = server.ShutdownContext(stop) // one that has ended already says so
	}
	err = errors.Join(err, ignoreClosed(packets.Close()), ignoreClosed(conns.Close()))
	wg.Wait()
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// listen opens both sockets. They may be there before the address is: somebody may take
// the bridge away, and it comes back.
func (s *Server) listen(ctx context.Context) (net.PacketConn, net.Listener, error) {
	free := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_FREEBIND, 1) })
		return errors.Join(controlErr, err)
	}}
	packets, err := free.ListenPacket(ctx, "udp4", s.cfg.Address.String())
	if err != nil {
		return nil, nil, s.blame("udp", err)
	}
	conns, err := free.Listen(ctx, "tcp4", s.cfg.Address.String())
	if err != nil {
		return nil, nil, errors.Join(s.blame("tcp", err), packets.Close())
	}
	return packets, conns, nil
}

// blame names who has the port.
func (s *Server) blame(network string, err error) error {
	if !errors.Is(err, unix.EADDRINUSE) || s.deps.Owner == nil {
		return err
	}
	if owner := s.deps.Owner(network, s.cfg.Address); owner != "" {
		return fmt.Errorf("%w by %s; set network.dns.disable, or have it listen elsewhere", err, owner)
	}
	return err
}

// handler answers what comes over one network.
func (s *Server) handler(ctx context.Context, network string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, asked *dns.Msg) {
		if !s.ours(w.RemoteAddr()) {
			return
		}
		select {
		case s.questions <- struct{}{}:
			defer func() { <-s.questions }()
		default:
			s.reply(w, network, asked, new(dns.Msg).SetRcode(asked, dns.RcodeServerFailure))
			return
		}
		s.reply(w, network, asked, s.answer(ctx, network, asked))
	}
}

// ours says whether somebody may ask: sandboxes, and the node, which does so from the
// bridge's own address.
func (s *Server) ours(from net.Addr) bool {
	at, err := netip.ParseAddrPort(from.String())
	return err == nil && s.cfg.Subnet.Contains(at.Addr().Unmap())
}

// answer answers one question.
func (s *Server) answer(ctx context.Context, network string, asked *dns.Msg) *dns.Msg {
	switch {
	case asked.Opcode != dns.OpcodeQuery:
		return new(dns.Msg).SetRcode(asked, dns.RcodeNotImplemented)
	case len(asked.Question) != 1:
		return new(dns.Msg).SetRcode(asked, dns.RcodeFormatError)
	case asked.Question[0].Qclass != dns.ClassINET:
		return new(dns.Msg).SetRcode(asked, dns.RcodeRefused)
	}
	q := asked.Question[0]
	if !s.book.owns(dns.CanonicalName(q.Name)) {
		if reply := forward(ctx, s.servers(), network, asked); reply != nil {
			return reply
		}
		return new(dns.Msg).SetRcode(asked, dns.RcodeServerFailure)
	}
	ctx, cancel := context.WithTimeout(ctx, knownLimit)
	defer cancel()
	if !s.deps.Names.wait(ctx) {
		return new(dns.Msg).SetRcode(asked, dns.RcodeServerFailure)
	}
	code, records := s.book.answer(q)
	reply := new(dns.Msg).SetRcode(asked, code)
	reply.Authoritative, reply.RecursionAvailable = true, true
	reply.Answer = records
	if len(records) == 0 {
		reply.Ns = []dns.RR{s.book.authority()}
	}
	if opt := asked.IsEdns0(); opt != nil {
		reply.SetEdns0(ednsSize, opt.Do())
	}
	return reply
}

// ednsSize is how large our packets may be: one that is never cut into pieces (DNS flag
// day 2020).
const ednsSize = 1232

// servers are those that are asked for what we do not know. The files are read each time:
// a node changes its network while we run.
func (s *Server) servers() []netip.AddrPort {
	if len(s.cfg.Upstreams) > 0 {
		return s.cfg.Upstreams
	}
	return ReadHost(s.cfg.Files, s.cfg.Address.Addr()).Servers
}

func (s *Server) reply(w dns.ResponseWriter, network string, asked, reply *dns.Msg) {
	if network == "udp" {
		size := dns.MinMsgSize
		if opt := asked.IsEdns0(); opt != nil {
			size = max(size, int(opt.UDPSize()))
		}
		reply.Truncate(size)
	}
	if err := w.WriteMsg(reply); err != nil {
		s.deps.Log.Debug("answer not sent", logging.Peer(w.RemoteAddr().String()), logging.Err(err))
	}
}
