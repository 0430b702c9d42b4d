package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
)

const (
	// preStopID is the id of pre-stop commands, of which each container has one.
	preStopID = "pre-stop"
	// commandOutput is how much is kept of what a command prints, in bytes.
	commandOutput = 1 << 10
	// commandEndLimit bounds the removal of a command.
	commandEndLimit = 5 * time.Second
)

// preStop runs the pre-stop command of a container.
func (e *Engine) preStop(ctx context.Context, containerID string) error {
	args := e.madeFor(containerID).GetPreStop().GetCommand()
	if len(args) == 0 {
		return nil
	}
	res, err := e.Exec(ctx, engine.Command{ContainerID: containerID, ID: preStopID, Args: args, Adopt: true})
	switch {
	case err != nil && ctx.Err() == nil && e.ended(ctx, containerID):
		return nil
	case err != nil:
		return err
	case res.OOMKilled:
		return fault.New(fault.Invalid, "run command pre-stop in container %s: it was ended for using more memory than the limit of its container", containerID)
	case res.Code != 0:
		return fault.New(fault.Invalid, "run command pre-stop in container %s: it ended with code %d: %s", containerID, res.Code, res.Output)
	}
	return nil
}

// madeFor is the part of the spec that a container was made for, nil if that is not
// known.
func (e *Engine) madeFor(containerID string) *resourcev1.ContainerSpec {
	c := e.known(containerID)
	if c == nil {
		return nil
	}
	return engine.Container{Note: c.note}.Made()
}

// ended says whether the main process of a container is known not to run.
func (e *Engine) ended(ctx context.Context, containerID string) bool {
	res, err := e.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: containerID})
	if err != nil {
		return errdefs.IsNotFound(errgrpc.ToNative(err))
	}
	return res.GetProcess().GetStatus() == task.Status_STOPPED
}

// Exec runs a command in a container. See engine.Engine.
func (e *Engine) Exec(ctx context.Context, cmd engine.Command) (engine.CommandResult, error) {
	client, err := e.ask()
	if err != nil {
		return engine.CommandResult{}, err
	}
	doing := fmt.Sprintf("run command %s in container %s", cmd.ID, cmd.ContainerID)
	ctr, err := client.LoadContainer(ctx, cmd.ContainerID)
	if err != nil {
		return engine.CommandResult{}, asked(ctx, doing, err)
	}
	main, err := ctr.Task(ctx, nil)
	if err != nil {
		return engine.CommandResult{}, asked(ctx, doing, err)
	}
	before, err := e.killsBefore(cmd.ContainerID)
	if err != nil {
		return engine.CommandResult{}, fmt.Errorf("%s: %w", doing, err)
	}
	out := &clipped{}
	p, fresh, err := e.command(ctx, ctr, main, cmd, out)
	if err != nil {
		return engine.CommandResult{}, asked(ctx, doing, err)
	}
	code, err := e.runCommand(ctx, p, fresh, cmd)
	if err == nil {
		err = neverBegun(e.madeFor(cmd.ContainerID), code, out.String())
	}
	if err != nil {
		return engine.CommandResult{}, fmt.Errorf("%s: %w", doing, err)
	}
	return engine.CommandResult{Code: code, OOMKilled: e.killedBeside(cmd.ContainerID, code, before), Output: out.String()}, nil
}

// command makes the process of a command, or finds the one that is there already. What
// an earlier life of ours has left of another is removed.
func (e *Engine) command(
	ctx context.Context, ctr containerd.Container, main containerd.Task, cmd engine.Command, out *clipped,
) (p containerd.Process, fresh bool, err error) {
	spec, err := ctr.Spec(ctx)
	if err != nil {
		return nil, false, err
	}
	dir := filepath.Join(e.temp(), "commands")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, false, err
	}
	spec.Process.Args = withSecretEnv(e.madeFor(cmd.ContainerID), cmd.Args)
	spec.Process.Terminal, spec.Process.ConsoleSize = false, nil
	make := func() (containerd.Process, error) {
		return main.Exec(ctx, cmd.ID, spec.Process, cio.NewCreator(cio.WithStreams(nil, out, out), cio.WithFIFODir(dir)))
	}
	p, err = make()
	if !errdefs.IsAlreadyExists(err) {
		return p, true, err
	}
	if p, err = main.LoadProcess(ctx, cmd.ID, nil); err != nil {
		return nil, false, err
	}
	status, err := p.Status(ctx)
	if err != nil || cmd.Adopt && status.Status != containerd.Created {
		return p, false, err
	}
	if err := e.endCommand(ctx, cmd); err != nil {
		return nil, false, err
	}
	p, err = make()
	return p, true, err
}

