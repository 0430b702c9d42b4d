package upgrade

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"

	"staddle.internal/services/supervisor/internal/machine"
)

// checkLimit bounds the answer of a new binary to the question whether it can read
// the configuration.
const checkLimit = 15 * time.Second

// Reasons of Conflict.
const (
	// ReasonRunning means that another upgrade goes on.
	ReasonRunning = "UPGRADE_RUNNING"
	// ReasonNotReady means that a component was not ready before anything was touched.
	ReasonNotReady = "NOT_READY"
	// ReasonPutBack means that a component did not become ready, and that the old
	// binaries are back.
	ReasonPutBack = "PUT_BACK"
)

// Stage is what a Note is about.
type Stage int

// The stages, in the order in which they come.
const (
	// Checked: the binaries are staged and can read the configuration.
	Checked Stage = iota + 1
	// Restarting: a component is being restarted.
	Restarting
	// Ready: it is ready again.
	Ready
	// Failed: it is not, and why.
	Failed
	// PuttingBack: it is restarted with its old binary.
	PuttingBack
	// Installed: everything is ready, and the binaries are in place.
	Installed
)

// Note is one line of progress.
type Note struct {
	Stage     Stage
	Component string
	Text      string
	At        time.Time
}

// children starts processes.
type children interface {
	// Program is what a component is started with: a path and its arguments.
	Program(name string) ([]string, error)
	// Replace sets the path for the next start of a component.
	Replace(name, path string) error
	// Ask runs a command that is no component to its end.
	Ask(cmd *exec.Cmd) error
}

// graph is the loop.
type graph interface {
	Table() machine.Table
	Changed() <-chan struct{}
	Restart(ctx context.Context, name string) error
}

// Config says what there is.
type Config struct {
	// Plan has the components in their order, and how long each may take.
	Plan machine.Plan
	// Bin is the folder of the installed binaries.
	Bin string
	// Programs are the names that an installation may have in it.
	Programs []string
	// Own is the name of the supervisor's own program.
	Own string
	// Check returns the arguments with which a component's program says whether it
	// could start, and then ends. Nil means that it cannot be asked.
	Check func(component string, command []string) []string
}

// Deps are what an Upgrader needs from others.
type Deps struct {
	Children children
	Graph    graph
	Log      *slog.Logger
	// Renew begins to replace the program of the supervisor itself, the last step. It
	// must not wait for it.
	Renew func()
	// Try returns why a program could not be the supervisor's next one, nil if it
	// could. It changes nothing.
	Try func(ctx context.Context, path string) error
}

// Upgrader does one upgrade at a time.
type Upgrader struct {
	cfg   Config
	deps  Deps
	stage stage
	jobs  chan *job
	done  chan struct{} // closed when Run has ended

	mu   sync.Mutex // guards busy
	busy bool
}

// New returns an Upgrader that does nothing until Run.
func New(cfg Config, deps Deps) *Upgrader {
	return &Upgrader{
		cfg: cfg, deps: deps, stage: stage{bin: cfg.Bin, programs: cfg.Programs},
		jobs: make(chan *job, 1), done: make(chan struct{}),
	}
}

// Settle ends what an earlier supervisor left of an upgrade. It is ready when that
// is done, and is to be so before anything is started from the installed binaries.
func (u *Upgrader) Settle(ctx context.Context, ready func()) error {
	left, err := u.stage.resume()
	if err != nil {
		u.deps.Log.Warn("left-over of an upgrade kept", logging.Err(err))
	} else if left {
		u.deps.Log.Info("left-over of an upgrade ended")
	}
	ready()
	<-ctx.Done()
	return context.Cause(ctx)
}

// Run does what is asked for until ctx ends. An upgrade that ctx ends leaves the
// installed binaries as they were.
func (u *Upgrader) Run(ctx context.Context, ready func()) error {
	defer close(u.done)
	ready()
	for {
		select {
		case j := <-u.jobs:
			err := u.do(ctx, j)
			if err != nil {
				u.deps.Log.Warn("upgrade failed", logging.Err(err))
			}
			u.mu.Lock()
			u.busy = false
			u.mu.Unlock()
			j.end(err)
			if err == nil {
				u.deps.Renew()
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Busy reports whether an upgrade goes on.
func (u *Upgrader) Busy() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.busy
}

// Upgrade restarts everything with the binaries of a folder, or with the installed
// ones if it is empty, and tells each step until the end. It goes on when the
// caller leaves. It returns the kinds that the contract names.
func (u *Upgrader) Upgrade(ctx context.Context, from string, tell func(Note) error) error {
	u.mu.Lock()
	if u.busy {
		u.mu.Unlock()
		return fault.WithReason(fault.New(fault.Conflict, "upgrade: another one goes on"), ReasonRunning)
	}
	u.busy = true
	j := &job{from: from, changed: make(chan struct{})}
	u.jobs <- j // has room: only one is busy
	u.mu.Unlock()
	return u.follow(ctx, j, tell)
}

// do is one upgrade from its check to its end.
func (u *Upgrader) do(ctx context.Context, j *job) error {
	if unready := u.notReady(); unready != "" {
		return fault.WithReason(fault.New(fault.Conflict, "upgrade: %s; begin when all components are ready", unready), ReasonNotReady)
	}
	programs, err := u.prepare(ctx, j.from)
	if err != nil {
		return err
	}
	j.note(Note{Stage: Checked, Text: described(programs)})
	plan := Plan{}
	for _, c := range u.cfg.Plan.Components {
		plan.Order = append(plan.Order, c.Name)
	}
	for step := plan.Next(); step.Component != ""; step = plan.Next() {
		err := u.take(ctx, j, step)
		if ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), u.stage.drop())
		}
		plan = plan.Took(err)
	}
	return u.conclude(j, plan)
}

