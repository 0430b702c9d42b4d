package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/run"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/session"
	"staddle.internal/cli/internal/target"
)

type execOptions struct {
	ref, container, user, workdir string
	command, env                  []string
	stdin, tty, detach            bool
}

func (a *app) execCommand() *cobra.Command {
	var o execOptions
	c := &cobra.Command{
		Use: "exec [flags] SANDBOX -- COMMAND [ARG...]", Short: "Run a command inside a sandbox",
		Long: `Run a command inside a running container, beside its main process, with the limits
and rights of that. What follows "--" is the command, word by word, as given: no
shell reads it.

The command ends with the exit code of the process. Interrupts and requests to end are
passed on to it, and the third one ends this command. When this command ends, or the
connection is lost, the process is ended, unless it was begun with --detach.

A node that is not this machine is reached through its gateway.`,
		Example: `  staddle exec web -- cat /etc/hosts
  staddle exec -it web -- sh
  staddle exec -i web -- tar x -C /data < data.tar`,
		Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: a.sandboxNames(1),
		RunE: func(cmd *cobra.Command, given []string) error {
			o.ref = given[0]
			if cmd.ArgsLenAtDash() != 1 || len(given) == 1 {
				return exit.Try(exit.BadUsage("exec: one sandbox is named, and the command stands behind --"),
					"staddle exec %s -- %s", given[0], strings.Join(append(given[1:], "COMMAND")[:1], " "))
			}
			o.command = given[1:]
			return codeOfExec(a.exec(cmd.Context(), o))
		},
	}
	f := c.Flags()
	f.BoolVarP(&o.stdin, "stdin", "i", false, "pass standard input on")
	f.BoolVarP(&o.tty, "tty", "t", false, "give it a terminal")
	f.StringArrayVarP(&o.env, "env", "e", nil, "`NAME=VALUE` in its environment")
	f.StringVarP(&o.user, "user", "u", "", "`USER` in the container: uid, uid:gid, name or name:group (default: that of the container)")
	f.StringVarP(&o.workdir, "workdir", "w", "", "working `DIRECTORY` in the container (default: that of the container)")
	f.StringVarP(&o.container, "container", "c", "", "`NAME` of the container, where there are several")
	f.BoolVarP(&o.detach, "detach", "d", false, "end when it runs, and leave it running; what it writes is not kept")
	a.completeContainer(c, firstArgument)
	return c
}

func (a *app) exec(ctx context.Context, o execOptions) error {
	if o.detach && (o.stdin || o.tty) {
		return exit.BadUsage("exec: --detach leaves nobody for --stdin and --tty: leave out one or the other")
	}
	for _, e := range o.env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
			return exit.BadUsage("--env %q: write NAME=VALUE", e)
		}
	}
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	return a.withInside(ctx, o.ref, func(ctx context.Context, in *target.Inside, s *sandbox.Sandbox) error {
		if err := chooseContainer(s, &o.container); err != nil {
			return err
		}
		return a.execIn(ctx, in, s, o)
	})
}

// execIn runs the command in the sandbox that was found.
func (a *app) execIn(ctx context.Context, in *target.Inside, s *sandbox.Sandbox, o execOptions) error {
	start := &sandboxhostv1.ExecStart{
		Uid: s.UID, Container: o.container, Command: o.command, Env: o.env, User: o.user, WorkingDir: o.workdir, Stdin: o.stdin, Detach: o.detach,
	}
	if o.tty {
		start.Terminal = session.Size(a.in, a.out)
		if kind := os.Getenv("TERM"); kind != "" {
			start.Env = append([]string{"TERM=" + kind}, start.Env...)
		}
	}
	ctx, signals, stop := passedOn(ctx)
	defer stop()
	var end session.Result
	err := a.atTerminal(o.tty, o.stdin, func(sizes <-chan *sandboxhostv1.TerminalSize) (err error) {
		req := session.Request{Start: start, Stdin: a.in, Stdout: a.out, Stderr: a.err, Signals: signals, Sizes: sizes}
		end, err = session.Run(ctx, in.Exec, req)
		return err
	})
	if err != nil {
		err = explainExec(s, fmt.Errorf("exec in sandbox %s: %w", s.Name, err), "the process is ended when the connection is lost")
	}
	return a.endOfSession(ctx, s, end, err)
}

