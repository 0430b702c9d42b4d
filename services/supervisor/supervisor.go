// Package supervisor is the process that starts the others in the order of the
// boot graph, keeps them, and stops them in reverse.
//
// It owns the graph, the listening sockets, the fd store and the children. It must
// never contain domain logic, and is never required: every process waits for its
// neighbours by itself, and another supervisor, or a person, may start them. In the
// trail it is the first process of a node; its main is below.
package supervisor

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/config"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/process"
	"staddle.internal/kit/run"

	"staddle.internal/services/supervisor/internal/api"
	"staddle.internal/services/supervisor/internal/child"
	"staddle.internal/services/supervisor/internal/graph"
	"staddle.internal/services/supervisor/internal/handover"
	"staddle.internal/services/supervisor/internal/machine"
	"staddle.internal/services/supervisor/internal/probe"
	"staddle.internal/services/supervisor/internal/supervise"
)

// name of the process.
const name = "supervisor"

// silentGrace bounds the stop of a process that gives no answer.
const silentGrace = 3 * time.Second

// exitMargin is what the end of a killed process and of its cgroup may take.
const exitMargin = 5 * time.Second

// levelTimeout bounds the wish to one process for another log level.
const levelTimeout = 2 * time.Second

// Main runs the supervisor and returns its exit code: 2 if the graph is wrong, and
// then nothing was started. It is to be called on the main thread, held there from
// init on: children are made on it, and it is the one thread that outlives the
// replacement of the program.
func Main() int {
	m := &start{spawner: child.NewSpawner(), environ: os.Environ(), signals: listenForHangup()}
	var err error
	if m.before, err = handover.Inherited(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return run.ExitFailed
	}
	m.environ = slices.DeleteFunc(m.environ, func(entry string) bool { return strings.HasPrefix(entry, handover.EnvFD+"=") })
	code := make(chan int, 1)
	go func() { // owned by Main: it ends before Main does
		defer m.spawner.Close()
		code <- m.frame().Main(m.build)
	}()
	m.spawner.Serve()
	return <-code
}

// start is what Main finds when it begins.
type start struct {
	spawner *child.Spawner
	environ []string
	signals <-chan os.Signal
	before  *handover.State // nil unless the program was replaced

	failFast bool // a flag
}

func (m *start) frame() process.Frame {
	f := process.Frame{
		Name: name, Env: []string{handover.EnvFD}, Processors: 1,
		Flags: func(fs *flag.FlagSet) {
			fs.BoolVar(&m.failFast, "fail-fast", false, "stop everything when a component fails before all were ready once: when it ends, or is not ready within its start time-out though nothing outside the machine holds it up")
		},
	}
	if m.before != nil {
		f.Kept = &process.Kept{Apart: m.before.Trial}
		if m.before.Lock > 0 {
			f.Kept.Lock = os.NewFile(uintptr(m.before.Lock), "lock")
		}
		if m.before.Socket > 0 {
			f.Kept.Socket = os.NewFile(uintptr(m.before.Socket), "socket")
		}
	}
	return f
}

// plans is what the configuration means.
type plans struct {
	specs []child.Spec
	plan  machine.Plan
}

func layout(p *process.Process, failFast bool) (plans, error) {
	g, err := graph.New(p.ConfigPath, p.Config.Graph(), config.ContainerdName)
	if err != nil {
		return plans{}, err
	}
	specs, err := specsOf(p, g)
	if err != nil {
		return plans{}, err
	}
	return plans{specs: specs, plan: planOf(p.Config.Supervisor, g, failFast)}, nil
}

// build puts the parts together; the children are ended before what they lean on.
func (m *start) build(_ context.Context, p *process.Process) ([]run.Member, error) {
	l, err := layout(p, m.failFast)
	if err != nil {
		return nil, err
	}
	beat := p.Watchdog.Loop("components")
	children, loop := m.keepers(p, l, beat)
	next := newReplacement(m, p, loop, children)
	renewal, err := upgraderOf(p, l.plan, children, loop, next)
	if err != nil {
		return nil, err
	}
	next.upgrading = renewal.Busy
	end := &ending{cfg: p.Config.Supervisor, drain: drainer(p), log: p.Log}
	end.settled.Store(m.trial()) // the sandboxes are the running program's
	p.Server.AlwaysServe(supervisorv1.SupervisorService_ServiceDesc.ServiceName)
	supervisorv1.RegisterSupervisorServiceServer(p.Server.GRPC(), api.New(l.plan, api.Deps{
		Graph: loop, Outputs: children, Upgrades: renewal, SetLevel: levelSetter(p), Foreign: foreign(l.specs),
		Drain: end.drain.byRequest, Shutdown: shutdown(p, end), Own: next,
	}))
	settle := renewal.Settle
	if m.trial() { // what was left of an upgrade is the running program's
		settle = idle
	}
	return []run.Member{
		{Name: "installation", Run: settle},
		{Name: "children", Run: children.Run},
		{Name: "components", StopTimeout: stopTime(l.plan), Run: func(ctx context.Context, ready func()) error {
			defer beat.Done()
			return loop.Run(ctx, ready)
		}},
		{Name: "upgrade", Run: renewal.Run},
		{Name: "program", Run: next.run},
		end.member(),
	}, nil
}

// idle is a member that does nothing.
func idle(ctx context.Context, ready func()) error {
	ready()
	<-ctx.Done()
	return context.Cause(ctx)
}