// command is what a component is started with: its installed program, or the staged
// one of that name if there is one.
func (u *Upgrader) command(name string, old bool) (command []string, path string, err error) {
	if command, err = u.deps.Children.Program(name); err != nil {
		return nil, "", err
	}
	folder, program := filepath.Split(command[0])
	ours := slices.Contains([]string{u.cfg.Bin, u.stage.folder()}, filepath.Clean(folder))
	if !ours || !slices.Contains(u.cfg.Programs, program) {
		return command, command[0], nil // none of ours: it is restarted as it is
	}
	path = u.stage.place(program)
	if !old {
		staged, err := exists(u.stage.staged(program))
		if err != nil {
			return nil, "", err
		}
		if staged {
			path = u.stage.staged(program)
		}
	}
	return append([]string{path}, command[1:]...), path, nil
}

// take does one step of the plan and waits until the component is ready.
func (u *Upgrader) take(ctx context.Context, j *job, step Step) error {
	stage := Restarting
	if step.Old {
		stage = PuttingBack
	}
	j.note(Note{Stage: stage, Component: step.Component})
	err := u.restart(ctx, step)
	if err != nil {
		j.note(Note{Stage: Failed, Component: step.Component, Text: err.Error()})
		return err
	}
	j.note(Note{Stage: Ready, Component: step.Component})
	return nil
}

func (u *Upgrader) restart(ctx context.Context, step Step) error {
	_, path, err := u.command(step.Component, step.Old)
	if err == nil {
		err = u.deps.Children.Replace(step.Component, path)
	}
	if err != nil {
		return err
	}
	before := u.deps.Graph.Table().Members[step.Component]
	if err := u.deps.Graph.Restart(ctx, step.Component); err != nil {
		return err
	}
	return u.await(ctx, step.Component, before.Starts)
}

// await waits until a component is ready with a process after a number of starts, or
// has failed. The machine bounds its start; what else holds it up is bounded here.
func (u *Upgrader) await(ctx context.Context, name string, starts uint32) error {
	limit := time.NewTimer(u.limit(name))
	defer limit.Stop()
	for {
		changed := u.deps.Graph.Changed()
		m := u.deps.Graph.Table().Members[name]
		switch {
		case m.State == machine.Ready && m.Starts > starts:
			return nil
		case m.State == machine.BackingOff && m.Starts > starts, m.State == machine.Stopped:
			return fmt.Errorf("it is %s: %s", m.State, m.Reason)
		}
		select {
		case <-changed:
		case <-limit.C:
			return fmt.Errorf("not ready within %s: %s", u.limit(name), m.Reason)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (u *Upgrader) limit(name string) time.Duration {
	for _, c := range u.cfg.Plan.Components {
		if c.Name == name {
			return c.StartTimeout + c.StopTimeout
		}
	}
	return time.Minute
}

// conclude installs what is proven, or says why not.
func (u *Upgrader) conclude(j *job, plan Plan) error {
	why, worse := plan.Failure()
	if why != "" {
		text := "the old binaries are back"
		if len(worse) > 0 {
			text = strings.Join(worse, "; ")
		}
		return fault.WithReason(fault.New(fault.Conflict, "upgrade: %s; %s", why, errors.Join(errors.New(text), u.stage.drop())), ReasonPutBack)
	}
	if j.from != "" {
		if err := u.stage.install(); err != nil {
			return err
		}
	}
	for _, name := range plan.Order { // what is started from now on comes from where it was installed
		_, path, err := u.command(name, true)
		if err == nil {
			err = u.deps.Children.Replace(name, path)
		}
		if err != nil {
			return err
		}
	}
	j.note(Note{Stage: Installed})
	return nil
}

// notReady names the first component that is not ready, and why; "" if all are.
func (u *Upgrader) notReady() string {
	table := u.deps.Graph.Table()
	names := u.cfg.Plan.Unready(table)
	if len(names) == 0 {
		return ""
	}
	m := table.Members[names[0]]
	return fmt.Sprintf("component %s is %s: %s", names[0], m.State, m.Reason)
}
