package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/target"
)

// pollPeriod spaces looks at what tells nobody when it changes.
const pollPeriod = 50 * time.Millisecond

// supervisorLog is where the supervisor's own output goes.
func (m *Machine) supervisorLog() string {
	return filepath.Join(m.Paths.Var(supervisorName), "supervisor.log")
}

// componentLog is where the supervisor puts a component's output.
func (m *Machine) componentLog(name string) string {
	return filepath.Join(m.Paths.Var(supervisorName), "logs", name+".log")
}

// started is a supervisor's process that this command began.
type started struct {
	process *os.Process
	ended   chan struct{} // closed once it has ended
	state   *os.ProcessState
}

// running reports whether a supervisor has the installation, and which process
// it is. The lock is the fact: it ends with its holder.
func (m *Machine) running() (pid int, running bool, err error) {
	f, err := os.Open(m.Paths.Lock(supervisorName))
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("look for the supervisor: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read from; closing gives the lock back
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case err == nil:
		return 0, false, nil
	case !errors.Is(err, unix.EWOULDBLOCK):
		return 0, false, fmt.Errorf("look for the supervisor: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return 0, true, fmt.Errorf("look for the supervisor: %w", err)
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, true, nil // held, and its holder has not written who it is yet
	}
	return pid, true, nil
}

// turn waits until no other up or down changes the installation, and keeps them from
// it until end is called. An installation that is not there is nobody's.
func (m *Machine) turn(ctx context.Context) (end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, turnLimit)
	defer cancel()
	folder, err := os.Open(m.Bin())
	if errors.Is(err, os.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("wait for other commands: %w", err)
	}
	said := false
	for {
		err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = folder.Close() }, nil // only read from; closing gives the lock back
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("wait for other commands: lock %s: %w", m.Bin(), err), folder.Close())
		}
		if !said {
			said = true
			m.say("waiting for another staddle up or staddle down to end")
		}
		if err := backoff.Wait(ctx, pollPeriod); err != nil {
			why := fault.New(fault.Unavailable, "wait for other commands: another staddle up or staddle down has not ended: %w", err)
			return nil, errors.Join(why, folder.Close())
		}
	}
}

// start begins the supervisor in a session of its own, with its output in a
// file: it outlives this command and its terminal.
func (m *Machine) start() (*started, error) {
	if err := os.MkdirAll(m.Paths.Var(supervisorName), 0o700); err != nil {
		return nil, fmt.Errorf("start supervisor: %w", err)
	}
	log, err := os.OpenFile(m.supervisorLog(), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start supervisor: %w", err)
	}
	cmd := m.command("staddle-node", supervisorName)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	if err = errors.Join(err, log.Close()); err != nil {
		return nil, fmt.Errorf("start supervisor: %w", err)
	}
	s := &started{process: cmd.Process, ended: make(chan struct{})}
	go func() { // ends with the supervisor, or with this command, which need not wait for it
		defer close(s.ended)
		s.state, _ = cmd.Process.Wait()
	}()
	return s, nil
}

// Shutdown ends all processes in reverse order and waits for it. Sandboxes go on; or,
// with drain, they are stopped first, and what still lives after killAfter, if that is
// not nil, is killed. It reports whether anything ran.
func (m *Machine) Shutdown(ctx context.Context, drain bool, killAfter *time.Duration) (bool, error) {
	_, running, err := m.running()
	if err != nil || !running {
		return false, err
	}
	req := &supervisorv1.ShutdownRequest{}
	if drain {
		req.Mode = supervisorv1.ShutdownMode_SHUTDOWN_MODE_DRAIN
		m.say("stopping sandboxes, each within its grace period")
	}
	if killAfter != nil {
		req.KillAfter = durationpb.New(*killAfter)
	}
	if err := m.shutdown(ctx, req); err != nil {
		return true, err
	}
	return true, m.awaitEnd(ctx)
}

// shutdown asks the supervisor to stop everything and itself.
func (m *Machine) shutdown(ctx context.Context, req *supervisorv1.ShutdownRequest) (err error) {
	conn, err := target.Socket(ctx, supervisorName, m.Paths.Socket(supervisorName))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := supervisorv1.NewSupervisorServiceClient(conn).Shutdown(ctx, req); err != nil {
		return fmt.Errorf("shut down supervisor: %w", err)
	}
	return nil
}

// Stop ends the supervisor and all that it started, and waits until it is gone.
// One that does not answer is ended by signal. It reports whether there was one.
func (m *Machine) Stop(ctx context.Context) (bool, error) {
	pid, running, err := m.running()
	if err != nil || !running {
		return false, err
	}
	if err := m.shutdown(ctx, &supervisorv1.ShutdownRequest{}); err != nil {
		m.say("the supervisor does not answer (%v); ending process %d", err, pid)
		if err := m.signal(pid, unix.SIGTERM); err != nil {
			return true, err
		}
	}
	return true, m.awaitEnd(ctx)
}

// awaitEnd waits until no supervisor runs any more.
func (m *Machine) awaitEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	for {
		pid, running, err := m.running()
		if err != nil || !running {
			return err
		}
		if err := backoff.Wait(ctx, pollPeriod); err != nil {
			return fault.New(fault.Unavailable, "stop supervisor: process %d has not ended within %s", pid, stopLimit)
		}
	}
}

// signal sends a signal to the holder of the lock, through a pidfd taken before
// the lock is looked at again: a number that was reused meanwhile is never hit.
func (m *Machine) signal(pid int, sig unix.Signal) (err error) {
	if pid <= 1 {
		return fault.New(fault.Unavailable, "stop supervisor: its lock is held and does not say by whom")
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop supervisor: open process %d: %w", pid, err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	holder, running, err := m.running()
	if err != nil || !running || holder != pid {
		return err
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("stop supervisor: signal process %d: %w", pid, err)
	}
	return nil
}
