package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// trialGroup is the cgroup of a program that is tried. No component has a name like it.
const trialGroup = ".trial"

// TrialSocket is the file in RunDir at which a program that is tried may serve. One
// that an earlier supervisor left is removed.
const TrialSocket = "trial.sock"

// maxSaid bounds what is kept of the words of a program that is tried: the last bytes.
const maxSaid = 4 << 10

// killedWithin is how long the end of a killed trial may take.
const killedWithin = 5 * time.Second

// FirstFile is the number at which a program that is tried finds its first file.
const FirstFile = 3

// Order says which program is tried, and with what.
type Order struct {
	// Path of the program, and its arguments from its own name on.
	Path string
	Args []string
	// Env is its whole environment.
	Env []string
	// Files are those that it finds from number FirstFile on. They stay the caller's.
	Files []*os.File
}

// Trial is a program that runs to see whether it would. It is no component: nothing
// is noted of it, it starts nothing that outlives it, and it ends with this process
// in any case.
type Trial struct {
	process *os.Process
	done    chan struct{} // closed when nothing of it is left

	said *tail
	exit Exit // once done is closed
}

// Try starts a program. The caller ends it, in any case, with End.
func (r *Runner) Try(ctx context.Context, o Order) (*Trial, error) {
	group, err := makeCgroup(r.cfg.Cgroup, trialGroup)
	if err == nil {
		err = group.fresh()
	}
	if err != nil {
		return nil, fmt.Errorf("try program %s: %w", o.Path, err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("try program %s: %w", o.Path, err), group.remove())
	}
	t := &Trial{done: make(chan struct{}), said: &tail{}}
	t.process, err = r.deliverTrial(ctx, o, in, group)
	if err := errors.Join(err, in.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("try program %s: %w", o.Path, err), out.Close(), group.remove())
	}
	stay := context.WithoutCancel(ctx)
	r.wg.Go(func() { r.bury(stay, t, group, out) }) // owned by Run: ends with the program
	return t, nil
}

// deliverTrial makes the process. It is killed by the kernel when this process ends,
// and is known not to be an orphan before anybody could take it for one.
func (r *Runner) deliverTrial(ctx context.Context, o Order, out *os.File, group cgroup) (process *os.Process, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, null.Close()) }()
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if group.exists() {
		dir, err := group.open()
		if err != nil {
			return nil, err
		}
		defer dir.Close() //nolint:errcheck // only looked at
		attr.UseCgroupFD, attr.CgroupFD = true, int(dir.Fd())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := r.deps.Spawner.spawn(ctx, birth{
		path: o.Path, command: o.Args, env: o.Env, files: append([]*os.File{null, out, out}, o.Files...), attr: attr,
	})
	if err != nil {
		return nil, err
	}
	process, err = os.FindProcess(pid)
	if err != nil {
		return nil, errors.Join(err, unix.Kill(pid, unix.SIGKILL))
	}
	r.askers[pid] = true
	return process, nil
}

// bury waits for the end of a trial, ends what it has left, and reaps it last: until
// then its number, and that of its group, are its own.
func (r *Runner) bury(ctx context.Context, t *Trial, group cgroup, out *os.File) {
	var listening sync.WaitGroup
	listening.Go(func() { // ends with out, waited for below
		_, _ = io.Copy(t.said, out) // whatever was read is what is told
	})
	pid := t.process.Pid
	err := awaitEnd(pid)
	if kill := unix.Kill(-pid, unix.SIGKILL); !errors.Is(kill, unix.ESRCH) {
		err = errors.Join(err, kill)
	}
	err = errors.Join(err, group.clear(ctx), out.SetReadDeadline(time.Now().Add(time.Second)))
	listening.Wait()
	t.exit = describe(t.process.Wait())
	r.mu.Lock()
	delete(r.askers, pid)
	r.mu.Unlock()
	if err := errors.Join(err, out.Close(), group.remove()); err != nil {
		r.deps.Log.Warn("trial left something", logging.Err(err))
	}
	close(t.done)
}

// Done is closed when the program has ended and nothing of it is left.
func (t *Trial) Done() <-chan struct{} { return t.done }

// Said is how it ended and what it said last, on one line. Call it after Done.
func (t *Trial) Said() string {
	text := strings.Join(strings.Fields(t.said.String()), " ")
	if text == "" {
		return t.exit.How + ", without a word"
	}
	return t.exit.How + ": " + text
}

// End kills the program and returns when nothing of it is left; Unavailable if the
// kernel does not end it in time. Safe to repeat.
func (t *Trial) End() error {
	select {
	case <-t.done:
		return nil
	default:
	}
	if err := t.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end trial: %w", err)
	}
	limit := time.NewTimer(killedWithin)
	defer limit.Stop()
	select {
	case <-t.done:
		return nil
	case <-limit.C:
		return fault.New(fault.Unavailable, "end trial: process %d is still there %s after its kill", t.process.Pid, killedWithin)
	}
}

// tail keeps the last bytes that are written. Safe for concurrent use.
type tail struct {
	mu   sync.Mutex // guards kept
	kept []byte
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if more := len(t.kept) - maxSaid; more > 0 {
		t.kept = append(t.kept[:0], t.kept[more:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.kept), "?")
}
