package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
)

const (
	// besideFolder is the folder, in that of a sandbox, of the processes beside the main ones:
	// <container>/<process> for each. By it those are found again that an
	// earlier life of ours has left.
	besideFolder = "beside"
	// attachedPrefix and detachedPrefix begin the names of such processes.
	attachedPrefix, detachedPrefix = "exec-", "detached-"
	// endOfText is what a person types for the end of input: Ctrl-D.
	endOfText = "\x04"
	// mainEndLimit is how long is waited to find that a container has ended with a
	// process of it: the kernel tells of both at once.
	mainEndLimit = time.Second
	// beginLimit bounds making and starting one, which takes a tenth of a second: a shim
	// that takes longer hangs.
	beginLimit = 10 * time.Second
)

// executed is one beside the main process of its container.
type executed struct {
	e           *Engine
	containerID string
	id          string
	terminal    bool
	pipes       *pipes
	killsBefore uint64 // for memory, in its container, before it began; the most if nobody knows

	mu    sync.Mutex // guards what follows
	ended bool       // by itself
	line  bool       // a line was begun in the terminal
}

var _ engine.Process = (*executed)(nil)

// besideDir is the folder of a process.
func (e *Engine) besideDir(uid id.Sandbox, containerID, processID string) string {
	return filepath.Join(e.pins.Dir(uid), besideFolder, containerID, processID)
}

// Open begins a process in a container that runs. See engine.Beside. NotFound: there is no
// such container or program. Invalid: it cannot be run. Conflict with reason NOT_RUNNING:
// the container does not run. Unavailable with reason SHIM_SILENT: its shim does not answer.
func (e *Engine) Open(ctx context.Context, b engine.Beside) (engine.Process, error) {
	client, err := e.ask()
	if err != nil {
		return nil, err
	}
	doing := "run " + b.Args[0] + " in container " + b.ContainerID
	known := e.known(b.ContainerID)
	if known == nil || known.note == nil {
		return nil, fmt.Errorf("%s: %w", doing, notRunning(b.ContainerID))
	}
	record, err := client.ContainerService().Get(ctx, b.ContainerID)
	if err != nil {
		return nil, asked(ctx, doing, err)
	}
	spec, err := e.besideSpec(ctx, record, engine.Container{Note: known.note}.Made(), b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	wire, err := typeurl.MarshalAnyToProto(spec)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	prefix := attachedPrefix
	if b.Detached {
		prefix = detachedPrefix
	}
	p := &executed{e: e, containerID: b.ContainerID, id: prefix + strings.ToLower(id.New()), terminal: b.Terminal != nil}
	if p.killsBefore, err = e.killsBefore(b.ContainerID); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	p.pipes, err = makePipes(e.besideDir(b.UID, b.ContainerID, p.id), b.Stdin, !b.Detached, !b.Detached && !p.terminal)
	if err == nil {
		err = p.start(ctx, &tasks.ExecProcessRequest{
			ContainerID: p.containerID, ExecID: p.id, Stdin: p.pipes.in, Stdout: p.pipes.out, Stderr: p.pipes.err,
			Terminal: p.terminal, Spec: wire,
		})
	}
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandEndLimit)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("%s: %w", doing, err), p.Close(closing))
	}
	return p, nil
}

// start makes the process and starts it.
func (p *executed) start(ctx context.Context, request *tasks.ExecProcessRequest) error {
	service := p.e.client.TaskService()
	limited, cancel := context.WithTimeoutCause(ctx, beginLimit, fault.WithReason(errSilent, "SHIM_SILENT"))
	defer cancel()
	if _, err := service.Exec(limited, request); err != nil {
		return p.notBegun(limited, err)
	}
	if _, err := service.Start(limited, &tasks.StartRequest{ContainerID: p.containerID, ExecID: p.id}); err != nil {
		return p.notBegun(limited, err)
	}
	return p.pipes.connected(ctx)
}

// notBegun gives the error of a process that was not begun its kind.
func (p *executed) notBegun(ctx context.Context, err error) error {
	native := errgrpc.ToNative(err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case p.e.ended(ctx, p.containerID), errdefs.IsNotFound(native):
		return notRunning(p.containerID)
	}
	return refused("start it", native)
}

// Stdin is what it reads.
func (p *executed) Stdin() io.Writer {
	if p.pipes.stdin == nil {
		return nil
	}
	return writer(p.write)
}

// writer is a function that writes.
type writer func(b []byte) (int, error)

// Write writes.
func (w writer) Write(b []byte) (int, error) { return w(b) }

