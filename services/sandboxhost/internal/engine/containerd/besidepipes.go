package containerd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// drainIdle is how long an output is waited for that somebody holds open after the end
	// of the process: in the shim nothing is on its way for longer.
	drainIdle = 2 * time.Second
	// drainMost bounds what is read of one after the end, in bytes: more than all pipes on
	// the way hold, so what comes after it was written by somebody else.
	drainMost = 1 << 20
)

// pipes are the named pipes between the shim and us. All begin open at both ends, so that
// nobody waits for anybody, nothing is lost and nobody sees an end too early.
type pipes struct {
	dir                    string
	in, out, err           string   // paths; empty for none
	stdin                  *os.File // both ends: it is never at its end by itself
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
		if p.stdin, err = makePipe(p.in, unix.O_RDWR); err != nil {
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

// connected lets go of the writing ends: the shim has its own from now on, and with the last
// of them the output ends.
func (p *pipes) connected() error {
	return errors.Join(closeFile(p.holdStdout), closeFile(p.holdStderr))
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
