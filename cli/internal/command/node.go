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
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/manifest"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"
)

func (a *app) nodeCommand() *cobra.Command {
	return group("node", "Nodes of the cluster", a.listCommand("List nodes", resourcev1.Kind_KIND_NODE),
		a.nodeStatusCommand(), a.cordonCommand(), a.uncordonCommand(), a.drainCommand())
}

// oneNode is the argument of the commands that take a node out of use: its name for
// the coordinator, none where --node-socket says which one it is.
func (a *app) oneNode(cmd *cobra.Command, given []string) error {
	if a.flags.NodeSocket != "" {
		if len(given) > 0 {
			return exit.Try(exit.BadUsage("%s: --node-socket says which node it is, and %s too", pathOf(cmd), given[0]), "the same without %s", given[0])
		}
		return nil
	}
	return args(cobra.ExactArgs(1))(cmd, given)
}

// nodeToTake offers the nodes, unless --node-socket names one.
func (a *app) nodeToTake(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(given) > 0 || a.flags.NodeSocket != "" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.namesOf(cmd, resourcev1.Kind_KIND_NODE, given), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) cordonCommand() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "cordon [NODE]", Short: "Place no new sandboxes on a node", Args: a.oneNode, ValidArgsFunction: a.nodeToTake,
		Long: `Place no new sandboxes on a node. What runs there goes on. With a NODE its record at
the coordinator says so; with --node-socket the node itself does, also without a
coordinator. Both count, and each is lifted where it was said.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			if len(given) == 0 {
				return a.withPresence(cmd.Context(), func(ctx context.Context, p *target.Presence) error {
					return a.said(p.Cordon(ctx, reason), "node cordoned")
				})
			}
			if reason != "" {
				return exit.Try(exit.BadUsage("a reason is kept by the node itself, not in its record"), "staddle --node-socket SOCKET node cordon --reason TEXT")
			}
			return a.withCluster(cmd.Context(), func(ctx context.Context, t *target.Cluster) error {
				r, err := a.setCordoned(ctx, t, given[0], true)
				if err != nil {
					return err
				}
				return a.printRecord(r, "cordoned")
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "`TEXT` for people, with --node-socket")
	return c
}

func (a *app) uncordonCommand() *cobra.Command {
	return &cobra.Command{
		Use: "uncordon [NODE]", Short: "Place sandboxes on a node again, and end a drain", Args: a.oneNode, ValidArgsFunction: a.nodeToTake,
		Long: `Let a node be given work again. With --node-socket, or if NODE is on this machine, that
ends a drain as well: what was drained runs again, as a new attempt. Does not wait for it.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			if len(given) == 0 {
				return a.withPresence(cmd.Context(), func(ctx context.Context, p *target.Presence) error {
					return a.said(p.Uncordon(ctx), "node uncordoned")
				})
			}
			return a.withCluster(cmd.Context(), func(ctx context.Context, t *target.Cluster) error {
				return a.uncordon(ctx, t, given[0])
			})
		},
	}
}

// uncordon lifts what the record says, and what the node itself says if it is here.
func (a *app) uncordon(ctx context.Context, t *target.Cluster, name string) error {
	r, err := a.setCordoned(ctx, t, name, false)
	if err != nil {
		return err
	}
	err = a.withPresenceOf(ctx, r.GetMeta().GetName(), func(ctx context.Context, p *target.Presence) error { return p.Uncordon(ctx) })
	elsewhere := fault.Reason(err) == reasonElsewhere
	if s := r.GetNode().GetStatus(); elsewhere && !s.GetCordoned() && !s.GetHolding() {
		err = nil // it has nothing to lift
	}
	if err != nil {
		return fmt.Errorf("its record is uncordoned, what the node itself says is not: %w", err)
	}
	return a.printRecord(r, "uncordoned")
}

// setCordoned changes what the record of a node says.
func (a *app) setCordoned(ctx context.Context, t *target.Cluster, name string, cordoned bool) (*resourcev1.Resource, error) {
	r, err := t.Lookup(ctx, resourcev1.Kind_KIND_NODE, name)
	if err != nil {
		return nil, err
	}
	return t.UpdateRecord(ctx, r, func(r *resourcev1.Resource) error {
		n := r.GetNode()
		if n.GetSpec().GetCordoned() == cordoned {
			return nil
		}
		n.Spec = &resourcev1.NodeSpec{Cordoned: cordoned}
		return nil
	})
}

// draining is how a node is drained.
type draining struct {
	scope     string
	killAfter time.Duration
	limited   bool
	shutdown  bool
	reason    string
	noWait    bool
}

