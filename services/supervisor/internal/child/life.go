package child

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// Terminate asks the child to end, if pid is still its process. One that somebody
// has stopped is let go on, or it would not hear.
func (r *Runner) Terminate(name string, pid int) error {
	if _, err := r.signal(name, pid, unix.SIGTERM); err != nil {
		return err
	}
	_, err := r.signal(name, pid, unix.SIGCONT)
	return err
}

// Kill ends the child and, unless it is foreign, everything that it started.
func (r *Runner) Kill(name string, pid int) error {
	c, err := r.signal(name, pid, unix.SIGKILL)
	if c == nil || c.spec.Foreign {
		return err
	}
	return errors.Join(err, c.cgroup.kill())
}

// signal returns the child, or nil if pid is not its process any more: then its
// exit is on its way.
func (r *Runner) signal(name string, pid int, sig unix.Signal) (*child, error) {
	if err := r.untried("signal", name); err != nil {
		return nil, err
	}
	r.mu.Lock()
	c, ok := r.children[name]
	if !ok || c.pid != pid {
		r.mu.Unlock()
		return nil, nil
	}
	process := c.process
	r.mu.Unlock()
	if err := process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return c, fmt.Errorf("send %s to %s: %w", sig, name, err)
	}
	return c, nil
}

// Start makes a process of the component, which must have none, and returns its
// id. It fails with Conflict if it has one, and with Unavailable while something
// of the last is left that the kernel cannot end.
func (r *Runner) Start(ctx context.Context, name string) (int, error) {
	if err := r.untried("start", name); err != nil {
		return 0, err
	}
	r.mu.Lock()
	c, ok := r.children[name]
	busy := ok && c.pid != 0
	r.mu.Unlock()
	switch {
	case !ok:
		return 0, fault.New(fault.NotFound, "start component %s: there is none of that name", name)
	case busy:
		return 0, fault.New(fault.Conflict, "start component %s: it runs already", name)
	}
	if err := c.cgroup.fresh(); err != nil {
		return 0, fmt.Errorf("start component %s: %w", name, err)
	}
	pid, err := r.birth(ctx, c)
	if err != nil {
		return 0, fmt.Errorf("start component %s: %w", name, err)
	}
	if err := writeNote(r.cfg.RunDir, name, r.boot, pid); err != nil {
		r.deps.Log.Warn("process not noted", logging.Component(name), logging.Err(err))
	}
	stay := context.WithoutCancel(ctx)
	r.wg.Go(func() { r.reap(stay, c, pid) }) // owned by Run: ends with the child
	return pid, nil
}

// birth collects what the child inherits and has it made. The lock is held until
// its number is known, so that its first word to the fd store finds an owner.
func (r *Runner) birth(ctx context.Context, c *child) (int, error) {
	in, err := r.inherit(c)
	defer in.close()
	if err != nil {
		return 0, err
	}
	attr, missing := attributes(c.spec, r.own)
	if len(missing) > 0 {
		r.once("capabilities of "+c.spec.Name, func() {
			r.deps.Log.Warn("capabilities missing", logging.Component(c.spec.Name),
				logging.Reason(fmt.Sprintf("this process does not have %v itself", missing)))
		})
	}
	if in.cgroup != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(in.cgroup.Fd())
	}
	env := environment(os.Environ(), in.protocol, c.spec.Env)

	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := r.deps.Spawner.spawn(ctx, birth{
		path: c.spec.Command[0], dir: "/", command: c.spec.Command, env: env, files: in.files, attr: attr,
		humble: !c.spec.Foreign, reduced: c.spec.reduced(),
	})
	if err != nil {
		return 0, err
	}
	process, err := os.FindProcess(pid) // by pidfd; it cannot be another's before it is reaped
	if err != nil {
		return 0, errors.Join(err, unix.Kill(pid, unix.SIGKILL))
	}
	r.forgetOwnerLocked(c.spec.Name)
	r.owners[pid] = c.spec.Name
	c.pid, c.process, c.leash, c.ended, c.made = pid, process, in.takeLeash(), nil, false
	return pid, nil
}

func (r *Runner) forgetOwnerLocked(name string) {
	for pid, owner := range r.owners {
		if owner == name {
			delete(r.owners, pid)
		}
	}
}

// reap waits for one child and tells of its end when nothing of it is left. Until
// then the dead process keeps its number, so that whoever takes over finds it.
func (r *Runner) reap(ctx context.Context, c *child, pid int) {
	if err := awaitEnd(pid); err != nil {
		r.deps.Log.Warn("process not awaited", logging.Component(c.spec.Name), logging.Err(err))
	}
	if err := c.cgroup.clear(ctx); err != nil {
		r.deps.Log.Warn("processes left", logging.Component(c.spec.Name), logging.Err(err))
	}
	r.mu.Lock()
	exit := describe(c.process.Wait()) // it has ended
	exit.Name, exit.PID = c.spec.Name, pid
	end := c.leash
	c.pid, c.process, c.leash, c.ended = 0, nil, nil, &exit
	r.mu.Unlock()
	r.buried(exit, end)
}

// buried clears up after a process that was reaped, and tells of its end.
func (r *Runner) buried(exit Exit, leash *os.File) {
	if err := removeNote(r.cfg.RunDir, exit.Name); err != nil {
		r.deps.Log.Warn("note not removed", logging.Component(exit.Name), logging.Err(err))
	}
	if leash != nil {
		if err := leash.Close(); err != nil {
			r.deps.Log.Warn("leash not closed", logging.Component(exit.Name), logging.Err(err))
		}
	}
	r.deps.Exited(exit)
}

// awaitEnd returns when a child has ended, and leaves it to be reaped.
func awaitEnd(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// describe says how a process ended, also if that cannot be known.
func describe(state *os.ProcessState, err error) Exit {
	if err != nil {
		return Exit{How: "unknown: " + err.Error()}
	}
	if status, ok := state.Sys().(interface {
		Signaled() bool
		Signal() unix.Signal
	}); ok && status.Signaled() {
		signal := status.Signal().String()
		return Exit{How: "signal " + signal, Signal: signal}
	}
	code := state.ExitCode()
	return Exit{How: fmt.Sprintf("exit code %d", code), Code: &code}
}