// atTerminal runs fn with the terminal of the person as one inside needs it, and restores it: with
// its sizes, and handing on every key if there is input. Without a terminal inside it is
// left alone.
func (a *app) atTerminal(inside, input bool, fn func(sizes <-chan *sandboxhostv1.TerminalSize) error) (err error) {
	if !inside {
		return fn(nil)
	}
	sizes, stop := session.Sizes(a.in, a.out)
	defer stop()
	if input {
		restore, rawErr := session.Raw(a.in)
		if rawErr != nil {
			return rawErr
		}
		defer func() { err = errors.Join(err, restore()) }()
	}
	return fn(sizes)
}

// endOfSession turns the end of a process into the end of the command.
func (a *app) endOfSession(ctx context.Context, s *sandbox.Sandbox, end session.Result, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), errGivenUp):
		return exit.WithCode(signalBase + int(syscall.SIGINT))
	case err != nil:
		return err
	case end.Reason != "":
		a.note("the process in sandbox %s was ended: %s", s.Name, end.Reason)
	}
	return exit.WithCode(end.Code)
}

// signalBase is added to the number of a signal for an exit code.
const signalBase = 128

// errGivenUp ends a command whose person has asked for that thrice.
var errGivenUp = errors.New("given up")

// tolerated is how many signals are passed on before the command ends by itself.
const tolerated = 2

// passedOn takes signals for a process elsewhere: the context does not end with them, but
// for the one after enough of them.
func passedOn(ctx context.Context) (_ context.Context, signals <-chan os.Signal, stop func()) {
	out, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	in := make(chan os.Signal, 1)
	signal.Notify(in, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	release := context.AfterFunc(ctx, func() {
		if _, ok := errors.AsType[*run.SignalError](context.Cause(ctx)); !ok {
			cancel(context.Cause(ctx)) // its time is over
		}
	})
	onward := make(chan os.Signal)
	done := make(chan struct{})
	go func() { // ends with out, which stop ends; stop waits for it
		defer close(done)
		relay(out, in, onward, func() { cancel(errGivenUp) })
	}()
	return out, onward, func() {
		signal.Stop(in)
		release()
		cancel(nil)
		<-done
	}
}

// relay passes signals on in their order until ctx ends, and keeps them while the process
// elsewhere has not begun and nobody takes them. The one after enough of them gives up.
func relay(ctx context.Context, in <-chan os.Signal, onward chan<- os.Signal, giveUp func()) {
	var waiting []os.Signal
	for n := 0; ; {
		var next chan<- os.Signal
		var first os.Signal
		if len(waiting) > 0 {
			next, first = onward, waiting[0]
		}
		select {
		case s := <-in:
			if n == tolerated {
				giveUp()
				return
			}
			n++
			waiting = append(waiting, s)
		case next <- first:
			waiting = waiting[1:]
		case <-ctx.Done():
			return
		}
	}
}

// explainExec adds the next step, and where the connection was lost what becomes of the process.
func explainExec(s *sandbox.Sandbox, err error, lost string) error {
	switch fault.Reason(err) {
	case "NOT_RUNNING":
		return exit.Try(err, "staddle describe %s", s.Name)
	case "SHIM_SILENT":
		return exit.Try(err, "staddle explain %s", s.Name)
	case "COMMAND_NOT_FOUND", "COMMAND_NOT_EXECUTABLE", "EXIT_UNKNOWN":
		return err
	case "INPUT_TAKEN", "STDIN_ENDED":
		return exit.Try(err, "staddle attach --no-stdin %s, to watch", s.Name)
	}
	if fault.KindOf(err) == fault.Unavailable {
		return exit.Try(err, "look whether its node is well: staddle describe %s; %s", s.Name, lost)
	}
	return err
}

// codeOfExec gives a failure a code that tells it from the codes of most processes.
func codeOfExec(err error) error {
	switch fault.Reason(err) {
	case "COMMAND_NOT_FOUND":
		return exit.As(err, exit.NoCommand)
	case "COMMAND_NOT_EXECUTABLE":
		return exit.As(err, exit.NotExecutable)
	}
	return exit.As(err, exit.NotEnded)
}
