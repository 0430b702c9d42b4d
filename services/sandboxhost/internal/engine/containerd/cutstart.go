package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/logging"
)

// startTask starts a task. The runtime waits in a named pipe, exec.fifo, for the first
// word of the process, which then becomes the container's program, and removes the pipe.
// One that was killed in between, by the death of containerd, leaves the pipe: the
// process runs, a second start takes it for one that does not, and waits for ever.
func (e *Engine) startTask(ctx context.Context, c *container) error {
	return whileSlow(func() error {
		_, err := e.client.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: c.id})
		return err
	}, func() {
		if err := e.finishCutStart(c); err != nil {
			e.log.Warn("start that was cut not finished", logging.Component(c.id), logging.Err(err))
		}
	})
}

// finishCutStart says the first word in place of a process that has said it to an
// earlier start and runs.
func (e *Engine) finishCutStart(c *container) error {
	pid, err := e.mainProcess(c)
	if err != nil || pid == 0 {
		return err
	}
	if runs, err := runsProgram(pid); err != nil || !runs {
		return err
	}
	path := e.startPipe(c.id)
	pipe, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENXIO) {
		return nil // nobody waits
	}
	if err != nil {
		return err
	}
	_, err = pipe.WriteString("0")
	if err = errors.Join(err, pipe.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	e.log.Warn("start that was cut finished", logging.Component(c.id))
	return nil
}

// letGo says of a container of which the shim says that it was not started whether it
// was: the runtime that let its process go has removed the pipe, and was killed before it
// could tell. Its shim says so until it ends, and does all else with it.
func (e *Engine) letGo(containerID string, pid int) (bool, error) {
	path := e.startPipe(containerID)
	_, err := os.Stat(path)
	if err == nil || pid == 0 {
		return false, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("look for %s: %w", path, err)
	}
	return runsProgram(pid)
}

// startPipe is where the first word of a container's process waits.
func (e *Engine) startPipe(containerID string) string {
	return filepath.Join(e.runcFolder(), containerID, "exec.fifo")
}

// runsProgram says of the process of a container whether it is there and no longer the
// runtime's.
func runsProgram(pid int) (bool, error) {
	command, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false, nil // it has ended
	}
	return err == nil && len(command) > 0 && !waitsForStart(command), err
}

// waitsForStart says by the command line of a process whether it is still the runtime's,
// "runc init", and not yet the container's program.
func waitsForStart(command []byte) bool {
	program, rest, _ := bytes.Cut(command, []byte{0})
	return filepath.Base(string(program)) == "runc" && bytes.Equal(rest, []byte("init\x00"))
}
