// Package command owns the commands of staddle: their flags, what they do with a
// target, and what they print.
//
// Each file holds one group of commands and reads as a story: parse, ask the
// target, print. How a target is reached lies in package target, what a status
// means in package sandbox, how text looks in package output. It must never
// touch containers, networks or files of a node itself; "up" and "down", which
// do, lie in package machine. In the trail of a sandbox this is the first step:
// "staddle run" writes one record.
package command

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"staddle.internal/kit/run"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/target"
)

// app is one invocation.
type app struct {
	flags   target.Flags
	format  string
	timeout time.Duration
	in      io.Reader
	out     io.Writer
	err     io.Writer
}

// Main runs one command line and returns the exit code of the process.
func Main(args []string) int {
	ctx, stop := run.Signal(context.Background())
	defer stop()
	return Run(ctx, args, os.Stdin, os.Stdout, os.Stderr)
}

// Run runs one command line on the given streams and returns its exit code. A
// context that a signal ended gives 128 plus the signal.
func Run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	a := &app{in: in, out: out, err: errOut}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if signal, ok := interrupted(ctx, err); ok {
		return 128 + int(signal)
	}
	exit.Report(errOut, err)
	return exit.Code(err)
}

// interrupted reports the signal that ended the command, if that is why it
// failed.
func interrupted(ctx context.Context, err error) (syscall.Signal, bool) {
	if err == nil || ctx.Err() == nil {
		return 0, false
	}
	if _, decided := errors.AsType[*exit.Status](err); decided {
		return 0, false
	}
	cause, ok := errors.AsType[*run.SignalError](context.Cause(ctx))
	if !ok {
		return 0, false
	}
	signal, ok := cause.Signal.(syscall.Signal)
	return signal, ok
}
