package child

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// Spawner makes all children from one goroutine that never leaves its thread: a
// parent-death signal is bound to the thread that made the child, and must not
// come because the runtime ended some other thread. Where that is the main thread
// it stays the same one over a re-exec, which ends all others. Children of ours
// have no such signal, and are made one at a time from threads that are thrown
// away with the rights that were given up on them.
type Spawner struct {
	orders chan func()
	over   chan struct{}
	close  func()
}

// NewSpawner returns a Spawner that serves nobody yet.
func NewSpawner() *Spawner {
	over := make(chan struct{})
	return &Spawner{orders: make(chan func()), over: over, close: sync.OnceFunc(func() { close(over) })}
}

// Serve carries out orders on the thread of the calling goroutine, which it
// locks for ever, until Close. A main function calls it on the main thread.
func (s *Spawner) Serve() {
	runtime.LockOSThread() // never unlocked
	for {
		select {
		case order := <-s.orders:
			order()
		case <-s.over:
			return
		}
	}
}

// Close ends Serve. More calls do nothing.
func (s *Spawner) Close() { s.close() }

// do has f run on the thread of Serve and returns when it has. It returns an error
// if it was not begun.
func (s *Spawner) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	order := func() { defer close(done); f() }
	select {
	case s.orders <- order:
	case <-s.over:
		return fault.New(fault.Unavailable, "the thread that makes children has ended")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// Once the order is taken the child exists or does not: the end of ctx must
	// not leave one behind that nobody knows.
	<-done
	return nil
}

// spawn makes a child.
func (s *Spawner) spawn(ctx context.Context, b birth) (int, error) {
	var m made
	if err := s.do(ctx, func() { m = deliver(b) }); err != nil {
		return 0, err
	}
	return m.pid, m.err
}

// birth is all that the kernel needs to know.
type birth struct {
	path    string // of the program
	dir     string // to start in; empty is where this process is
	command []string
	env     []string
	files   []*os.File // as numbers 0, 1, 2 and so on
	attr    *syscall.SysProcAttr
	humble  bool // never gets rights that it was not born with
	reduced bool // to no more rights than its ambient capabilities, for ever
}

type made struct {
	pid int
	err error
}

// deliver makes one child from the thread that it needs.
func deliver(b birth) made {
	if !b.humble {
		pid, err := fork(b)
		return made{pid, err}
	}
	answer := make(chan made)
	go func() { // waited for below
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := giveUp(b); err != nil {
			answer <- made{0, err}
			return
		}
		pid, err := fork(b)
		answer <- made{pid, err}
	}()
	return <-answer
}

// giveUp takes from the calling thread, and all that it makes, what the child is
// not to have.
func giveUp(b birth) error {
	if b.reduced {
		if err := reduce(b.attr.AmbientCaps); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new rights: %w", err)
	}
	return nil
}

// fork starts the program. It passes the numbers of the files as they are:
// os.StartProcess would take them out of their non-blocking mode, which they share
// with whoever has them open as well.
func fork(b birth) (int, error) {
	if err := hearAll(); err != nil {
		return 0, err
	}
	return withFDs(b.files, nil, func(fds []uintptr) (int, error) {
		pid, err := syscall.ForkExec(b.path, b.command, &syscall.ProcAttr{
			Dir: b.dir, Env: b.env, Files: fds, Sys: b.attr,
		})
		if err != nil {
			return 0, fmt.Errorf("start %s: %w", b.path, err)
		}
		return pid, nil
	})
}

// hearAll lets signals through to the calling thread and all that it makes: a
// re-exec blocks some until the next program hears them, and threads and children
// would have them blocked for ever.
func hearAll() error {
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil); err != nil {
		return fmt.Errorf("let signals through: %w", err)
	}
	return nil
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
