package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/leash"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/process"
	"staddle.internal/kit/version"

	"staddle.internal/services/supervisor/internal/api"
	"staddle.internal/services/supervisor/internal/child"
	"staddle.internal/services/supervisor/internal/handover"
	"staddle.internal/services/supervisor/internal/machine"
	"staddle.internal/services/supervisor/internal/supervise"
	"staddle.internal/services/supervisor/internal/upgrade"
)

// reasonRefused is the reason of Conflict for a program that did not stand its trial.
const reasonRefused = "PROGRAM_REFUSED"

// replacement replaces the program of this process by the one that is now in its
// place, while the process, its children and all sockets stay.
type replacement struct {
	process  *process.Process
	loop     *supervise.Loop
	children *child.Runner
	spawner  *child.Spawner
	environ  []string // as this program was given it
	number   uint32   // of this program among those of this process, from 1
	since    time.Time
	// upgrading says whether the components are being replaced: which one has which
	// program is then known to this one only.
	upgrading func() bool

	signals  <-chan os.Signal
	asked    chan chan error // wishes for another program; the answer is why it is not there
	renewals chan struct{}   // wishes of those who wait for no answer
	taken    chan struct{}   // closed when this program has taken over
	done     chan struct{}   // closed when run has ended
}

func newReplacement(m *start, p *process.Process, loop *supervise.Loop, children *child.Runner) *replacement {
	r := &replacement{
		process: p, loop: loop, children: children, spawner: m.spawner, environ: m.environ, number: 1, since: time.Now(),
		signals: m.signals, asked: make(chan chan error), renewals: make(chan struct{}, 1), taken: make(chan struct{}), done: make(chan struct{}),
	}
	if m.before != nil {
		r.number = m.before.Program + 1
	}
	return r
}

// run serves Restart and Renew. It is the last member: when it begins everything
// of this program runs.
func (r *replacement) run(ctx context.Context, ready func()) error {
	defer close(r.done)
	if r.number > 1 {
		r.loop.History().Note(name, fmt.Sprintf("program %d of this process has taken over: version %s", r.number, version.String()), r.number)
	}
	close(r.taken)
	ready()
	for {
		select {
		case answer := <-r.asked:
			answer <- r.replace(ctx)
		case <-r.renewals:
			_ = r.replace(ctx) // it was told
		case <-r.signals:
			r.process.Log.Warn("signal ignored", logging.Reason(`a hangup means nothing here; "staddle component restart supervisor" replaces the program`))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// replace returns only if the program was not replaced, and tells why.
func (r *replacement) replace(ctx context.Context) error {
	err := r.reexec(ctx)
	if ctx.Err() == nil {
		r.process.Log.Error("program not replaced", logging.Err(err))
		r.loop.History().Note(name, "program not replaced: "+err.Error(), r.number)
	}
	return err
}

// Renew begins to replace the program and waits for nothing.
func (r *replacement) Renew() {
	select {
	case r.renewals <- struct{}{}:
	default: // it is on its way
	}
}

// Program tells which program of this process this one is.
func (r *replacement) Program() api.Program {
	return api.Program{Life: r.loop.History().Life(), Number: r.number, Version: version.String(), Since: r.since}
}

// Restart replaces the program of that number of that life, and does not return
// then: whoever asked asks the next program. One that is replaced already, or whose
// life is over, makes it return when this program has taken over. It returns the kinds
// that the contract names.
func (r *replacement) Restart(ctx context.Context, life string, number uint32) error {
	if life == r.loop.History().Life() && number > r.number {
		return fault.New(fault.Conflict, "restart supervisor: it runs program %d, there has been no program %d", r.number, number)
	}
	stopped := fault.New(fault.Unavailable, "restart supervisor: it is stopping")
	select {
	case <-r.taken:
	case <-r.done:
		return stopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if life != r.loop.History().Life() || number < r.number {
		return nil
	}
	answer := make(chan error, 1)
	select {
	case r.asked <- answer:
	case <-r.done:
		return stopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-answer:
		return err
	case <-r.done:
		return stopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// listenForHangup takes SIGHUP from the start on: by default it ends a process, and
// that a terminal went away is no reason to.
func listenForHangup() <-chan os.Signal {
	signals := make(chan os.Signal, 1) // more of them mean the same
	signal.Notify(signals, unix.SIGHUP)
	return signals
}

// reexec returns only if the program was not replaced, and then nothing has
// changed: a program that does not exist, or does not get as far as to serve, is
// found out before.
func (r *replacement) reexec(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	tried, err := identify(program)
	if err != nil {
		return refused(program, err)
	}
	if err := r.try(ctx, program); err != nil {
		return err
	}
	if r.upgrading() {
		return fault.WithReason(fault.New(fault.Conflict, "replace program: an upgrade of the components goes on"), upgrade.ReasonRunning)
	}
	if now, err := identify(program); err != nil || now != tried {
		return refused(program, errors.Join(errors.New("it was replaced while it was tried"), err))
	}
	return r.handOver(ctx, func(s handover.State) (err error) {
		file, err := handover.Write(s)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		fds, err := r.keptOpen(s, file)
		if err != nil {
			return err
		}
		r.process.Log.Info("program being replaced", logging.Path(program))
		return r.spawner.Exec(ctx, program, os.Args, r.environment(int(file.Fd())), fds)
	})
}

func refused(program string, err error) error {
	return fault.WithReason(fault.New(fault.Conflict, "replace program by %s: %w", program, err), reasonRefused)
}

// identity tells one state of a file from another.
type identity struct {
	dev, ino uint64
	size     int64
	changed  unix.Timespec
}

func identify(path string) (identity, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return identity{}, fmt.Errorf("look at it: %w", err)
	}
	return identity{st.Dev, st.Ino, st.Size, st.Ctim}, nil
}

// keptOpen are the files that the next program finds: those of the state, the state
// itself, and the leash of this process if it has one.
func (r *replacement) keptOpen(s handover.State, file *os.File) ([]int, error) {
	fds := append(s.FDs(), int(file.Fd()))
	for _, entry := range r.environ {
		if text, ok := strings.CutPrefix(entry, leash.EnvFD+"="); ok {
			fd, err := strconv.Atoi(text)
			if err != nil {
				return nil, fmt.Errorf("keep leash: %w", err)
			}
			fds = append(fds, fd)
		}
	}
	return fds, nil
}

// environment is that of the next program: what this one was given.
func (r *replacement) environment(fd int) []string {
	return append(slices.Clone(r.environ), handover.EnvFD+"="+strconv.Itoa(fd))
}

// handOver calls f with the state while nothing changes.
func (r *replacement) handOver(ctx context.Context, f func(handover.State) error) error {
	return r.loop.Pause(ctx, func(t machine.Table) error {
		return r.children.HandOver(func(h child.Handover) (err error) {
			kept, err := r.process.Keep()
			if err != nil {
				return err
			}
			s := handover.State{Table: t.Record(time.Now()), History: r.loop.History().Record(), Children: h, Program: r.number}
			if kept.Socket != nil {
				defer func() { err = errors.Join(err, kept.Socket.Close()) }()
				if s.Socket, err = handover.Number(kept.Socket); err != nil {
					return err
				}
			}
			if s.Lock, err = handover.Number(kept.Lock); err != nil {
				return err
			}
			return f(s)
		})
	})
}
