package child

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// spawner makes all children from one goroutine that never leaves its thread: a
// parent-death signal is bound to the thread that made the child, and must not
// come because the runtime ended some other thread. Children with reduced rights
// have no such signal, and are made one at a time from threads that are thrown
// away with the rights that were given up on them.
type spawner struct {
	orders chan order
}

type order struct {
	birth
	made chan<- made
}

// birth is all that the kernel needs to know.
type birth struct {
	command []string
	env     []string
	files   []*os.File // as numbers 0, 1, 2 and so on
	attr    *syscall.SysProcAttr
	reduced bool // to no more rights than its ambient capabilities, for ever
}

type made struct {
	pid int
	err error
}

// run serves orders until ctx ends. When it returns, its thread ends, and with it
// every child that has a parent-death signal.
func (s *spawner) run(ctx context.Context) {
	runtime.LockOSThread() // never unlocked
	for {
		select {
		case o := <-s.orders:
			o.made <- deliver(o.birth)
		case <-ctx.Done():
			return
		}
	}
}

// deliver makes one child from the thread that it needs.
func deliver(b birth) made {
	if !b.reduced {
		pid, err := fork(b)
		return made{pid, err}
	}
	answer := make(chan made)
	go func() { // waited for below
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := reduce(b.attr.AmbientCaps); err != nil {
			answer <- made{0, err}
			return
		}
		pid, err := fork(b)
		answer <- made{pid, err}
	}()
	return <-answer
}

// spawn has the goroutine of run make a child.
func (s *spawner) spawn(ctx context.Context, b birth) (int, error) {
	answer := make(chan made, 1)
	select {
	case s.orders <- order{b, answer}:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	// Once the order is taken the child exists or does not: the end of ctx must
	// not leave one behind that nobody knows.
	m := <-answer
	return m.pid, m.err
}

// fork starts the program. It passes the numbers of the files as they are:
// os.StartProcess would take them out of their non-blocking mode, which they share
// with whoever has them open as well.
func fork(b birth) (int, error) {
	return withFDs(b.files, nil, func(fds []uintptr) (int, error) {
		pid, err := syscall.ForkExec(b.command[0], b.command, &syscall.ProcAttr{
			Dir: "/", Env: b.env, Files: fds, Sys: b.attr,
		})
		if err != nil {
			return 0, fmt.Errorf("start %s: %w", b.command[0], err)
		}
		return pid, nil
	})
}

// withFDs calls f with the numbers of the files, which stay open meanwhile.
func withFDs(files []*os.File, fds []uintptr, f func([]uintptr) (int, error)) (int, error) {
	if len(fds) == len(files) {
		return f(fds)
	}
	raw, err := files[len(fds)].SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	var inner error
	err = raw.Control(func(fd uintptr) { n, inner = withFDs(files, append(fds, fd), f) })
	if err == nil {
		err = inner
	}
	return n, err
}

// attributes turns a spec into what the kernel is asked for. Missing
// capabilities are told, not refused: a host may lack some for good reasons.
func attributes(s Spec, own uint64) (attr *syscall.SysProcAttr, missing []string) {
	attr = &syscall.SysProcAttr{Setpgid: true} // a terminal's interrupt is for us alone
	if s.Foreign {
		attr.Pdeathsig = unix.SIGTERM
	}
	if s.reduced() {
		attr.Credential = &syscall.Credential{Uid: uint32(s.UID), Gid: uint32(s.GID)}
		attr.AmbientCaps, missing = capabilities(s.Capabilities, own)
	}
	return attr, missing
}
