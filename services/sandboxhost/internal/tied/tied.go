// Package tied ends calls with the attempt of the sandbox that they are about.
//
// What a call holds open inside of a sandbox, such as a socket or a folder, keeps that from
// being taken down for as long as somebody elsewhere holds on to the call. So each such call
// is entered here, and its context ends when its sandbox is not as the call found it any
// more. It must hold no rule about how sandboxes live. It is used by the services that let
// people into sandboxes.
package tied

import (
	"context"
	"strings"
	"sync"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/watch"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// errEnded ends the calls about an attempt that has ended.
var errEnded = fault.WithReason(fault.New(fault.Unavailable, "the sandbox has ended, or was started anew"), "SANDBOX_ENDED")

// errStopping ends all when the host stops.
var errStopping = fault.WithReason(fault.New(fault.Unavailable, "the host of the sandbox stops"), "SANDBOX_ENDED")

// Host tells how sandboxes are; a *host.Host.
type Host interface {
	Get(uid id.Sandbox) (*sandboxhostv1.SandboxState, error)
	States() *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]
}

// Limit is how many calls there may be.
type Limit struct {
	// Sandbox is how many about one sandbox, and Node how many at all. 0 means as many as come.
	Sandbox, Node int
	// What they are, for the refusal, such as "connections", and the reason of it for machines.
	What, Reason string
}

// Calls are the calls of one service. The zero value is not usable.
type Calls struct {
	host  Host
	limit Limit

	mu   sync.Mutex // guards what follows
	open map[id.Sandbox]map[*call]bool
	all  int
	over bool // no more may be entered
	left sync.WaitGroup
}

type call struct {
	attempt uint64
	cancel  context.CancelCauseFunc
}

// New returns calls, of which none is ended before Run.
func New(host Host, limit Limit) *Calls {
	return &Calls{host: host, limit: limit, open: map[id.Sandbox]map[*call]bool{}}
}

// Run ends calls whose attempts have ended, and all when ctx does. It returns when all have left.
func (c *Calls) Run(ctx context.Context, ready func()) error {
	ready()
	for ctx.Err() == nil { // begun anew when it was too slow
		for ev := range c.host.States().Subscribe(ctx) {
			if ev.Kind != watch.Synced {
				c.look(ev.Key, ev.Value, ev.Kind == watch.Deleted)
			}
		}
	}
	c.endAll()
	c.left.Wait()
	return context.Cause(ctx)
}

func (c *Calls) endAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for _, calls := range c.open {
		for l := range calls {
			l.cancel(errStopping)
		}
	}
}

// look ends the calls about a sandbox that is not as they found it.
func (c *Calls) look(uid id.Sandbox, state *sandboxhostv1.SandboxState, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.open[uid] {
		if gone || !Runs(state) || l.attempt != state.GetStatus().GetAttempt() {
			l.cancel(errEnded)
		}
	}
}

// Enter begins a call about a sandbox that runs. The context ends with its attempt, and the
// caller calls leave when the call holds nothing any more. Conflict with reason NOT_RUNNING
// if no container of it runs; Exhausted if there are too many.
func (c *Calls) Enter(ctx context.Context, uid id.Sandbox) (_ context.Context, _ *sandboxhostv1.SandboxState, leave func(), err error) {
	state, err := c.running(uid)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	l := &call{state.GetStatus().GetAttempt(), cancel}
	if err := c.add(uid, l); err != nil {
		cancel(nil)
		return nil, nil, nil, err
	}
	leave = func() {
		cancel(nil)
		c.drop(uid, l)
	}
	now, err := c.running(uid) // it may have ended before its end could be told of
	if err == nil && now.GetStatus().GetAttempt() != l.attempt {
		err = errEnded
	}
	if err != nil {
		leave()
		return nil, nil, nil, err
	}
	return ctx, state, leave, nil
}

func (c *Calls) running(uid id.Sandbox) (*sandboxhostv1.SandboxState, error) {
	state, err := c.host.Get(uid)
	if err == nil && !Runs(state) {
		err = fault.WithReason(fault.New(fault.Conflict, "sandbox %s: no container of it runs, its phase is %s",
			state.GetName(), strings.TrimPrefix(state.GetStatus().GetPhase().String(), "SANDBOX_PHASE_")), "NOT_RUNNING")
	}
	return state, err
}

func (c *Calls) add(uid id.Sandbox, l *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over:
		return errStopping
	case c.limit.Sandbox > 0 && len(c.open[uid]) >= c.limit.Sandbox:
		return fault.WithReason(fault.New(fault.Exhausted, "sandbox %s: there are %d %s, the most that there may be", uid, c.limit.Sandbox, c.limit.What), c.limit.Reason)
	case c.limit.Node > 0 && c.all >= c.limit.Node:
		return fault.WithReason(fault.New(fault.Exhausted, "on this node are %d %s, the most that there may be", c.limit.Node, c.limit.What), c.limit.Reason)
	}
	if c.open[uid] == nil {
		c.open[uid] = map[*call]bool{}
	}
	c.open[uid][l] = true
	c.all++
	c.left.Add(1)
	return nil
}

func (c *Calls) drop(uid id.Sandbox, l *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.left.Done()
	c.all--
	if delete(c.open[uid], l); len(c.open[uid]) == 0 {
		delete(c.open, uid)
	}
}

// Runs says whether any container of a sandbox runs.
func Runs(state *sandboxhostv1.SandboxState) bool {
	for _, c := range state.GetStatus().GetContainers() {
		if c.GetPid() != 0 && c.GetExit() == nil {
			return state.GetStatus().GetTornDownAt() == nil
		}
	}
	return false
}
