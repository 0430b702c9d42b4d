package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fdstore"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/run"
	"staddle.internal/kit/telemetry"
	"staddle.internal/kit/version"
)

// Process is what the frame gives to build.
type Process struct {
	// Name of the process.
	Name string
	// Paths of this node.
	Paths config.Paths
	// Config is node.yaml, with all paths resolved.
	Config *config.Node
	// ConfigPath is the file that was read.
	ConfigPath string
	// Log is the process's logger.
	Log *slog.Logger
	// Level is the level of Log, which SetLogLevel changes.
	Level *logging.Level
	// Server is where services are registered.
	Server *rpc.Server
	// Status is what health and GetStatus tell.
	Status *rpc.Status
	// FDs are the files passed by whoever supervises, and the way to leave some.
	FDs *fdstore.Store
	// Watchdog learns which loops make progress.
	Watchdog *Watchdog

	lock     *os.File     // on the data folder, while the process runs
	listener net.Listener // of its socket

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn // guarded by mu, by neighbour
}

// Dial returns the connection to a neighbour on this node: one per neighbour,
// shared by all callers and closed by the frame. It does not wait.
func (p *Process) Dial(neighbour string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if conn, ok := p.conns[neighbour]; ok {
		return conn, nil
	}
	path := p.Paths.Socket(neighbour)
	foreign := neighbour == config.ContainerdName
	if foreign {
		path = p.Config.Containerd.Address
	}
	conn, err := rpc.Dial(path, rpc.DialConfig{Process: p.Name, Log: p.Log, Foreign: foreign})
	if err != nil {
		return nil, err
	}
	if p.conns == nil {
		p.conns = map[string]*grpc.ClientConn{}
	}
	p.conns[neighbour] = conn
	return conn, nil
}

func (p *Process) hangUp() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for name, conn := range p.conns {
		if err := conn.Close(); err != nil {
			errs = append(errs, fmt.Errorf("hang up %s: %w", name, err))
		}
	}
	p.conns = nil
	return errors.Join(errs...)
}

// Gate returns the member that waits for the neighbours which the graph in
// node.yaml names for this process, and keeps watching them.
func (p *Process) Gate() (run.Member, error) {
	var neighbours []rpc.Neighbour
	for _, name := range p.Config.Neighbours(p.Name) {
		conn, err := p.Dial(name)
		if err != nil {
			return run.Member{}, err
		}
		neighbours = append(neighbours, rpc.Neighbour{Name: name, Conn: conn})
	}
	return rpc.Gate(p.Status, p.Log, neighbours...), nil
}

// run owns everything between a valid configuration and the end.
func (f Frame) run(ctx context.Context, p *Process, build Build) (err error) {
	defer func() { err = errors.Join(err, p.hangUp()) }()
	stopTelemetry, err := telemetry.Start(ctx, p.Name, version.String())
	if err != nil {
		return err
	}
	defer func() {
		if stopErr := stopTelemetry(ctx); stopErr != nil {
			p.Log.Warn("telemetry lost", logging.Err(stopErr))
		}
	}()
	if err := p.claim(ctx, f.Kept); err != nil {
		return err
	}
	if p.lock != nil {
		defer unlock(p.lock)
	}
	members, err := f.assemble(ctx, p, build)
	if err != nil {
		return err
	}
	return run.Members(ctx, members...)
}

// claim makes the folders of this process and the lock that says it is the only
// one.
func (p *Process) claim(ctx context.Context, kept *Kept) (err error) {
	if kept != nil && kept.Apart {
		return nil
	}
	if err := os.MkdirAll(p.Paths.Run(), 0o755); err != nil {
		return fmt.Errorf("make folder of sockets: %w", err)
	}
	if err := os.MkdirAll(p.Paths.Var(p.Name), 0o700); err != nil {
		return fmt.Errorf("make folder of data: %w", err)
	}
	if kept != nil {
		p.lock, err = relock(kept.Lock, p.Name, p.Paths.Lock(p.Name))
	} else {
		p.lock, err = lock(ctx, p.Name, p.Paths.Lock(p.Name))
	}
	return err
}

// assemble puts the frame's members around those of build.
func (f Frame) assemble(ctx context.Context, p *Process, build Build) ([]run.Member, error) {
	server, err := rpc.NewServer(rpc.ServerConfig{
		Process: p.Name, Version: version.String(), Log: p.Log, Level: p.Level, Peers: rpc.NewPeers(p.Config.Users),
	})
	if err != nil {
		return nil, err
	}
	p.Server, p.Status, p.FDs = server, server.Status(), fdstore.Inherited()
	p.Watchdog = newWatchdog(p)
	built, err := build(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", p.Name, err)
	}
	if !f.OwnGate {
		gate, err := p.Gate()
		if err != nil {
			return nil, err
		}
		built = append([]run.Member{gate}, built...)
	}
	if p.listener, err = p.listen(f.Kept); err != nil {
		return nil, err
	}
	members := append([]run.Member{p.notifier(), server.Member(p.listener), p.Watchdog.member()}, built...)
	return append(members, p.readiness()), nil
}

// listen takes the socket that was kept or passed, or makes it.
func (p *Process) listen(kept *Kept) (net.Listener, error) {
	if kept != nil && kept.Socket != nil {
		return kept.listen(p.Paths.Socket(p.Name))
	}
	if l, ok := p.FDs.Listener(p.Name + ".sock"); ok {
		return rpc.Adopt(l, p.Paths.Socket(p.Name)), nil
	}
	if err := p.FDs.Err(); err != nil {
		p.Log.Warn("passed file unusable", logging.Err(err))
	}
	return rpc.Listen(p.Paths.Socket(p.Name), rpc.DefaultSocketMode)
}

// readiness is the last member: it runs when all others are ready, and is the
// first to learn of the end.
func (p *Process) readiness() run.Member {
	return run.Member{Name: "readiness", Run: func(ctx context.Context, ready func()) error {
		p.Status.SetReady()
		ready()
		<-ctx.Done()
		p.Status.Stopping()
		return context.Cause(ctx)
	}}
}