func (p *executed) write(b []byte) (int, error) {
	n, err := p.pipes.stdin.Write(b)
	if n > 0 {
		p.mu.Lock()
		p.line = b[n-1] != '\n' && b[n-1] != '\r'
		p.mu.Unlock()
	}
	return n, err
}

// EndStdin ends its input. A terminal has no end of its own: what a person would type
// there stands for it, twice where a line was begun, since the first only hands
// that over.
func (p *executed) EndStdin(ctx context.Context) error {
	if p.pipes.stdin == nil {
		return nil
	}
	if p.terminal {
		end := endOfText
		p.mu.Lock()
		if p.line {
			end += endOfText
		}
		p.mu.Unlock()
		_, err := p.pipes.stdin.WriteString(end)
		if errors.Is(err, syscall.EPIPE) { // it has ended
			return nil
		}
		return err
	}
	if err := closeFile(p.pipes.stdin); err != nil {
		return err
	}
	_, err := p.e.client.TaskService().CloseIO(ctx, &tasks.CloseIORequest{ContainerID: p.containerID, ExecID: p.id, Stdin: true})
	return unlessEnded("end its input", err)
}

// Stdout is what it writes, and all of it in a terminal.
func (p *executed) Stdout() io.Reader { return reader(p.pipes.stdout) }

// Stderr is what it writes to standard error.
func (p *executed) Stderr() io.Reader { return reader(p.pipes.stderr) }

func reader(o *outlet) io.Reader {
	if o == nil {
		return nil
	}
	return o
}

// Drain has the outputs end soon.
func (p *executed) Drain() {
	p.pipes.stdout.drain()
	p.pipes.stderr.drain()
}

// Resize gives its terminal another size.
func (p *executed) Resize(ctx context.Context, size engine.TerminalSize) error {
	if !p.terminal {
		return nil
	}
	_, err := p.e.client.TaskService().ResizePty(ctx, &tasks.ResizePtyRequest{
		ContainerID: p.containerID, ExecID: p.id, Width: uint32(size.Columns), Height: uint32(size.Rows),
	})
	return unlessEnded("resize its terminal", err)
}

// Signal sends a signal to it.
func (p *executed) Signal(ctx context.Context, signal syscall.Signal) error {
	_, err := p.e.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: p.containerID, ExecID: p.id, Signal: uint32(signal)})
	return unlessEnded("signal it", err)
}

// Wait waits for its end, over the absence of containerd: the shim keeps it.
func (p *executed) Wait(ctx context.Context) (engine.Ended, error) {
	for try := 1; ; try++ {
		res, err := p.e.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: p.containerID, ExecID: p.id})
		switch {
		case err == nil:
			p.mu.Lock()
			p.ended = true
			p.mu.Unlock()
			ended := engine.Ended{Code: res.GetExitStatus(), ContainerEnded: p.endedWithContainer(ctx, res.GetExitStatus())}
			ended.OOMKilled = !ended.ContainerEnded && p.e.killedBeside(p.containerID, ended.Code, p.killsBefore)
			return ended, nil
		case ctx.Err() != nil:
			return engine.Ended{}, context.Cause(ctx)
		case errdefs.IsNotFound(errgrpc.ToNative(err)):
			return engine.Ended{}, fault.WithReason(fault.New(fault.Unavailable,
				"wait for a process in container %s: its container is gone, and nobody can tell how it ended", p.containerID), "EXIT_UNKNOWN")
		}
		if err := backoff.Wait(ctx, again.Delay(try, rand.Float64())); err != nil {
			return engine.Ended{}, err
		}
	}
}

// endedWithContainer says of one that was ended by force whether its container was.
func (p *executed) endedWithContainer(ctx context.Context, code uint32) bool {
	if code != uint32(signalled+syscall.SIGKILL) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, mainEndLimit)
	defer cancel()
	_, err := p.e.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: p.containerID})
	return err == nil || errdefs.IsNotFound(errgrpc.ToNative(err))
}

// signalled is added to the number of a signal for the code of what it ended.
const signalled = 128

// Close ends it if it has not ended by itself, and removes what was made for it.
func (p *executed) Close(ctx context.Context) error {
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	var err error
	if ended {
		err = p.e.removeExecuted(ctx, p.containerID, p.id)
	} else {
		p.pipes.discard()
		err = p.e.endExecuted(ctx, p.containerID, p.id)
	}
	if err != nil { // its folder stays, by which it is found again
		return fmt.Errorf("end process %s in container %s: %w", p.id, p.containerID, err)
	}
	return p.pipes.close()
}
