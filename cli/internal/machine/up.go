package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/graph"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"
)

// Up makes the installation run: all components ready, the node ready for work,
// and, with sample, a first sandbox. What runs already stays as it is. When a
// component fails, what this call started is stopped again.
func (m *Machine) Up(ctx context.Context, sample bool) error {
	if err := m.CheckPrerequisites(); err != nil {
		return exit.Try(err, "the commands above, then staddle up again")
	}
	node, own, err := m.begin(ctx)
	if err != nil {
		return err
	}
	if err := m.comeUp(ctx, own); err != nil {
		return err
	}
	if node.Supervisor.Composition != config.CompositionMachine {
		m.say("all processes are ready; the coordinator of this node is %s", node.Coordinator.Address)
		return nil
	}
	if err := m.saveContext(node); err != nil {
		return err
	}
	cluster, err := m.nodeReady(ctx, node.Name)
	if err != nil {
		return err
	}
	m.say("node %s is ready", node.Name)
	if sample {
		err = m.firstSandbox(ctx, cluster)
	}
	return errors.Join(err, cluster.Close())
}

// begin installs and configures, and starts the supervisor unless there is one. No
// other up or down does so meanwhile.
func (m *Machine) begin(ctx context.Context) (*config.Node, *started, error) {
	if err := os.MkdirAll(m.Bin(), 0o755); err != nil {
		return nil, nil, fmt.Errorf("install: %w", err)
	}
	end, err := m.turn(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer end()
	if err := m.installIdle(); err != nil {
		return nil, nil, err
	}
	written, err := m.Configure()
	if err != nil {
		return nil, nil, err
	}
	for _, path := range written {
		m.say("wrote %s", path)
	}
	node, err := config.LoadNode(m.Paths.NodeFile())
	if err != nil {
		return nil, nil, err
	}
	own, err := m.oneSupervisor(ctx)
	return node, own, err
}

// installIdle installs unless something runs from what is installed: that is
// replaced by an upgrade, which can go back.
func (m *Machine) installIdle() error {
	pid, running, err := m.running()
	if err != nil {
		return err
	}
	if !running {
		return m.Install()
	}
	names, err := m.Differing()
	if err == nil && len(names) > 0 {
		m.say("the supervisor (process %d) runs other binaries than %s has: %s", pid, m.Source, strings.Join(names, ", "))
		m.say("to run those: %s", strings.Join(append([]string{"staddle"}, m.rooted("upgrade", "--binaries", m.Source)...), " "))
	}
	return err
}

// oneSupervisor starts the supervisor unless there is one, and returns once it has
// the installation.
func (m *Machine) oneSupervisor(ctx context.Context) (*started, error) {
	pid, running, err := m.running()
	if err != nil {
		return nil, err
	}
	if running {
		m.say("the supervisor runs already (process %d)", pid)
		return nil, nil
	}
	own, err := m.start()
	for err == nil && !running && !own.isOver() && backoff.Wait(ctx, pollPeriod) == nil {
		_, running, err = m.running()
	}
	return own, err
}

// comeUp waits until every component is ready. A supervisor that this command
// started is stopped again when one is not.
func (m *Machine) comeUp(ctx context.Context, own *started) error {
	err := m.allReady(ctx, own)
	if err == nil {
		return nil
	}
	if own == nil || own.isOver() { // what runs now, if anything, belongs to somebody else
		return exit.Try(err, "staddle status")
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if _, stopErr := m.Stop(cleanup); stopErr != nil {
		return errors.Join(err, stopErr)
	}
	m.say("what was started has been stopped again; a sandbox that ran goes on, until: staddle down")
	return exit.Try(err, "staddle up, once the cause is gone")
}

var errReady = errors.New("all components are ready")

// allReady shows the graph coming up. It gives up when the supervisor ends, a
// component fails again and again, or the time is over.
func (m *Machine) allReady(ctx context.Context, own *started) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	rise := &rise{m: m, since: time.Now(), terminal: output.Terminal(m.Err), ready: map[string]bool{}}
	source := graph.New(m.Paths)
	for {
		err := graph.Ticking(ctx, source.WatchSupervisor, rise.show)
		switch {
		case errors.Is(err, errReady):
			return nil
		case rise.failed != nil:
			return m.componentFailed(rise.failed, rise.since, err)
		case own != nil && own.isOver():
			return fault.New(fault.Internal, "start supervisor: it ended: %s\n%s", own.state, tail(m.supervisorLog(), tailLines))
		case ctx.Err() != nil:
			return m.notInTime(ctx, rise, err)
		case fault.KindOf(err) != fault.Unavailable:
			return err
		}
		if err := backoff.Wait(ctx, pollPeriod); err != nil {
			return m.notInTime(ctx, rise, err)
		}
	}
}

func (s *started) isOver() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// tailLines is how much of a log is shown when something failed.
const tailLines = 20

// maxStarts is how often a component may be started before up gives up.
const maxStarts = 3

// rise shows components turning ready.
type rise struct {
	m        *Machine
	since    time.Time
	terminal bool
	view     *graph.View
	ready    map[string]bool
	last     *supervisorv1.GetGraphResponse
	failed   *supervisorv1.Component
}

func (r *rise) show(g *supervisorv1.GetGraphResponse) error {
	r.last = g
	if err := r.draw(g); err != nil {
		return err
	}
	if r.failed = hopeless(g); r.failed != nil {
		return fault.New(fault.Internal, "start %s: %s", r.failed.GetName(), graph.Reason(r.failed))
	}
	if graph.Ready(g) {
		return errReady
	}
	return nil
}

func (r *rise) draw(g *supervisorv1.GetGraphResponse) error {
	if r.terminal {
		if r.view == nil {
			r.view = graph.NewView(r.m.Err, true)
		}
		return r.view.Show(g, func() string { return graph.Short(time.Now(), g) })
	}
	for _, c := range g.GetComponents() {
		isReady := c.GetState() == supervisorv1.ComponentState_COMPONENT_STATE_READY
		if isReady && !r.ready[c.GetName()] {
			r.m.say("%s ready", c.GetName())
		}
		r.ready[c.GetName()] = isReady
	}
	return nil
}

// hopeless returns a component that was started several times and ended each
// time, or nil.
func hopeless(g *supervisorv1.GetGraphResponse) *supervisorv1.Component {
	for _, c := range g.GetComponents() {
		if c.GetState() == supervisorv1.ComponentState_COMPONENT_STATE_BACKING_OFF && c.GetStarts() >= maxStarts {
			return c
		}
	}
	return nil
}

// componentFailed adds what the component itself said about it since then; only
// where that cannot be told, the end of its log.
func (m *Machine) componentFailed(c *supervisorv1.Component, since time.Time, err error) error {
	if why := cause(m.componentLog(c.GetName()), since); why != "" {
		return fmt.Errorf("%w: %s\nmore is in %s", err, why, m.componentLog(c.GetName()))
	}
	return fmt.Errorf("%w\nthe end of %s:\n%s", err, m.componentLog(c.GetName()), tail(m.componentLog(c.GetName()), tailLines))
}

// notInTime names the first component that is not ready; the others wait for it.
func (m *Machine) notInTime(ctx context.Context, r *rise, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	for _, c := range r.last.GetComponents() {
		if c.GetState() != supervisorv1.ComponentState_COMPONENT_STATE_READY {
			why := fault.New(fault.Unavailable, "start %s: not ready in time: %s: %s", c.GetName(), graph.Word(c.GetState()), graph.Reason(c))
			return m.componentFailed(c, r.since, why)
		}
	}
	return fault.New(fault.Unavailable, "start supervisor: no answer in time: %w\n%s", err, tail(m.supervisorLog(), tailLines))
}

// nodeReady waits until the coordinator knows this node as ready for work.
func (m *Machine) nodeReady(ctx context.Context, name string) (*target.Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	settings, err := target.Load(target.Flags{Root: m.Paths.Root, System: true})
	if err != nil {
		return nil, err
	}
	cluster, err := settings.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	last := "the coordinator has no record of it"
	for {
		r, err := cluster.ByName(ctx, resourcev1.Kind_KIND_NODE, name)
		switch {
		case err == nil:
			ready, why := nodeIsReady(r)
			if ready {
				return cluster, nil
			}
			last = why
		case fault.KindOf(err) != fault.NotFound && fault.KindOf(err) != fault.Unavailable:
			return nil, errors.Join(err, cluster.Close())
		}
		if err := backoff.Wait(ctx, 4*pollPeriod); err != nil {
			return nil, errors.Join(exit.Try(fault.New(fault.Unavailable, "node %s is not ready: %s", name, last), "staddle status; staddle node ls"),
				cluster.Close())
		}
	}
}

// nodeIsReady reads the node's own word, which counts only within a session.
func nodeIsReady(r *resourcev1.Resource) (bool, string) {
	if r.GetNode().GetPlacement().GetSessionId() == 0 {
		return false, "it has no session"
	}
	if s := r.GetNode().GetPlacement().GetStatusSeq(); s > 0 && r.GetNode().GetStatus().GetSeq() <= s {
		return false, "it has not said how it is since its session began"
	}
	for _, c := range r.GetNode().GetStatus().GetConditions() {
		if c.GetType() == "Ready" {
			return c.GetState() == resourcev1.ConditionState_CONDITION_STATE_TRUE, c.GetReason()
		}
	}
	return false, "it has not said how it is"
}

// saveContext makes this installation the one that the person's commands are
// about. A context that is about another one is left alone while that one is there.
func (m *Machine) saveContext(node *config.Node) error {
	if m.Home == nil {
		return nil
	}
	old, err := m.Home.Read()
	if err == nil && old.Root != m.Paths.Root {
		if _, gone := os.Stat(config.Paths{Root: old.Root}.NodeFile()); !errors.Is(gone, os.ErrNotExist) {
			m.say("your context is about another installation (%s); name this one with --root %s", firstOf(old.Root, "the system's"), firstOf(m.Paths.Root, `""`))
			return nil
		}
	}
	if err != nil && fault.KindOf(err) != fault.NotFound {
		return err
	}
	settings, err := target.Load(target.Flags{Root: m.Paths.Root, System: true})
	if err != nil {
		return err
	}
	return m.Home.Save(target.Context{
		Root: m.Paths.Root, Coordinator: node.Coordinator.Address,
		CA: settings.CA, Certificate: settings.Cert, Key: settings.Key,
	})
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
