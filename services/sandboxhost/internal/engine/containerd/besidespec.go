package containerd

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/moby/sys/user"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/inroot"
)

// besideSpec is the process of b: that of the container with what b says otherwise, so
// that limits, capabilities and all that confines it are the same.
func (e *Engine) besideSpec(ctx context.Context, record containers.Container, made *resourcev1.ContainerSpec, b engine.Beside) (*specs.Process, error) {
	whole := &specs.Spec{}
	if err := typeurl.UnmarshalTo(record.Spec, whole); err != nil {
		return nil, fmt.Errorf("read its spec: %w", err)
	}
	main := whole.Process.User
	who := main
	if b.User != "" {
		found, err := e.besideUser(ctx, b.ContainerID, b.User)
		if err != nil {
			return nil, err
		}
		who = found
		in := input{id: b.ContainerID, container: made, user: who, sandbox: e.known(b.ContainerID).note.GetWish().GetSpec()}
		if err := in.checkUser(); err != nil {
			return nil, err
		}
		if err := in.checkMapped(); err != nil {
			return nil, err
		}
	}
	args := b.Args
	if who.UID == main.UID || who.UID == 0 { // the only ones who may read the values
		args = withSecretEnv(made, args)
	}
	return beside(whole.Process, b, who, args), nil
}

// beside joins the process of a container with what is asked for. It is pure, and does not change
// main.
func beside(main *specs.Process, b engine.Beside, who specs.User, args []string) *specs.Process {
	p := *main
	p.Args, p.User = args, who
	p.Terminal, p.ConsoleSize = b.Terminal != nil, nil
	if b.Terminal != nil {
		p.ConsoleSize = &specs.Box{Width: uint(b.Terminal.Columns), Height: uint(b.Terminal.Rows)}
	}
	if b.Dir != "" {
		p.Cwd = path.Clean(b.Dir)
	}
	p.Env = slices.Clone(main.Env)
	if b.User != "" { // the runtime looks it up for who it is
		p.Env = slices.DeleteFunc(p.Env, func(entry string) bool { return strings.HasPrefix(entry, "HOME=") })
	}
	if p.Terminal && !slices.ContainsFunc(p.Env, func(entry string) bool { return strings.HasPrefix(entry, "TERM=") }) {
		p.Env = append(p.Env, "TERM=xterm")
	}
	for _, entry := range b.Env {
		name, _, _ := strings.Cut(entry, "=")
		p.Env = slices.DeleteFunc(p.Env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		p.Env = append(p.Env, entry)
	}
	return &p
}

// besideUser looks a user up in the container as it is now: it may have made
// some since it was started.
func (e *Engine) besideUser(ctx context.Context, containerID, name string) (who specs.User, err error) {
	root, err := e.rootOf(ctx, containerID)
	if err != nil {
		return who, err
	}
	defer func() {
		if closeErr := root.Close(); err == nil {
			err = closeErr
		}
	}()
	passwd, err := root.ReadFile("/etc/passwd", maxAccounts)
	if err != nil {
		return who, fmt.Errorf("read accounts: %w", err)
	}
	group, err := root.ReadFile("/etc/group", maxAccounts)
	if err != nil {
		return who, fmt.Errorf("read accounts: %w", err)
	}
	found, err := user.GetExecUser(name, &user.ExecUser{Home: "/"}, bytes.NewReader(passwd), bytes.NewReader(group))
	if err != nil {
		return who, fault.WithReason(fault.New(fault.Invalid, "find user %q in container %s: %w", name, containerID, err), "NO_SUCH_USER")
	}
	who = specs.User{UID: uint32(found.Uid), GID: uint32(found.Gid)}
	for _, gid := range found.Sgids {
		who.AdditionalGids = append(who.AdditionalGids, uint32(gid))
	}
	return who, nil
}

// rootOf opens the root folder of a container that runs. The caller closes it.
func (e *Engine) rootOf(ctx context.Context, containerID string) (*inroot.Root, error) {
	pid, err := e.runningPID(ctx, containerID)
	if err != nil {
		return nil, err
	}
	root, err := inroot.OfProcess(int(pid))
	if err != nil {
		return nil, notRunning(containerID)
	}
	// A number may be given to another process: not while this one is known to live.
	if again, err := e.runningPID(ctx, containerID); err != nil || again != pid {
		_ = root.Close() // nothing was done with it
		return nil, notRunning(containerID)
	}
	return root, nil
}

// runningPID is the main process of a container that runs.
func (e *Engine) runningPID(ctx context.Context, containerID string) (uint32, error) {
	res, err := e.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: containerID})
	if err != nil {
		return 0, asked(ctx, "look at container "+containerID, errgrpc.ToNative(err))
	}
	if res.GetProcess().GetStatus() != task.Status_RUNNING {
		return 0, notRunning(containerID)
	}
	return res.GetProcess().GetPid(), nil
}

func notRunning(containerID string) error {
	return fault.WithReason(fault.New(fault.Conflict, "container %s does not run", containerID), "NOT_RUNNING")
}