// runCommand starts a command, waits for its end and removes it. One that ctx ends is
// ended by force; one that is to be found again is so only by a deadline.
func (e *Engine) runCommand(ctx context.Context, p containerd.Process, fresh bool, cmd engine.Command) (uint32, error) {
	exited, err := p.Wait(ctx)
	if err == nil && fresh {
		err = p.Start(ctx)
	}
	if err != nil && ctx.Err() == nil {
		return 0, errors.Join(refused("start it", err), e.endCommand(ctx, cmd))
	}
	status := <-exited // ends with ctx
	if ctx.Err() != nil && cmd.Adopt && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return 0, context.Cause(ctx)
	}
	endErr := e.endCommand(ctx, cmd)
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case status.Error() != nil:
		return 0, unavailable("wait for its end", status.Error())
	case endErr != nil:
		e.log.Warn("command not removed", logging.Component(cmd.ContainerID), logging.Err(endErr))
	}
	return status.ExitCode(), nil
}

// endCommand ends a command with all that it has started, and removes it.
func (e *Engine) endCommand(ctx context.Context, cmd engine.Command) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandEndLimit)
	defer cancel()
	return e.endExecuted(ctx, cmd.ContainerID, cmd.ID)
}

// endExecuted ends a process that was executed beside the main one, with all that it
// has started, and removes it. One that is not there is success.
func (e *Engine) endExecuted(ctx context.Context, containerID, processID string) error {
	service := e.client.TaskService()
	status, err := service.Get(ctx, &tasks.GetRequest{ContainerID: containerID, ExecID: processID})
	if err != nil {
		if errdefs.IsNotFound(errgrpc.ToNative(err)) {
			return nil
		}
		return unavailable("ask for it", errgrpc.ToNative(err))
	}
	pid := int(status.GetProcess().GetPid())
	if c := e.known(containerID); c != nil && pid > 0 {
		if err := e.killStarted(c.group, pid); err != nil {
			return err
		}
	}
	if status.GetProcess().GetStatus() == task.Status_RUNNING {
		_, err := service.Kill(ctx, &tasks.KillRequest{ContainerID: containerID, ExecID: processID, Signal: uint32(syscall.SIGKILL)})
		if err != nil && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
			return unavailable("kill it", errgrpc.ToNative(err))
		}
		_, err = service.Wait(ctx, &tasks.WaitRequest{ContainerID: containerID, ExecID: processID})
		if err != nil && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
			return unavailable("wait for its end", errgrpc.ToNative(err))
		}
	}
	return e.removeExecuted(ctx, containerID, processID)
}

// removeExecuted removes such a process, which has ended.
func (e *Engine) removeExecuted(ctx context.Context, containerID, processID string) error {
	_, err := e.client.TaskService().DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: containerID, ExecID: processID})
	if err != nil && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		return unavailable("remove it", errgrpc.ToNative(err))
	}
	return nil
}

// asked gives an error of a question about a container its kind: what ctx ended is
// that, and a container that is not there is not found.
func asked(ctx context.Context, doing string, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	case errdefs.IsNotFound(err):
		return fault.New(fault.NotFound, "%s: %s", doing, brief(err))
	case fault.KindOf(err) != fault.Internal:
		return fmt.Errorf("%s: %w", doing, err)
	}
	return refused(doing, err)
}

// clipped keeps the beginning of what is written to it.
type clipped struct {
	mu  sync.Mutex // guards buf: both streams are written at once
	buf []byte
}

// Write takes all and keeps what has room.
func (c *clipped) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf = append(c.buf, b[:min(len(b), commandOutput-len(c.buf))]...)
	return len(b), nil
}

// String is what was kept.
func (c *clipped) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.buf)
}
