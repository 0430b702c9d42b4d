package bed

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// Running is a command of a person that was begun.
type Running struct {
	bed            *Bed
	cmd            *exec.Cmd
	stdout, stderr said
	limit          *time.Timer
}

// said is what a program has said so far.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

// Write takes what was said.
func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func (s *said) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Len()
}

// Begin runs the command line beside the test, at most two minutes. Whoever begins it
// waits for it.
func (b *Bed) Begin(args ...string) *Running {
	b.t.Helper()
	return b.BeginWith(nil, args...)
}

// BeginWith is Begin with something on standard input, and the end of that.
func (b *Bed) BeginWith(stdin io.Reader, args ...string) *Running {
	b.t.Helper()
	r := b.prepared(args...)
	if stdin != nil {
		in, err := r.cmd.StdinPipe() // what the program leaves unread holds up nobody
		b.must(err)
		go func() { // ends with the program
			_, _ = io.Copy(in, stdin)
			_ = in.Close()
		}()
	}
	return r.start()
}

// BeginIn is Begin with a terminal as standard input.
func (b *Bed) BeginIn(terminal *os.File, args ...string) *Running {
	b.t.Helper()
	r := b.prepared(args...)
	r.cmd.Stdin = terminal
	return r.start()
}

func (b *Bed) prepared(args ...string) *Running {
	r := &Running{bed: b, cmd: b.inside(filepath.Join(b.bin, "staddle"), append([]string{"--root", b.Paths.Root}, args...)...)}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	return r
}

func (r *Running) start() *Running {
	r.bed.t.Helper()
	r.bed.must(r.cmd.Start())
	r.limit = time.AfterFunc(2*time.Minute, func() { _ = r.cmd.Process.Kill() })
	return r
}

// Stdout is what it has written so far to standard output.
func (r *Running) Stdout() string { return r.stdout.String() }

// Said is how many bytes it wrote to standard output so far.
func (r *Running) Said() int { return r.stdout.size() }

// Stderr is what it has said so far on standard error.
func (r *Running) Stderr() string { return r.stderr.String() }

// Interrupt does what Ctrl-C does.
func (r *Running) Interrupt() {
	r.bed.t.Helper()
	r.Signal(os.Interrupt)
}

// Signal sends a signal.
func (r *Running) Signal(s os.Signal) {
	r.bed.t.Helper()
	r.bed.must(r.cmd.Process.Signal(s))
}

// Wait waits for its end.
func (r *Running) Wait() Result {
	r.bed.t.Helper()
	defer r.limit.Stop()
	var exit *exec.ExitError
	if err := r.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		r.bed.t.Fatalf("%v: %v", r.cmd.Args, err)
	}
	return Result{Stdout: r.stdout.String(), Stderr: r.stderr.String(), Code: r.cmd.ProcessState.ExitCode()}
}
