package containerd

import (
	"context"

	"staddle.internal/services/sandboxhost/internal/inroot"
)

// Files opens the root of a container that runs, as its main process sees it, and tells who
// that process is. The caller closes it. Conflict with reason NOT_RUNNING if it does not run.
func (e *Engine) Files(ctx context.Context, containerID string) (*inroot.Root, inroot.Identity, error) {
	pid, err := e.runningPID(ctx, containerID)
	if err != nil {
		return nil, inroot.Identity{}, err
	}
	who, err := inroot.IdentityOf(int(pid))
	if err != nil {
		return nil, inroot.Identity{}, notRunning(containerID)
	}
	// It also makes sure that the number was still that of the container.
	root, err := e.rootOf(ctx, containerID)
	return root, who, err
}
