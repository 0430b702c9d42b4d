package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/logging"
)

// startLook is how often it is looked why a start takes so long. One takes 13 ms.
const startLook = time.Second

// startTask starts a task. The runtime waits in a named pipe, exec.fifo, for the first
// word of the process, which then becomes the container's program, and removes the pipe.
// One that was killed in between, by the death of containerd, leaves the pipe: the
// process runs, a second start takes it for one that does not, and waits for ever.
func (e *Engine) startTask(ctx context.Context, c *container) error {
	started := make(chan error, 1)
	go func() { // ends with ctx; waited for below
		_, err := e.client.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: c.id})
		started <- err
	}()
	look := time.NewTicker(startLook)
	defer look.Stop()
	for {
		select {
		case err := <-started:
			return err
		case <-look.C:
			if err := e.finishCutStart(c); err != nil {
				e.log.Warn("start that was cut not finished", logging.Component(c.id), logging.Err(err))
			}
		}
	}
}

// finishCutStart says the first word in place of a process that has said it to an
// earlier start and runs.
func (e *Engine) finishCutStart(c *container) error {
	pid, err := e.mainProcess(c)
	if err != nil || pid == 0 {
		return err
	}
	command, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil // it has ended
	}
	if err != nil {
		return err
	}
	if waitsForStart(command) {
		return nil
	}
	path := filepath.Join(e.runcFolder(), c.id, "exec.fifo")
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

// waitsForStart says by the command line of a process whether it is still the runtime's,
// "runc init", and not yet the container's program.
func waitsForStart(command []byte) bool {
	program, rest, _ := bytes.Cut(command, []byte{0})
	return filepath.Base(string(program)) == "runc" && bytes.Equal(rest, []byte("init\x00"))
}
