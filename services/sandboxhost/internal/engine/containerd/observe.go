package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// Survivors lists every sandbox of which there is anything. See engine.Engine.
func (e *Engine) Survivors(ctx context.Context) ([]id.Sandbox, error) {
	if _, err := e.ask(); err != nil {
		return nil, err
	}
	found := map[id.Sandbox]bool{}
	e.mu.Lock()
	for _, c := range e.containers {
		found[c.uid] = true
	}
	e.mu.Unlock()
	folders, err := e.pins.Sandboxes()
	if err != nil {
		return nil, err
	}
	written, err := e.logs.Sandboxes()
	if err != nil {
		return nil, err
	}
	scratch, err := namespace.List(e.scratchRoot())
	if err != nil {
		return nil, err
	}
	secrets, err := e.secrets.Sandboxes()
	if err != nil {
		return nil, err
	}
	groups, err := e.groupsOfSandboxes()
	if err != nil {
		return nil, err
	}
	for _, uid := range slices.Concat(folders, written, scratch, secrets, groups, e.network.Sandboxes(), e.ids.Sandboxes()) {
		found[uid] = true
	}
	uids := make([]id.Sandbox, 0, len(found))
	for uid := range found {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids, context.Cause(ctx)
}

// Observe returns what there is of a sandbox. See engine.Engine.
func (e *Engine) Observe(ctx context.Context, uid id.Sandbox) (engine.Observed, error) {
	c, err := e.ask()
	if err != nil {
		return engine.Observed{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, questionLimit)
	defer cancel()
	o := engine.Observed{UID: uid}
	for _, known := range e.of(uid) {
		var seen *engine.Container
		var err error
		if !o.Silent { // all of them have the same shim
			seen, err = e.observeContainer(ctx, c, known)
			o.Silent = isSilent(err)
		}
		if o.Silent {
			seen, err = e.observeSilent(ctx, c, known)
		}
		if err != nil {
			return engine.Observed{}, fmt.Errorf("observe container %s: %w", known.id, err)
		}
		if seen != nil {
			o.Containers = append(o.Containers, *seen)
		}
	}
	if err := e.observeRest(uid, &o); err != nil {
		return engine.Observed{}, fmt.Errorf("observe sandbox %s: %w", uid, err)
	}
	return o, nil
}

// observeRest looks at what there is beside containers.
func (e *Engine) observeRest(uid id.Sandbox, o *engine.Observed) error {
	var err error
	if o.Namespaces, err = e.pinned(uid); err != nil {
		return err
	}
	if o.Addresses, err = e.network.AddressesOf(uid); err != nil {
		return err
	}
	group, err := e.cgroups.Exists(e.group(uid.Lower()))
	if err != nil {
		return err
	}
	_, statErr := os.Stat(e.pins.Dir(uid))
	if statErr != nil && !errors.Is(statErr, os.ErrNotExist) {
		return statErr
	}
	_, ids := e.ids.First(uid)
	o.Remains = statErr == nil || group || ids || e.network.Holds(uid)
	output, err := e.logs.Kept(uid)
	if err != nil {
		return err
	}
	scratch, err := e.scratchKept(uid)
	if err != nil {
		return err
	}
	secrets, err := e.secrets.Kept(uid)
	o.Logs = output || scratch || secrets
	return err
}

// pinned says whether the namespaces are whole. One that has ids of its own has a user
// namespace with them.
func (e *Engine) pinned(uid id.Sandbox) (bool, error) {
	whole, err := e.pins.Whole(uid)
	want, claimed := e.ids.First(uid)
	if err != nil || !whole || !claimed {
		return whole, err
	}
	first, there, err := e.pins.FirstUser(uid)
	return there && first == want, err
}

// observeContainer asks for the state of one container; nil says that there is
// none any more.
func (e *Engine) observeContainer(ctx context.Context, c *containerd.Client, known *container) (*engine.Container, error) {
	seen := &engine.Container{ID: known.id, Note: known.note}
	var err error
	if seen.OOMKillsBeside, err = e.besideKills(known); err != nil {
		return nil, err
	}
	res, err := c.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: known.id})
	if err != nil {
		if err := errgrpc.ToNative(err); !errdefs.IsNotFound(err) {
			if timedOut(err) && ctx.Err() == nil { // containerd has answered, and says so
				return nil, fmt.Errorf("ask for its task: %w", errSilent)
			}
			return nil, unavailable("ask for its task", err)
		}
		return e.observeWithoutTask(ctx, c, known, seen)
	}
	seen.Task = true
	p := res.GetProcess()
	status := p.GetStatus()
	if status == task.Status_CREATED {
		let, err := e.letGo(known.id, int(p.GetPid()))
		if err != nil {
			return nil, err
		}
		if !let {
			seen.State = engine.Created
			return seen, nil
		}
		status = task.Status_RUNNING
	}
	switch status {
	case task.Status_RUNNING, task.Status_PAUSED, task.Status_PAUSING:
		e.mu.Lock()
		seen.State, seen.PID, seen.Limits = engine.Running, p.GetPid(), known.limits
		e.mu.Unlock()
		if seen.OOMKills, err = e.oomKillsRunning(known); err != nil {
			return nil, err
		}
	case task.Status_STOPPED:
		seen.State = engine.Exited
		if seen.Exit, err = e.exitOf(known, p); err != nil {
			return nil, err
		}
	default:
		return nil, unavailable("ask for its task", fmt.Errorf("the state is %s", status))
	}
	seen.StartedAt, err = e.startedAt(ctx, c, known)
	return seen, err
}

