package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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

	"staddle.internal/services/supervisor/internal/child"
	"staddle.internal/services/supervisor/internal/handover"
	"staddle.internal/services/supervisor/internal/machine"
	"staddle.internal/services/supervisor/internal/supervise"
	"staddle.internal/services/supervisor/internal/upgrade"
)

// checkFlag asks a program whether it can take over; maxCheck bounds the answer in
// time, and maxSaid in bytes.
const (
	checkFlag = "check-handover"
	maxCheck  = 20 * time.Second
	maxSaid   = 4 << 10
)

// replacement replaces the program of this process by the one that is now in its
// place, while the process, its children and all sockets stay.
type replacement struct {
	process  *process.Process
	loop     *supervise.Loop
	children *child.Runner
	spawner  *child.Spawner
	environ  []string // as this program was given it
	// upgrading says whether the components are being replaced: which one has which
	// program is then known to this one only.
	upgrading func() bool
}

// run serves SIGHUP.
func (r *replacement) run(signals <-chan os.Signal) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		ready()
		for {
			select {
			case <-signals:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := r.reexec(ctx); err != nil && ctx.Err() == nil {
				r.process.Log.Error("program not replaced", logging.Err(err))
			}
		}
	}
}

// listenForHangup takes SIGHUP from the start on: by default it ends a process.
func listenForHangup() <-chan os.Signal {
	signals := make(chan os.Signal, 1) // more of them mean the same
	signal.Notify(signals, unix.SIGHUP)
	return signals
}

// reexec returns only if the program was not replaced, and then nothing has
// changed: a program that does not exist, does not start, or cannot read what it
// would be left, is found out before.
func (r *replacement) reexec(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	if err := r.check(ctx, program); err != nil {
		return err
	}
	if r.upgrading() {
		return fault.WithReason(fault.New(fault.Conflict, "replace program: an upgrade of the components goes on"), upgrade.ReasonRunning)
	}
	return r.handOver(ctx, func(s handover.State, file *os.File) error {
		fds := append(s.FDs(), int(file.Fd()))
		for _, entry := range r.environ {
			if text, ok := strings.CutPrefix(entry, leash.EnvFD+"="); ok {
				fd, err := strconv.Atoi(text)
				if err != nil {
					return fmt.Errorf("keep leash: %w", err)
				}
				fds = append(fds, fd)
			}
		}
		r.process.Log.Info("program being replaced", logging.Path(program))
		return r.spawner.Exec(ctx, program, os.Args, r.environment(int(file.Fd())), fds)
	})
}

// environment is that of the next program: what this one was given.
func (r *replacement) environment(fd int) []string {
	return append(slices.Clone(r.environ), handover.EnvFD+"="+strconv.Itoa(fd))
}

// handOver writes the state down while nothing changes, and calls f meanwhile.
func (r *replacement) handOver(ctx context.Context, f func(handover.State, *os.File) error) error {
	return r.loop.Pause(ctx, func(t machine.Table) error {
		return r.children.HandOver(func(h child.Handover) (err error) {
			kept, err := r.process.Keep()
			if err != nil {
				return err
			}
			s := handover.State{Table: t.Record(time.Now()), History: r.loop.History().Record(), Children: h}
			if kept.Socket != nil {
				defer func() { err = errors.Join(err, kept.Socket.Close()) }()
				if s.Socket, err = handover.Number(kept.Socket); err != nil {
					return err
				}
			}
			if s.Lock, err = handover.Number(kept.Lock); err != nil {
				return err
			}
			file, err := handover.Write(s)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, file.Close()) }()
			return f(s, file)
		})
	})
}

// check asks the new program whether it could take over as things are now.
func (r *replacement) check(ctx context.Context, program string) error {
	var copied *os.File
	err := r.handOver(ctx, func(_ handover.State, file *os.File) error {
		fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			copied = os.NewFile(uintptr(fd), "handover")
		}
		return err
	})
	if err != nil {
		return err
	}
	defer copied.Close()
	ctx, cancel := context.WithTimeout(ctx, maxCheck)
	defer cancel()
	said := &bounded{}
	cmd := exec.CommandContext(ctx, program, append(slices.Clone(os.Args[1:]), "--"+checkFlag)...)
	cmd.Args[0] = os.Args[0] // by which some programs know who they are
	cmd.Env, cmd.ExtraFiles = r.environment(firstExtra), []*os.File{copied}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = said, said, time.Second
	if err := r.children.Ask(cmd); err != nil {
		return fault.New(fault.Conflict, "ask %s whether it can take over: %w: %s", program, errors.Join(err, context.Cause(ctx)), said)
	}
	return nil
}

// firstExtra is the number under which a command finds its first extra file.
const firstExtra = 3

// bounded keeps the first bytes of what a program says.
type bounded struct{ bytes.Buffer }

// Write never fails: the rest is left out.
func (b *bounded) Write(p []byte) (int, error) {
	if room := maxSaid - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// String is what was said, on one line.
func (b *bounded) String() string { return strings.Join(strings.Fields(b.Buffer.String()), " ") }

// canTakeOver answers the question of another program: everything that could keep
// this one from taking over, short of doing it, has been read when it says yes.
func canTakeOver(p *process.Process, before *handover.State, stdout io.Writer) error {
	if before == nil {
		return fault.New(fault.Invalid, "check handover: %s names no file", handover.EnvFD)
	}
	if _, err := layout(p, false); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "version %d of the handover can be taken over\n", before.Version)
	return nil
}
