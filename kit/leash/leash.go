// Package leash owns the tie between a child process and its parent: an
// inherited pipe whose end-of-file means that the parent is gone.
//
// It survives a re-exec of the parent, which keeps the writing end, and does not
// depend on threads, as parent-death signals do. The parent makes a pair with New,
// passes the child's end and the variable of Env, and keeps its own end open for
// as long as the child may live.
//
// It must never be used to say anything else: nobody writes into the pipe. In the
// trail it is tied between the supervisor and each process, in the frame of main.
package leash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// EnvFD is the variable that tells a child the number of its end.
const EnvFD = "STADDLE_LEASH_FD"

// HardExit is how long a process may take to end in order after its parent is
// gone; then it ends in any state. Whoever waits to start its successor relies on
// it.
const HardExit = 2 * time.Second

// exitCode is that of a process which did not end in order within HardExit.
const exitCode = 1

// ErrParentGone is the cause of the context that Attach ends.
var ErrParentGone = errors.New("parent process is gone")

// New makes a leash. The parent keeps parentEnd open and gives childEnd to the
// child as an extra file, then closes its own copy of it. Neither is inherited by
// accident.
func New() (parentEnd, childEnd *os.File, err error) {
	childEnd, parentEnd, err = os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("make leash: %w", err)
	}
	return parentEnd, childEnd, nil
}

// Env is the variable for a child that finds its end as number fd.
func Env(fd int) string { return fmt.Sprintf("%s=%d", EnvFD, fd) }

// Attach ties this process to its parent if the variable is set: when the parent
// is gone the returned context ends with ErrParentGone as its cause, and the
// process with it after HardExit at most. Without the variable ctx is returned as
// it is. The variable is cleared and the descriptor marked, so that no process
// started from here inherits either. Call it once, first thing in main.
//
// A leash that cannot be held is no leash: the context then ends at once, with
// fault.Invalid.
func Attach(ctx context.Context) context.Context {
	text, ok := os.LookupEnv(EnvFD)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancelCause(ctx)
	end, err := take(text)
	if err != nil {
		cancel(err)
		return ctx
	}
	go func() { // belongs to the process and ends with it
		hold(end)
		cancel(ErrParentGone)
		<-time.After(HardExit)
		fmt.Fprintf(os.Stderr, "leash: %v, and %s were not enough to stop in order\n", ErrParentGone, HardExit)
		os.Exit(exitCode)
	}()
	return ctx
}

// take clears the variable and claims the descriptor that it names.
func take(text string) (*os.File, error) {
	if err := os.Unsetenv(EnvFD); err != nil {
		return nil, fmt.Errorf("clear %s: %w", EnvFD, err)
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd <= 2 {
		return nil, fault.New(fault.Invalid, "read %s: %q is no number of an inherited file", EnvFD, text)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, fault.New(fault.Invalid, "read %s: file %d: %w", EnvFD, fd, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, fault.New(fault.Invalid, "read %s: file %d is no pipe", EnvFD, fd)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "leash"), nil
}

// hold blocks until the pipe has ended. An error that is not its end counts as
// one: who cannot watch the parent must not outlive it.
func hold(end io.Reader) {
	var buf [16]byte
	for {
		if _, err := end.Read(buf[:]); err != nil {
			return
		}
	}
}
