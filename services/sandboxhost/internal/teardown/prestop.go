package teardown

import (
	"context"
	"path/filepath"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/engine/containerd"
	"staddle.internal/services/sandboxhost/internal/host"
)

// preStop runs the pre-stop command of a container by the container's shim, which needs no
// containerd. Its time comes out of the container's, of which it leaves the end to the signal.
// However it ends, the stop goes on.
func (d down) preStop(ctx context.Context, c host.ContainerEnding, until time.Time) {
	whole := time.Until(until)
	ctx, cancel := context.WithTimeout(ctx, whole-host.PreStopReserve(whole))
	defer cancel()
	code, err := d.runPreStop(ctx, c)
	if err != nil {
		d.log.Warn("pre-stop command not run to its end", logging.Component(c.ID), logging.Err(err))
		return
	}
	d.log.Info("pre-stop command ended", logging.Component(c.ID), logging.ExitCode(int(code)))
}

func (d down) runPreStop(ctx context.Context, c host.ContainerEnding) (code uint32, err error) {
	shims, err := d.groups.Processes(filepath.Join(d.cfg.Node.Sandboxes.CgroupParent, engine.ShimGroup))
	if err != nil {
		return 0, err
	}
	for _, pid := range shims {
		if bundle := engine.Bundle(pid, c.ID); bundle != "" {
			return containerd.ShimCommand{Bundle: bundle, Namespace: d.cfg.Node.Containerd.Namespace, ContainerID: c.ID, Spec: c.PreStop}.Run(ctx)
		}
	}
	return 0, fault.New(fault.Unavailable, "no shim of this node has it")
}