// observeWithoutTask tells a container that was never started from one whose end
// nobody saw, by the record that is written just before the start.
func (e *Engine) observeWithoutTask(ctx context.Context, c *containerd.Client, known *container, seen *engine.Container) (*engine.Container, error) {
	_, err := c.ContainerService().Get(ctx, known.id)
	if errdefs.IsNotFound(err) {
		e.forget(known.id)
		return nil, nil
	}
	if err != nil {
		return nil, unavailable("ask for its record", err)
	}
	started, err := e.startedAt(ctx, c, known)
	if err != nil {
		return nil, err
	}
	if started.IsZero() {
		seen.State = engine.Created
		return seen, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if known.lostAt.IsZero() {
		known.lostAt = now()
	}
	seen.State, seen.StartedAt = engine.Exited, started
	seen.Exit = &engine.Exit{Unknown: true, At: known.lostAt}
	return seen, nil
}

// exitOf says how the process ended.
func (e *Engine) exitOf(known *container, p *task.Process) (*engine.Exit, error) {
	e.mu.Lock()
	exit, lived := known.exit, known.kills
	e.mu.Unlock()
	if exit != nil {
		return exit, nil
	}
	exit = &engine.Exit{Code: p.GetExitStatus(), At: p.GetExitedAt().AsTime()}
	var err error
	if exit.OOMKills, err = e.oomKills(known); err != nil {
		return nil, err
	}
	exit.OOMKilled = lived.ended(exit.Code, exit.OOMKills, exit.At)
	e.mu.Lock()
	known.exit = exit
	e.mu.Unlock()
	return exit, nil
}

// startedAt is when a container was started, zero if never.
func (e *Engine) startedAt(ctx context.Context, c *containerd.Client, known *container) (at time.Time, err error) {
	e.mu.Lock()
	at = known.startedAt
	e.mu.Unlock()
	if !at.IsZero() {
		return at, nil
	}
	record, err := c.SandboxStore().Get(ctx, known.id)
	if errdefs.IsNotFound(err) {
		return at, nil
	}
	if err != nil {
		return at, unavailable("ask for its start", err)
	}
	e.mu.Lock()
	known.startedAt = record.CreatedAt
	e.mu.Unlock()
	return record.CreatedAt, nil
}