var drainScopes = map[string]presencev1.DrainScope{
	"all": presencev1.DrainScope_DRAIN_SCOPE_ALL, "cluster": presencev1.DrainScope_DRAIN_SCOPE_CLUSTER,
}

func (a *app) drainCommand() *cobra.Command {
	var how draining
	c := &cobra.Command{
		Use: "drain [NODE]", Short: "Stop all sandboxes of a node and keep them stopped", Args: a.oneNode, ValidArgsFunction: a.nodeToTake,
		Long: `Cordon a node, stop its sandboxes and unmount their disks, and keep it so until
"staddle node uncordon", over restarts and reboots. It waits until nothing of them runs
any more; what was only asked to stop does not count. Each sandbox has its own grace
period; after --kill-after what still lives is killed.

A drain goes on by itself when this command is interrupted: the same command again shows
how far it is. NODE is the node of this machine; --node-socket names it by its socket.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			if drainScopes[how.scope] == 0 {
				return exit.BadUsage("scope %q is not known: write all or cluster", how.scope)
			}
			how.limited = cmd.Flags().Changed("kill-after")
			drain := func(ctx context.Context, p *target.Presence) error { return a.drain(ctx, p, how) }
			if len(given) == 0 {
				return a.withPresence(cmd.Context(), drain)
			}
			ctx, cancel := a.bounded(cmd.Context(), 0)
			defer cancel()
			return a.withPresenceOf(ctx, given[0], drain)
		},
	}
	f := c.Flags()
	f.StringVar(&how.scope, "scope", "all", "which sandboxes: all, or those of the `SCOPE` cluster")
	f.DurationVar(&how.killAfter, "kill-after", 0, "kill what still lives after this `TIME`, such as 5m (default: only each sandbox's grace period counts)")
	f.BoolVar(&how.shutdown, "shutdown", false, "for a shutdown of the machine: it ends with the reboot, and the node is not cordoned")
	f.StringVar(&how.reason, "reason", "", "`TEXT` for people")
	f.BoolVar(&how.noWait, "no-wait", false, "do not wait for it")
	completeFlags(c, map[string][]cobra.Completion{"scope": {"all", "cluster"}})
	return c
}

// drain has the node drained and shows how far it is, over restarts of presence.
func (a *app) drain(ctx context.Context, p *target.Presence, how draining) error {
	req := &presencev1.DrainRequest{Scope: drainScopes[how.scope], Shutdown: how.shutdown, Reason: how.reason}
	if how.limited {
		req.KillAfter = durationpb.New(how.killAfter)
	}
	progress := output.NewProgress(a.err)
	defer progress.Done("")
	var last *presencev1.DrainProgress
	heard := time.Now()
	for tries := 1; ; tries++ {
		err := p.Drain(ctx, req, func(now *presencev1.DrainProgress) error {
			tries, heard, last = 1, time.Now(), now
			progress.Say(drainText(now))
			if how.noWait {
				return errEnough
			}
			return nil
		})
		switch {
		case err == nil, errors.Is(err, errEnough):
			progress.Done("")
			return a.printDrain(last)
		case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
			return exit.Try(fault.New(fault.Unavailable, "drain the node: not done in time: %s", last.GetWaitingFor()),
				"the same again: the drain goes on by itself")
		case fault.KindOf(err) != fault.Unavailable || time.Since(heard) > away:
			return err
		}
		req.KillAfter = nil // what was accepted counts; asking anew must not be for later
		if last == nil && how.limited {
			req.KillAfter = durationpb.New(max(0, how.killAfter-time.Since(heard)))
		}
		if err := backoff.Wait(ctx, reconnect.Delay(tries, 0.5)); err != nil {
			return err
		}
	}
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

// said prints a sentence after a success.
func (a *app) said(err error, sentence string) error {
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, sentence)
	return err
}

// withPresence runs fn with the node that --node-socket names.
func (a *app) withPresence(ctx context.Context, fn func(context.Context, *target.Presence) error) (err error) {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	p, err := settings.Presence(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return fn(ctx, p)
}

// reasonElsewhere is for a node of another machine.
const reasonElsewhere = "NODE_ELSEWHERE"

// withPresenceOf runs fn with the node of a name, if it is the one of this machine.
func (a *app) withPresenceOf(ctx context.Context, name string, fn func(context.Context, *target.Presence) error) error {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	here, err := config.LoadNode(settings.Paths.NodeFile())
	if err != nil || here.Name != name {
		return exit.Try(fault.WithReason(fault.New(fault.NotFound, "node %s is not on this machine", name), reasonElsewhere),
			"on its machine: staddle --node-socket %s ...", config.Paths{}.Socket("sandboxhost"))
	}
	return a.withPresence(ctx, fn)
}
