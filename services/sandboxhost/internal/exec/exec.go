// Package exec lets people into sandboxes that run: ExecService over what runs
// processes there.
//
// A session is one call: its process, a goroutine for each direction, and a bounded
// buffer for input. It ends with its process, or ends that when its caller goes; a main
// process, to which somebody only attaches, goes on.
// Removing what was made for a process takes time that no caller waits for, and must be
// done whoever goes: Run owns that, and what an earlier life of the host has left.
//
// It must hold no rule about how sandboxes live, and never turn a stream that broke into
// a process that ended well. Beside the trail, it comes after a person's command and before the
// engine.
package exec

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/logs"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// MaxSessions is how many processes of one sandbox may be there that were begun this
	// way and have not ended.
	MaxSessions = 64
	// closeLimit bounds one try to end and remove a process: the shim itself
	// waits up to ten seconds for what still holds its outputs.
	closeLimit = 15 * time.Second
	// stopLimit is how long that may go on when the host stops; the next life does the rest.
	stopLimit = 4 * time.Second
)

// closeAgain is the wait between tries to end and remove a process.
var closeAgain = backoff.Policy{Initial: 100 * time.Millisecond, Cap: 5 * time.Second}

// states tells how sandboxes are; a *host.Host.
type states interface {
	Get(uid id.Sandbox) (*sandboxhostv1.SandboxState, error)
	States() *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]
}

// output is where the output of main processes is kept; a *logs.Store.
type output interface {
	// Read emits what is kept from a position on, and with Follow what comes.
	Read(ctx context.Context, at logs.Position, mode logs.Mode, emit func(logs.Chunk) error) error
}

// Runtime runs processes beside the main ones of containers; a *containerd.Engine.
type Runtime interface {
	// Open begins one.
	Open(ctx context.Context, b engine.Beside) (engine.Process, error)
	// Left lists those that an earlier life of this process has left.
	Left() ([]engine.LeftProcess, error)
	// Attach takes hold of a main one. Conflict with reason NOT_RUNNING: its container is gone.
	Attach(ctx context.Context, m engine.Main) (engine.Attached, error)
	// AdoptInput takes over the input of main ones that an earlier life has left on its way. It
	// is called once, before Attach.
	AdoptInput(ctx context.Context) error
}

// Server implements ExecService.
type Server struct {
	sandboxhostv1.UnimplementedExecServiceServer
	host    states
	runtime Runtime
	output  output
	log     *slog.Logger

	parting chan parting   // to Run, which does what is left to do
	over    chan struct{}  // closed when Run takes no more
	pumps   sync.WaitGroup // sessions and what they have begun

	mu       sync.Mutex         // guards what follows
	open     crowd              // processes that were begun
	attached crowd              // callers
	inputs   map[string]*holder // by container
	stopping bool               // no more sessions may be entered
}

// New returns the service. It does nothing before Run.
func New(host states, runtime Runtime, output output, log *slog.Logger) *Server {
	return &Server{
		host: host, runtime: runtime, output: output, log: log, parting: make(chan parting), over: make(chan struct{}),
		open:     crowd{map[id.Sandbox]int{}, MaxSessions, "processes were begun in it this way and have not ended"},
		attached: crowd{map[id.Sandbox]int{}, MaxAttached, "are attached to it"},
		inputs:   map[string]*holder{},
	}
}

// Register serves it.
func (s *Server) Register(on grpc.ServiceRegistrar) { sandboxhostv1.RegisterExecServiceServer(on, s) }

// parting is a process that nobody looks at any more.
type parting struct {
	uid     id.Sandbox
	process engine.Process
	await   bool // its end, before it is removed
}

// Run ends and removes the processes of sessions that are over, and those that an
// earlier life has left, but for detached ones, whose end it waits for. When ctx
// ends, it leaves those to the next life.
func (s *Server) Run(ctx context.Context, ready func()) error {
	left, err := s.runtime.Left()
	if err != nil {
		return err
	}
	if err := s.runtime.AdoptInput(ctx); err != nil {
		s.log.Warn("input of an earlier process not taken over", logging.Err(err))
	}
	var jobs sync.WaitGroup
	defer s.leave()
	defer jobs.Wait()
	defer close(s.over)
	for _, l := range left {
		s.count(&s.open, l.UID, 1)
		jobs.Go(func() { s.finish(ctx, parting{l.UID, l.Process, l.Detached}) }) // ends with ctx, and closeLimit
	}
	ready()
	for {
		select {
		case p := <-s.parting:
			jobs.Go(func() { s.finish(ctx, p) }) // the same
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// leave waits until the last session has ended.
func (s *Server) leave() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.pumps.Wait()
}

// part hands a process over to Run, or does it all when Run is over.
func (s *Server) part(ctx context.Context, p parting) {
	select {
	case s.parting <- p:
	case <-s.over:
		s.finish(ctx, p)
	}
}

// finish ends and removes a process.
func (s *Server) finish(ctx context.Context, p parting) {
	defer s.count(&s.open, p.uid, -1)
	if p.await {
		if _, err := p.process.Wait(ctx); err != nil && ctx.Err() != nil {
			return // it goes on, and the next life of this process finds it
		}
	}
	for try := 1; ; try++ {
		err := s.close(ctx, p.process)
		if err == nil {
			return
		}
		if try == 1 {
			s.log.Warn("executed process not removed", p.uid.Attr(), logging.Err(err))
		}
		if backoff.Wait(ctx, closeAgain.Delay(try, rand.Float64())) != nil {
			return // the same
		}
	}
}

// close tries to end and remove a process, for a short while only once ctx has ended.
func (s *Server) close(ctx context.Context, p engine.Process) error {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	last := time.AfterFunc(closeLimit, cancel)
	defer last.Stop()
	defer context.AfterFunc(ctx, func() { last.Reset(stopLimit) })()
	return p.Close(limited)
}

// crowd counts what there is of one kind, by sandbox.
type crowd struct {
	counts map[id.Sandbox]int
	most   int    // of one sandbox
	what   string // they are, for people
}

// count counts those of a sandbox.
func (s *Server) count(in *crowd, uid id.Sandbox, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.counts[uid] += by; in.counts[uid] <= 0 {
		delete(in.counts, uid)
	}
}

// enter counts one more, unless there are too many. The caller calls pumps.Done when its
// session is over.
func (s *Server) enter(in *crowd, uid id.Sandbox) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return fault.New(fault.Unavailable, "the process is stopping")
	}
	if in.counts[uid] >= in.most {
		return fault.WithReason(fault.New(fault.Exhausted,
			"sandbox %s: %d %s, the most that there may be", uid, in.most, in.what), "TOO_MANY_SESSIONS")
	}
	in.counts[uid]++
	s.pumps.Add(1)
	return nil
}
