package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	names "github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// ShimCommand is a pre-stop command that is run by the shim of its container alone, where
// nobody asks containerd any more.
type ShimCommand struct {
	// Bundle is the folder that containerd keeps of the container.
	Bundle string
	// Namespace at containerd.
	Namespace string
	// ContainerID is the id of the container.
	ContainerID string
	// Spec is what the container was made for; it has the command.
	Spec *resourcev1.ContainerSpec
}

// Run runs it with the surroundings of the main process, without output, and returns the
// code that it ended with. One that was begun before goes on, and is waited for. When ctx
// ends, so does the command, by force, and its cause is returned.
func (c ShimCommand) Run(ctx context.Context) (code uint32, err error) {
	known, err := readBootstrap(c.Bundle)
	if err != nil {
		return 0, fmt.Errorf("run command pre-stop in container %s: %w", c.ContainerID, err)
	}
	conn, err := (&net.Dialer{Timeout: healLimit}).DialContext(ctx, "unix", known.socket())
	if err != nil {
		return 0, fault.New(fault.Unavailable, "run command pre-stop in container %s: its shim does not answer: %w", c.ContainerID, err)
	}
	client := ttrpc.NewClient(conn)
	defer func() { err = errors.Join(err, client.Close()) }()
	code, err = c.run(names.WithNamespace(ctx, c.Namespace), taskv3.NewTTRPCTaskClient(client))
	switch {
	case ctx.Err() != nil:
		return 0, fmt.Errorf("run command pre-stop in container %s: %w", c.ContainerID, context.Cause(ctx))
	case err != nil:
		return 0, fmt.Errorf("run command pre-stop in container %s: %w", c.ContainerID, err)
	}
	return code, nil
}

func (c ShimCommand) run(ctx context.Context, shim taskv3.TTRPCTaskService) (uint32, error) {
	process, err := c.process()
	if err != nil {
		return 0, err
	}
	spec, err := typeurl.MarshalAnyToProto(process)
	if err != nil {
		return 0, err
	}
	_, err = shim.Exec(ctx, &taskv3.ExecProcessRequest{ID: c.ContainerID, ExecID: preStopID, Spec: spec})
	if err != nil && !errdefs.IsAlreadyExists(errgrpc.ToNative(err)) {
		return 0, err
	}
	defer c.end(ctx, shim)
	state, err := shim.State(ctx, &taskv3.StateRequest{ID: c.ContainerID, ExecID: preStopID})
	if err != nil {
		return 0, err
	}
	if state.GetPid() == 0 { // not begun by somebody else
		if _, err := shim.Start(ctx, &taskv3.StartRequest{ID: c.ContainerID, ExecID: preStopID}); err != nil {
			return 0, err
		}
	}
	ended, err := shim.Wait(ctx, &taskv3.WaitRequest{ID: c.ContainerID, ExecID: preStopID})
	return ended.GetExitStatus(), err
}

// process is the main process of the container with another command.
func (c ShimCommand) process() (*specs.Process, error) {
	raw, err := os.ReadFile(filepath.Join(c.Bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	var whole specs.Spec
	if err := json.Unmarshal(raw, &whole); err != nil {
		return nil, fmt.Errorf("read %s: %w", c.Bundle, err)
	}
	if whole.Process == nil {
		return nil, fault.New(fault.Invalid, "read %s: there is no process", c.Bundle)
	}
	whole.Process.Args = withSecretEnv(c.Spec, c.Spec.GetPreStop().GetCommand())
	whole.Process.Terminal, whole.Process.ConsoleSize = false, nil
	return whole.Process, nil
}

// end ends the command by force, if it runs. What it leaves ends with the container.
func (c ShimCommand) end(ctx context.Context, shim taskv3.TTRPCTaskService) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healLimit)
	defer cancel()
	_, _ = shim.Kill(ctx, &taskv3.KillRequest{ID: c.ContainerID, ExecID: preStopID, Signal: uint32(syscall.SIGKILL)})
	_, _ = shim.Delete(ctx, &taskv3.DeleteRequest{ID: c.ContainerID, ExecID: preStopID})
}
