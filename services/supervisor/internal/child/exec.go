package child

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// held back while the program is replaced: until the next one hears them they
// would end the process.
var heldBack = []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP}

// Exec has this process go on with another program, from the thread that made
// the children, and does not return if it succeeds. The files stay open. A
// parent-death signal comes when the thread that made a child ends, and only the
// thread from which the program is replaced does not, so that it has to be the
// main thread: that is the one from which the next program goes on. Elsewhere it is
// refused with fault.Conflict.
func (s *Spawner) Exec(ctx context.Context, program string, args, env []string, fds []int) error {
	var inner error
	err := s.do(ctx, func() { inner = execute(ctx, program, args, env, fds) })
	return errors.Join(err, inner)
}

func execute(ctx context.Context, program string, args, env []string, fds []int) error {
	if unix.Gettid() != unix.Getpid() {
		return fault.New(fault.Conflict, "replace program: children are not made on the main thread")
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, maskOf(heldBack), nil); err != nil {
		return fmt.Errorf("replace program: hold back signals: %w", err)
	}
	err := inherit(fds, 0)
	if err == nil {
		err = syscall.Exec(program, args, env)
	}
	return errors.Join(fmt.Errorf("replace program by %s: %w", program, err), inherit(fds, unix.FD_CLOEXEC), hearAll())
}

// inherit sets whether the next program has the files; 0 is none.
func inherit(fds []int, flag int) error {
	var errs []error
	for _, fd := range fds {
		if fd <= 0 {
			continue
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flag); err != nil {
			errs = append(errs, fmt.Errorf("keep file %d open: %w", fd, err))
		}
	}
	return errors.Join(errs...)
}

func maskOf(signals []unix.Signal) *unix.Sigset_t {
	var set unix.Sigset_t
	for _, s := range signals {
		n := uint(s) - 1
		set.Val[n/64] |= 1 << (n % 64)
	}
	return &set
}
