package mem

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
)

// Exec implements engine.Engine. Commands are those of a container; any other ends
// with code 0.
func (e *Engine) Exec(ctx context.Context, cmd engine.Command) (engine.CommandResult, error) {
	if e.OnExec != nil {
		return e.OnExec(ctx, cmd)
	}
	if !e.runs(cmd.ContainerID) {
		return engine.CommandResult{}, fault.New(fault.NotFound, "run command %s in container %s: it does not run", cmd.ID, cmd.ContainerID)
	}
	switch {
	case cmd.Args[0] == CommandHang:
		<-ctx.Done()
		return engine.CommandResult{}, context.Cause(ctx)
	case cmd.Args[0] == CommandAbsent:
		return engine.CommandResult{}, fault.New(fault.NotFound, "run command %s: %s is not in the image", cmd.ID, CommandAbsent)
	case cmd.Args[0] == CommandExit && len(cmd.Args) > 1:
		code, err := strconv.ParseUint(cmd.Args[1], 10, 8)
		if err != nil {
			return engine.CommandResult{}, fault.New(fault.Invalid, "run command %s: %w", cmd.ID, err)
		}
		return engine.CommandResult{Code: uint32(code)}, nil
	}
	return engine.CommandResult{}, nil
}

func (e *Engine) runs(key string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.sandboxes {
		if c := s.containers[key]; c != nil {
			return c.State == engine.Running
		}
	}
	return false
}

// preStop runs the pre-stop command of a container.
func (e *Engine) preStop(ctx context.Context, uid id.Sandbox, key string) error {
	e.mu.Lock()
	var args []string
	if c := e.sandbox(uid).containers[key]; c != nil && c.State == engine.Running {
		args = c.Made().GetPreStop().GetCommand()
	}
	if len(args) > 0 {
		e.preStops[key]++
	}
	e.mu.Unlock()
	if len(args) == 0 {
		return nil
	}
	res, err := e.Exec(ctx, engine.Command{ContainerID: key, ID: "pre-stop", Args: args, Adopt: true})
	if err == nil && res.Code != 0 {
		err = fault.New(fault.Invalid, "run command pre-stop in container %s: it ended with code %d", key, res.Code)
	}
	return err
}

// PreStops is how often the pre-stop command of each container was run, by id.
func (e *Engine) PreStops() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	counts := make(map[string]int, len(e.preStops))
	for key, n := range e.preStops {
		counts[key] = n
	}
	return counts
}

// Listen lets somebody wait inside all sandboxes, in place of who waited before.
func (e *Engine) Listen(listeners ...engine.Listener) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listeners = listeners
}

// Listeners implements engine.Engine.
func (e *Engine) Listeners(context.Context, id.Sandbox) ([]engine.Listener, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.deaf != nil {
		return nil, e.deaf
	}
	return slices.Clone(e.listeners), nil
}

// Dial implements engine.Engine. Who waits at the port accepts, and says nothing.
func (e *Engine) Dial(_ context.Context, _ id.Sandbox, to netip.AddrPort) (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.deaf != nil {
		return nil, e.deaf
	}
	for _, l := range e.listeners {
		if !l.UDP && l.Address.Port() == to.Port() {
			here, there := net.Pipe()
			return here, there.Close()
		}
	}
	return nil, errors.New("connection refused")
}
