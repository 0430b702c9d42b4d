package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/id"
	"staddle.internal/kit/run"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/session"
	"staddle.internal/cli/internal/target"
)

type attachOptions struct {
	ref, container, detachKeys string
	tail                       uint32
	noStdin, noSignals         bool
}

func (a *app) attachCommand() *cobra.Command {
	var o attachOptions
	c := &cobra.Command{
		Use: "attach [flags] SANDBOX", Short: "Attach to the main process of a sandbox",
		Long: `Attach to the main process of a running container: its output is shown, the last
lines of what it wrote before at first, and standard input is passed on if its
spec says "stdin". The end of standard input ends that of the process for good,
except in a terminal, where it is Ctrl-D.

The command ends with the exit code of the process, when this life of it ends.
Interrupts and requests to end are passed on to the process, and the third one ends
this command. The process goes on when this command ends, or the connection is
lost; a restart of the node's sandboxhost is waited for.

In a terminal, the keys ctrl-p ctrl-q leave the process as it is.

A node that is not this machine is reached through its gateway.`,
		Example: `  staddle attach web
  staddle attach --tail 0 --no-stdin --no-signals web
  staddle attach import < data.csv`,
		Args: args(cobra.ExactArgs(1)), ValidArgsFunction: a.sandboxNames(1),
		RunE: func(cmd *cobra.Command, given []string) error {
			o.ref = given[0]
			return codeOfExec(a.attachTo(cmd.Context(), o))
		},
	}
	f := c.Flags()
	f.StringVarP(&o.container, "container", "c", "", "`NAME` of the container, where there are several")
	f.Uint32VarP(&o.tail, "tail", "n", usualTail, "the last `LINES` of what it wrote before, at most 64 KiB of them")
	f.BoolVar(&o.noStdin, "no-stdin", false, "only watch: pass no input on")
	f.BoolVar(&o.noSignals, "no-signals", false, "pass no interrupt on: the first one ends this command")
	f.StringVar(&o.detachKeys, "detach-keys", "ctrl-p,ctrl-q", "`KEYS` that leave a process with a terminal, separated by commas; none if empty")
	a.completeContainer(c, firstArgument)
	return c
}

// usualTail and mostTail are how many lines are shown of what was written before, by the contract.
const usualTail, mostTail = 100, 10000

func (a *app) attachTo(ctx context.Context, o attachOptions) error {
	keys, err := session.ParseKeys(o.detachKeys)
	if err != nil {
		return exit.BadUsage("--detach-keys: %s", err)
	}
	if o.tail > mostTail {
		return exit.BadUsage("--tail %d: at most %d lines are shown; all of them: staddle logs %s", o.tail, mostTail, o.ref)
	}
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	return a.withInside(ctx, o.ref, func(ctx context.Context, in *target.Inside, s *sandbox.Sandbox) error {
		if err := chooseContainer(s, &o.container); err != nil {
			return err
		}
		return a.attachIn(ctx, in, s, o, keys)
	})
}

// attachIn attaches to the container that was found.
func (a *app) attachIn(ctx context.Context, in *target.Inside, s *sandbox.Sandbox, o attachOptions, keys []byte) error {
	c := containerSpecOf(s, o.container)
	req := session.AttachRequest{
		Start:  &sandboxhostv1.AttachStart{Uid: s.UID, Container: o.container, TailLines: &o.tail, Stdin: c.GetStdin() && !o.noStdin},
		Stdout: a.out, Stderr: a.err,
	}
	if !c.GetStdin() && !o.noStdin && piped(a.in) {
		a.note("container %s of sandbox %s has no standard input: nothing is passed on", o.container, s.Name)
	}
	if !o.noSignals {
		onward, signals, stop := passedOn(ctx)
		defer stop()
		ctx, req.Signals = onward, signals
	}
	end, err := a.goAlong(ctx, in.Exec, c, req, keys)
	if signal, ok := errors.AsType[*run.SignalError](context.Cause(ctx)); ok && err != nil {
		return signal
	}
	if err != nil {
		err = explainExec(s, fmt.Errorf("attach to sandbox %s: %w", s.Name, err), "the process goes on")
	}
	if end.Detached {
		a.note("left sandbox %s: the process goes on", s.Name)
	}
	return a.endOfSession(ctx, s, end, err)
}

// goAlong attaches the person to the main process of a container: with a terminal if that has
// one, and with input if req says so.
func (a *app) goAlong(
	ctx context.Context, client sandboxhostv1.ExecServiceClient, c *resourcev1.ContainerSpec, req session.AttachRequest, detach []byte,
) (end session.Result, err error) {
	req.Note, req.Stdin = a.note, a.in
	if req.Start.GetStdin() {
		req.Start.InputId = id.New()
	}
	_, keyboard := session.Terminal(a.in)
	_, screen := session.Terminal(a.out)
	if c.GetTty() && req.Start.GetStdin() {
		if !keyboard {
			detach = nil // what is piped in has no keys
		}
		req.Stdin = session.NewKeys(a.in, detach)
	}
	if c.GetTty() && (keyboard || screen) {
		req.Size = func() *sandboxhostv1.TerminalSize { return session.Size(a.in, a.out) }
	}
	err = a.atTerminal(c.GetTty() && (keyboard || screen), req.Start.GetStdin(), func(sizes <-chan *sandboxhostv1.TerminalSize) (err error) {
		req.Sizes = sizes
		end, err = session.Attach(ctx, client, req)
		return err
	})
	return end, err
}

func containerSpecOf(s *sandbox.Sandbox, name string) *resourcev1.ContainerSpec {
	for _, c := range s.Spec.GetContainers() {
		if c.GetName() == name {
			return c
		}
	}
	return nil
}

// piped says whether somebody has redirected a stream to a pipe or file.
func piped(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && (info.Mode()&os.ModeNamedPipe != 0 || info.Mode().IsRegular())
}
