package containerd

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/inlet"
)

// attached is a hold on the main process of a container.
type attached struct {
	e     *Engine
	main  engine.Main
	inlet *inlet.Inlet // nil without input
}

var _ engine.Attached = (*attached)(nil)

// Attach takes hold of the main process of a container; also of one that has ended, to which
// nothing arrives any more. With input, Conflict with reason NOT_RUNNING if the container is gone, and
// with reason STDIN_ENDED or INPUT_LOST as Inlets.Open.
func (e *Engine) Attach(ctx context.Context, m engine.Main) (engine.Attached, error) {
	a := &attached{e: e, main: m}
	if m.Input == nil {
		return a, nil
	}
	var err error
	a.inlet, err = e.inlets.Open(ctx, e.inlet(&container{id: m.ContainerID, uid: m.UID}), *m.Input)
	if errors.Is(err, os.ErrNotExist) {
		return nil, notRunning(m.ContainerID)
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// Stdin is what it reads.
func (a *attached) Stdin() io.Writer {
	if a.inlet == nil {
		return nil
	}
	return a.inlet
}

// Taken is how much input was taken.
func (a *attached) Taken() uint64 {
	if a.inlet == nil {
		return 0
	}
	return a.inlet.Received()
}

// EndStdin ends its input for good.
func (a *attached) EndStdin(ctx context.Context) error {
	if a.main.Terminal {
		return fault.New(fault.Invalid, "stdin_end: the standard input of a terminal has no end; send Ctrl-D, the byte 4")
	}
	if err := a.inlet.End(); err != nil {
		return err
	}
	return a.e.closeStdin(ctx, a.main.ContainerID)
}

// closeStdin has the shim let go of a main process's input.
func (e *Engine) closeStdin(ctx context.Context, containerID string) error {
	_, err := e.client.TaskService().CloseIO(ctx, &tasks.CloseIORequest{ContainerID: containerID, Stdin: true})
	return unlessEnded("end standard input of container "+containerID, err)
}

// Resize gives its terminal another size.
func (a *attached) Resize(ctx context.Context, size engine.TerminalSize) error {
	if !a.main.Terminal {
		return nil
	}
	_, err := a.e.client.TaskService().ResizePty(ctx, &tasks.ResizePtyRequest{
		ContainerID: a.main.ContainerID, Width: uint32(size.Columns), Height: uint32(size.Rows),
	})
	return unlessEnded("resize terminal of container "+a.main.ContainerID, err)
}

// Signal sends a signal to it.
func (a *attached) Signal(ctx context.Context, signal syscall.Signal) error {
	_, err := a.e.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: a.main.ContainerID, Signal: uint32(signal)})
	return unlessEnded("signal container "+a.main.ContainerID, err)
}

// Close lets go of it.
func (a *attached) Close() error {
	if a.inlet == nil {
		return nil
	}
	return a.inlet.Close()
}

// unlessEnded takes an error about a process that has ended for success.
func unlessEnded(doing string, err error) error {
	native := errgrpc.ToNative(err)
	if err == nil || errdefs.IsNotFound(native) || errdefs.IsFailedPrecondition(native) ||
		strings.Contains(native.Error(), "stopped") || strings.Contains(native.Error(), "already finished") {
		return nil
	}
	return unavailable(doing, native)
}

// AdoptInput takes over the input that an earlier life of ours has left on its way, and has shims
// let go of what was ended for good. It must be called once, before Attach.
func (e *Engine) AdoptInput(ctx context.Context) error {
	var errs []error
	for _, containerID := range e.inlets.Adopt() {
		uid, _, _, ok := splitID(containerID)
		c := &container{id: containerID, uid: uid}
		if _, err := os.Lstat(e.stdin(c)); !ok || errors.Is(err, os.ErrNotExist) { // its container is gone
			errs = append(errs, e.inlets.Remove(e.inlet(c)))
		}
	}
	uids, err := e.pins.Sandboxes()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, uid := range uids {
		names, err := entries(filepath.Join(e.pins.Dir(uid), stdinFolder))
		errs = append(errs, err)
		for _, name := range names {
			containerID, journal := strings.CutSuffix(name, inlet.Suffix)
			if !journal {
				continue
			}
			ended, err := inlet.Ended(e.inlet(&container{id: containerID, uid: uid}))
			if ended {
				err = e.closeStdin(ctx, containerID)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
