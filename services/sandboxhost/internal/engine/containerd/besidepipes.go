package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

const (
	// drainIdle is how long an output is waited for that somebody holds open after the end
	// of the process: in the shim nothing is on its way for longer.
	drainIdle = 2 * time.Second
	// drainMost bounds what is read of one after the end, in bytes: more than all pipes on
	// the way hold, so what comes after it was written by somebody else.
	drainMost = 1 << 20
	// readerLimit is how long the shim has to open the input of a process that it has started:
	// it does that in passing, in a goroutine of its own.
	readerLimit = 10 * time.Second
)

// pipes are the named pipes between the shim and us. Outputs begin open at both ends, and the
// input at the writing one, so that nothing is lost and nobody sees an end too early.
type pipes struct {
	dir                    string
	in, out, err           string   // paths; empty for none
	stdin                  *os.File // the writing end alone: a write fails when nobody reads any more
	stdout, stderr         *outlet
	holdStdout, holdStderr *os.File // our writing ends, until the shim has its own

	once       sync.Once
	discarding sync.WaitGroup
}

// The names of pipes in their folder.
const stdinPipe, stdoutPipe, stderrPipe = "stdin", "stdout", "stderr"

// makePipes makes and opens the pipes that are wanted.
func makePipes(dir string, stdin, stdout, stderr bool) (p *pipes, err error) {
	p = &pipes{dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return p, fmt.Errorf("make pipes: %w", err)
	}
	if stdin {
		p.in = filepath.Join(dir, stdinPipe)
		if p.stdin, err = makeInlet(p.in); err != nil {
			return p, err
		}
	}
	if stdout {
		p.out = filepath.Join(dir, stdoutPipe)
		if p.stdout, p.holdStdout, err = makeOutlet(p.out); err != nil {
			return p, err
		}
	}
	if stderr {
		p.err = filepath.Join(dir, stderrPipe)
		if p.stderr, p.holdStderr, err = makeOutlet(p.err); err != nil {
			return p, err
		}
	}
	return p, nil
}

func makePipe(path string, mode int) (*os.File, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make pipe %s: %w", path, err)
	}
	return openPipe(path, mode)
}

// openPipe opens an end that waits in the poller, where closing it and deadlines count.
func openPipe(path string, mode int) (*os.File, error) {
	f, err := os.OpenFile(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open pipe: %w", err)
	}
	return f, nil
}

// makeInlet makes a pipe and opens its writing end, with nobody at the other yet.
func makeInlet(path string) (*os.File, error) {
	read, err := makePipe(path, unix.O_RDONLY) // else there is no end to write at
	if err != nil {
		return nil, err
	}
	write, err := openPipe(path, unix.O_WRONLY)
	return write, errors.Join(err, closeFile(read))
}

func makeOutlet(path string) (read *outlet, held *os.File, err error) {
	f, err := makePipe(path, unix.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	read = &outlet{f: f}
	held, err = openPipe(path, unix.O_WRONLY)
	return read, held, err
}

// foundPipes opens what is there of the pipes that an earlier life of ours has left, at both
// ends: a shim that it left in the middle of a start waits for somebody to hold them.
func foundPipes(dir string) (*pipes, error) {
	p := &pipes{dir: dir}
	for name, o := range map[string]**outlet{stdoutPipe: &p.stdout, stderrPipe: &p.stderr} {
		f, err := openPipe(filepath.Join(dir, name), unix.O_RDWR)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errors.Join(err, closeOutlet(p.stdout), closeOutlet(p.stderr))
		}
		*o = &outlet{f: f}
	}
	return p, nil
}

// discard reads what still comes until they are closed, so that the shim waits for nobody to
// take it.
func (p *pipes) discard() {
	p.once.Do(func() {
		for _, o := range []*outlet{p.stdout, p.stderr} {
			if o != nil {
				p.discarding.Go(func() { _, _ = io.Copy(io.Discard, o.f) }) // ends with close, which waits for it
			}
		}
	})
}

// connected is called once the process was started. It lets go of the writing ends: the shim
// has its own from now on, and with the last of them the output ends. And it waits until
// the shim reads the input: what is written and ended before that is lost with its last end.
func (p *pipes) connected(ctx context.Context) error {
	err := errors.Join(closeFile(p.holdStdout), closeFile(p.holdStderr))
	if p.stdin == nil || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readerLimit,
		fault.New(fault.Unavailable, "the shim has not opened its input within %s", readerLimit))
	defer cancel()
	return awaitReader(ctx, p.in)
}

// awaitReader waits until somebody has a pipe open for reading, or returns the cause of ctx.
func awaitReader(ctx context.Context, path string) error {
	opened := make(chan error, 1)
	go func() { // ends when somebody reads: below at the latest
		f, err := os.OpenFile(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		opened <- errors.Join(err, closeFile(f))
	}()
	select {
	case err := <-opened:
		return err
	case <-ctx.Done():
	}
	read, err := openPipe(path, unix.O_RDONLY)
	if err == nil {
		err = errors.Join(<-opened, closeFile(read))
	}
	return errors.Join(context.Cause(ctx), err)
}

// close closes and removes all that is left.
func (p *pipes) close() error {
	err := errors.Join(closeFile(p.stdin), closeFile(p.holdStdout), closeFile(p.holdStderr), closeOutlet(p.stdout), closeOutlet(p.stderr))
	p.discarding.Wait()
	return errors.Join(err, os.RemoveAll(p.dir))
}

func closeOutlet(o *outlet) error {
	if o == nil {
		return nil
	}
	return closeFile(o.f)
}

func closeFile(f *os.File) error {
	if f == nil {
		return nil
	}
	if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// outlet is the reading end of an output.
type outlet struct {
	f        *os.File
	draining atomic.Bool
	drained  int // only its one reader looks at it
}

// Read reads what there is, and waits for more. See drain.
func (o *outlet) Read(b []byte) (int, error) {
	if o.draining.Load() {
		if o.drained >= drainMost {
			return 0, io.EOF
		}
		if err := o.f.SetReadDeadline(time.Now().Add(drainIdle)); err != nil {
			return 0, err
		}
	}
	n, err := o.f.Read(b)
	if o.draining.Load() {
		o.drained += n
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed) {
		err = io.EOF
	}
	return n, err
}

// drain has it end when nothing came for a while.
func (o *outlet) drain() {
	if o == nil {
		return
	}
	o.draining.Store(true)
	_ = o.f.SetReadDeadline(time.Now().Add(drainIdle)) // fails for one that is closed, which has ended
}