// keepers are the one of the processes and the one of the states, as they were
// left if the program was replaced.
func (m *start) keepers(p *process.Process, l plans, beat *process.Beat) (*child.Runner, *supervise.Loop) {
	var loop *supervise.Loop
	children := child.New(m.childConfig(p, l.specs), child.Deps{
		Log: p.Log, Spawner: m.spawner,
		Exited: func(e child.Exit) {
			loop.Exited(e.Name, e.PID, machine.Exit{How: e.How, Code: e.Code, Signal: e.Signal})
		},
		Lost: func(name string, pid int, reason string) { loop.Lost(name, pid, reason) },
	})
	loop = supervise.New(l.plan, supervise.Deps{
		Children: children, Probe: m.prober(p, l.specs), Log: p.Log, Changed: statusOf(p, l.plan),
		Alive: beat.Alive,
	})
	if m.before != nil {
		p.Log.Info("program replaced", logging.Count(len(m.before.Children.Children)))
		loop.Resume(l.plan.Resume(m.before.Table, m.before.Then()), supervise.ResumeHistory(m.before.History))
	}
	return children, loop
}

// planOf turns configuration into the rules of the machine.
func planOf(s config.Supervisor, g graph.Graph, failFast bool) machine.Plan {
	plan := machine.Plan{
		Backoff:     backoff.Policy{Initial: s.Backoff.Initial.Std(), Cap: s.Backoff.Cap.Std(), Stable: s.Backoff.Stable.Std()},
		SilentGrace: silentGrace, FailFast: failFast,
	}
	for _, c := range g.Components {
		plan.Components = append(plan.Components, machine.Component{
			Name: c.Name, Needs: c.Needs, OrderOnly: c.OrderOnly,
			StartTimeout: either(c.StartTimeout, s.StartTimeout), StopTimeout: either(c.StopTimeout, s.StopTimeout),
		})
	}
	return plan
}

func either(own, common config.Duration) time.Duration {
	if own != 0 {
		return own.Std()
	}
	return common.Std()
}

// stopTime is what the stop of everything may take, one after the other.
func stopTime(plan machine.Plan) time.Duration {
	var sum time.Duration
	for _, c := range plan.Components {
		sum += c.StopTimeout + exitMargin
	}
	return sum
}

func (m *start) childConfig(p *process.Process, specs []child.Spec) child.Config {
	cgroup, err := child.CgroupBase(p.Paths)
	if err != nil {
		p.Log.Warn("components share a cgroup", logging.Err(err))
	}
	runDir := filepath.Join(p.Paths.Run(), name)
	cfg := child.Config{
		Specs: specs, Cgroup: cgroup,
		RunDir:        runDir,
		LogDir:        filepath.Join(p.Paths.Var(name), "logs"),
		LeftoverGrace: p.Config.Supervisor.StopTimeout.Std(),
		Folders:       func() error { return makeAllFolders(p, specs) },
		SpareDirs:     []string{p.Paths.SocketSpares(), filepath.Join(runDir, "sockets")},
		OwnSockets:    []string{p.Paths.Socket(name)},
	}
	if m.before != nil {
		cfg.Before, cfg.Trial = &m.before.Children, m.before.Trial
	}
	return cfg
}

// foreign tells which components are no processes of ours.
func foreign(specs []child.Spec) func(string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(specs, func(s child.Spec) bool { return s.Name == name && s.Foreign })
	}
}

// levelSetter asks a process on its own socket, this one too.
func levelSetter(p *process.Process) func(context.Context, string, *processv1.SetLogLevelRequest) (*processv1.SetLogLevelResponse, error) {
	return func(ctx context.Context, component string, req *processv1.SetLogLevelRequest) (*processv1.SetLogLevelResponse, error) {
		conn, err := p.Dial(component)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, levelTimeout)
		defer cancel()
		return processv1.NewProcessServiceClient(conn).SetLogLevel(ctx, req)
	}
}

// trial says whether this program is only tried.
func (m *start) trial() bool { return m.before != nil && m.before.Trial }

func (m *start) prober(p *process.Process, specs []child.Spec) func(context.Context, string, int, func(machine.Event)) error {
	if m.trial() { // the processes are another one's to judge
		return func(ctx context.Context, _ string, _ int, _ func(machine.Event)) error { <-ctx.Done(); return nil }
	}
	return func(ctx context.Context, component string, pid int, emit func(machine.Event)) error {
		t := probe.Target{Name: component, PID: pid, Socket: p.Paths.Socket(component), Answered: m.hadAnswered(component, pid)}
		for _, s := range specs {
			if s.Name == component && s.Foreign {
				t.Socket, t.Plain = p.Config.Containerd.Address, true
			}
		}
		return probe.Watch(ctx, probe.Default(), t, emit)
	}
}

// hadAnswered reports whether a process was known to answer before the program was
// replaced.
func (m *start) hadAnswered(component string, pid int) bool {
	if m.before == nil {
		return false
	}
	r := m.before.Table.Members[component]
	return r.PID == pid && (r.State == machine.Ready || r.State == machine.NotReady)
}

// statusOf makes the supervisor itself ready while all components are.
func statusOf(p *process.Process, plan machine.Plan) func(machine.Table) {
	const source = "components"
	p.Status.Block(source, "no component has been started")
	return func(t machine.Table) {
		if reason, names := supervise.Describe(plan, t); reason != "" {
			p.Status.Block(source, reason, names...)
			return
		}
		p.Status.Unblock(source)
	}
}

// shutdown ends this process the way a signal does, so that there is one way; whoever
// calls it has said what becomes of the sandboxes.
func shutdown(p *process.Process, end *ending) func() {
	return func() {
		end.settled.Store(true)
		if err := unix.Kill(unix.Getpid(), unix.SIGTERM); err != nil {
			p.Log.Error("shutdown not begun", logging.Err(fmt.Errorf("send signal to own process: %w", err)))
		}
	}
}
