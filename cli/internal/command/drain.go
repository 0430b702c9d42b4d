package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/run"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/manifest"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"
)

// draining is how a node is drained.
type draining struct {
	scope     string
	killAfter time.Duration
	deadline  string
	limited   bool // killAfter counts
	shutdown  bool
	reason    string
	noWait    bool
}

var drainScopes = map[string]presencev1.DrainScope{
	"all": presencev1.DrainScope_DRAIN_SCOPE_ALL, "cluster": presencev1.DrainScope_DRAIN_SCOPE_CLUSTER,
}

func (a *app) drainCommand() *cobra.Command {
	var how draining
	var address string
	c := &cobra.Command{
		Use: "drain [NODE]", Short: "Stop all sandboxes of a node and keep them stopped", Args: a.oneNode, ValidArgsFunction: a.nodeToTake,
		Long: `Cordon a node, stop its sandboxes and unmount their disks, and keep it so until
"staddle node uncordon", over restarts and reboots. It waits until nothing of them runs
any more; what was only asked to stop does not count. Each sandbox has its own grace
period; after --kill-after or at --deadline what still lives is killed.

A drain goes on by itself when this command is interrupted: the same command again shows
how far it is. The node is asked on its socket if it is this machine, and else through its
gateway; one that is not reached is cordoned by its record, and not drained. With
--node-socket or --address the node alone is asked, also without a coordinator.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := how.check(time.Now(), cmd.Flags().Changed("kill-after")); err != nil {
				return err
			}
			return a.withOneNode(cmd.Context(), given, address, func(ctx context.Context, n *node) error { return a.drainNode(ctx, n, how) })
		},
	}
	f := c.Flags()
	f.StringVar(&how.scope, "scope", "all", "which sandboxes: all, or those of the `SCOPE` cluster")
	f.DurationVar(&how.killAfter, "kill-after", 0, "kill what still lives after this `TIME`, such as 5m (default: only each sandbox's grace period counts)")
	f.StringVar(&how.deadline, "deadline", "", "kill what still lives at this `TIME`, such as 2026-05-01T22:30:00Z")
	f.BoolVar(&how.shutdown, "shutdown", false, "for a shutdown of the machine: it ends with the reboot, and the node is not cordoned")
	f.StringVar(&how.reason, "reason", "", "`TEXT` for people")
	f.BoolVar(&how.noWait, "no-wait", false, "do not wait for it")
	addressFlag(c, &address)
	completeFlags(c, map[string][]cobra.Completion{"scope": {"all", "cluster"}})
	return c
}

// maxKillAfter is the longest that PresenceService.Drain takes.
const maxKillAfter = 7 * 24 * time.Hour

// check reads the flags. A deadline is reckoned from now by the clock of this machine,
// and kept by the node by one that no jump moves.
func (d *draining) check(now time.Time, killAfter bool) error {
	if drainScopes[d.scope] == 0 {
		return exit.BadUsage("scope %q is not known: write all or cluster", d.scope)
	}
	d.limited = killAfter
	if d.deadline != "" {
		if killAfter {
			return exit.BadUsage("--kill-after and --deadline say the same: leave one out")
		}
		at, err := time.Parse(time.RFC3339, d.deadline)
		if err != nil {
			return exit.BadUsage("deadline %q is not a time: write it as %s", d.deadline, now.Add(time.Hour).Format(time.RFC3339))
		}
		if !at.After(now) {
			return exit.Try(exit.BadUsage("deadline %s is over: it is %s", d.deadline, now.Format(time.RFC3339)), "--kill-after 0s, which kills at once")
		}
		d.limited, d.killAfter = true, at.Sub(now)
	}
	if d.limited && (d.killAfter < 0 || d.killAfter > maxKillAfter) {
		return exit.BadUsage("what still lives is killed after 0s at least, and 7 days at most")
	}
	return nil
}

// request is what the node is asked for.
func (d *draining) request() *presencev1.DrainRequest {
	req := &presencev1.DrainRequest{Scope: drainScopes[d.scope], Shutdown: d.shutdown, Reason: d.reason}
	if d.limited {
		req.KillAfter = durationpb.New(d.killAfter)
	}
	return req
}

// drainNode has a node drained. That it is cordoned is said in its record first: then
// nothing is placed there any more while the node tells the cluster of its drain.
func (a *app) drainNode(ctx context.Context, n *node, how draining) error {
	if !how.shutdown {
		if err := n.setCordoned(ctx, true); err != nil {
			return err
		}
	}
	if n.unreached == nil {
		return a.drain(ctx, n, how)
	}
	state := "it is cordoned by its record, and not drained"
	if how.shutdown {
		state = "it is not drained"
	}
	return exit.Try(fault.New(fault.KindOf(n.unreached), "drain node %s: %v; %s", n.name, n.unreached, state),
		"the same again once the node is reached, or on its machine: sudo staddle node drain %s; if it is gone for good: staddle delete node %s", n.name, n.name)
}

// drain has the node drained and shows how far it is, over restarts of what is between.
// Once the node has accepted it, it is not asked for again: somebody may have ended it
// meanwhile.
func (a *app) drain(ctx context.Context, n *node, how draining) error {
	req, began := how.request(), time.Now()
	progress := output.NewProgress(a.err)
	defer progress.Done("")
	var last *presencev1.DrainProgress
	heard, tries := began, 1
	show := func(now *presencev1.DrainProgress) error {
		tries, heard, last = 1, time.Now(), now
		progress.Say(drainText(now))
		if how.noWait {
			return errEnough
		}
		return nil
	}
	for ; ; tries++ {
		asked := time.Now()
		err := ask(ctx, n.presence, req, last != nil, show)
		if time.Since(asked) > held {
			tries, heard = 1, time.Now()
		}
		switch {
		case err == nil, errors.Is(err, errEnough):
			progress.Done("")
			return a.printDrain(last)
		case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
			progress.Done("")
			return a.leftDraining(ctx, n, last)
		case fault.KindOf(err) != fault.Unavailable || time.Since(heard) > away:
			return err
		}
		if how.limited { // asking again must not be for later
			req.KillAfter = durationpb.New(max(0, how.killAfter-time.Since(began)))
		}
		if err := backoff.Wait(ctx, reconnect.Delay(tries, 0.5)); err != nil {
			continue // the next turn tells why
		}
	}
}

// ask has the node drained, or follows the drain that it has accepted.
func ask(ctx context.Context, p *target.Presence, req *presencev1.DrainRequest, accepted bool, show func(*presencev1.DrainProgress) error) error {
	if accepted {
		return p.FollowDrain(ctx, req.GetShutdown(), show)
	}
	return p.Drain(ctx, req, show)
}

// leftDraining ends a command that stops waiting: because its time is over, or because
// it was interrupted.
func (a *app) leftDraining(ctx context.Context, n *node, last *presencev1.DrainProgress) error {
	what, state := "the node", "it goes on by itself: "+drainText(last)
	if n.name != "" {
		what = "node " + n.name
	}
	if last == nil {
		state = "whether the node has begun with it is not known"
	}
	const next = "the same again, which shows how far it is; staddle node uncordon ends it"
	if _, interrupted := errors.AsType[*run.SignalError](context.Cause(ctx)); interrupted {
		a.note("drain %s: %s\ntry: %s", what, state, next)
		return context.Cause(ctx)
	}
	return exit.Try(fault.New(fault.Unavailable, "drain %s: not done in time; %s", what, state), next)
}

// drainText is how far a drain is, in one line.
func drainText(p *presencev1.DrainProgress) string {
	text := fmt.Sprintf("%d of %d sandboxes are dead", p.GetDead(), p.GetSandboxes())
	if p.GetDisks() > 0 {
		text += fmt.Sprintf(", %d disks are mounted", p.GetDisks())
	}
	if p.GetWaitingFor() != "" {
		text += "; waiting for " + p.GetWaitingFor()
	}
	return text
}

// printDrain says how it ended, and what was hard.
func (a *app) printDrain(p *presencev1.DrainProgress) error {
	if a.format == output.JSON {
		text, err := manifest.JSON(p)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.out, "%s\n", text)
		return err
	}
	var b strings.Builder
	for _, s := range p.GetTroubles() {
		fmt.Fprintf(&b, "%s: %s\n", s.GetName(), s.GetMessage())
	}
	if p.GetStep() == presencev1.DrainStep_DRAIN_STEP_DONE {
		fmt.Fprintf(&b, "node drained: %d sandboxes are dead\n", p.GetDead())
	} else {
		fmt.Fprintf(&b, "node draining: %s\n", drainText(p))
	}
	_, err := io.WriteString(a.out, b.String())
	return err
}
