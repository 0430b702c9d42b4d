package command

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/spf13/cobra"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
)

func (a *app) stopCommand() *cobra.Command {
	return a.eachSandbox("stop", "Stop sandboxes and keep them", `Ask sandboxes to stop, and wait until nothing of them runs. The sandboxes, their
names and their disks stay; "staddle start" starts them as a new attempt.`, a.stopOne)
}

func (a *app) startCommand() *cobra.Command {
	return a.eachSandbox("start", "Start stopped sandboxes", "Start sandboxes that were stopped, and wait until they run.", a.startOne)
}

func (a *app) rmCommand() *cobra.Command {
	var lost bool
	c := a.eachSandbox("rm", "Remove sandboxes", `Remove sandboxes with their processes, files and output, and wait until nothing is
left. Disks stay. With --no-wait only the removal is asked for.

A sandbox whose record the cluster has lost, because its store was made anew or put
back to a copy, goes on running. --lost, with --node-socket, removes it on its node.`,
		func(ctx context.Context, t sandboxes, s sandbox.Sandbox, wait bool) error {
			return a.removeOne(ctx, t, s, removal{wait: wait, lost: lost})
		})
	c.Flags().BoolVar(&lost, "lost", false, "also remove sandboxes of the cluster: it has lost their records")
	return c
}

// removal is how a sandbox is removed.
type removal struct{ wait, lost bool }

// eachSandbox makes a command that does one thing to each sandbox named. All are
// tried; the first failure decides the exit code.
func (a *app) eachSandbox(use, short, long string, do func(context.Context, sandboxes, sandbox.Sandbox, bool) error) *cobra.Command {
	var noWait bool
	c := &cobra.Command{
		Use: use + " [flags] SANDBOX...", Short: short, Long: long, Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: a.sandboxNames(math.MaxInt),
		RunE: func(cmd *cobra.Command, refs []string) error {
			ctx, cancel := a.bounded(cmd.Context(), 0)
			defer cancel()
			return a.withSandboxes(ctx, func(t sandboxes) error {
				return a.each(ctx, t, refs, func(s sandbox.Sandbox) error { return do(ctx, t, s, !noWait) })
			})
		},
	}
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait for it")
	return c
}

func (a *app) each(ctx context.Context, t sandboxes, refs []string, do func(sandbox.Sandbox) error) error {
	var errs []error
	for _, ref := range refs {
		s, err := t.Find(ctx, ref)
		if err == nil {
			err = do(s)
		}
		if err == nil {
			err = a.printDone(s)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return joined(errs)
}

// joined keeps a single error as it is, so that its next step is printed.
func joined(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

func (a *app) printDone(s sandbox.Sandbox) error {
	text := s.Name
	if a.format == output.Name {
		text = s.UID
	}
	_, err := fmt.Fprintln(a.out, text)
	return err
}

func (a *app) stopOne(ctx context.Context, t sandboxes, s sandbox.Sandbox, wait bool) error {
	s, err := t.Update(ctx, s.UID, wantStopped)
	if err != nil || !wait {
		return err
	}
	err = a.watching(ctx, t, s, func(now *sandbox.Sandbox) (bool, error) {
		return now == nil || now.AtRest(), nil
	})
	return exit.Try(err, "staddle get sandbox %s -o yaml", s.Name)
}

func (a *app) startOne(ctx context.Context, t sandboxes, s sandbox.Sandbox, wait bool) error {
	s, err := t.Update(ctx, s.UID, func(spec *resourcev1.SandboxSpec) { wantRunning(spec) })
	if err != nil || !wait {
		return err
	}
	_, err = a.untilStarted(ctx, t, s)
	return err
}

func (a *app) removeOne(ctx context.Context, t sandboxes, s sandbox.Sandbox, how removal) error {
	if err := t.Remove(ctx, s, how.lost); err != nil || !how.wait {
		return err
	}
	err := a.watching(ctx, t, s, func(now *sandbox.Sandbox) (bool, error) {
		return now == nil || now.Status.GetTornDownAt() != nil && (how.lost || now.Manager == sandbox.Local), nil
	})
	if err != nil {
		return exit.Try(err, "staddle ps: its message says what holds it; the removal goes on by itself")
	}
	if err := t.Forget(ctx, s, how.lost); err != nil && fault.KindOf(err) != fault.NotFound {
		return err
	}
	return nil
}

// stopLimit is how long a sandbox may take to be stopped or removed: its own grace
// period, and what there is to take down after it.
func stopLimit(s sandbox.Sandbox) limit {
	return waitStopped + s.Spec.GetTerminationGracePeriod().AsDuration()
}

// watching waits for a sandbox to end, with its state on the terminal.
func (a *app) watching(ctx context.Context, t reader, s sandbox.Sandbox, see func(*sandbox.Sandbox) (bool, error)) error {
	ctx, cancel := a.bounded(ctx, stopLimit(s))
	defer cancel()
	progress := output.NewProgress(a.err)
	defer progress.Done("")
	return await(ctx, t, s, func(now *sandbox.Sandbox) (bool, error) {
		if now != nil {
			progress.Watch(s.Name + ": " + stateOf(now))
		}
		return see(now)
	})
}
