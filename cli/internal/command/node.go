package command

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
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

// addressFlag adds --address to a command about one node.
func addressFlag(c *cobra.Command, address *string) {
	c.Flags().StringVar(address, "address", "", "`HOST:PORT` of the node's gateway; NODE is then its name, and no coordinator is asked")
}

func (a *app) cordonCommand() *cobra.Command {
	var reason, address string
	c := &cobra.Command{
		Use: "cordon [NODE]", Short: "Place no new sandboxes on a node", Args: a.oneNode, ValidArgsFunction: a.nodeToTake,
		Long: `Place no new sandboxes on a node. What runs there goes on. Its record at the
coordinator says so from then on, and the node itself, which is asked on its socket if it
is this machine, and else through its gateway. While it cannot be reached the record
counts alone, and the command says so. With --node-socket or --address the node alone is
asked, also without a coordinator.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withOneNode(cmd.Context(), given, address, func(ctx context.Context, n *node) error { return a.cordon(ctx, n, reason) })
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "`TEXT` for people, which the node itself keeps")
	addressFlag(c, &address)
	return c
}

// cordon has it said in the record, which is what counts for placing, and on the node.
func (a *app) cordon(ctx context.Context, n *node, reason string) error {
	if err := n.setCordoned(ctx, true); err != nil {
		return err
	}
	err := n.unreached
	if err == nil {
		err = n.presence.Cordon(ctx, reason)
	}
	if n.record == nil {
		if err != nil {
			return err
		}
		return a.saidByNode(ctx, n, "node cordoned")
	}
	if err == nil {
		return a.printRecord(n.record, "cordoned")
	}
	a.note("node %s itself does not know of it: %v", n.name, err)
	return a.printRecord(n.record, "cordoned by its record alone")
}

func (a *app) uncordonCommand() *cobra.Command {
	var address string
	c := &cobra.Command{
		Use: "uncordon [NODE]", Short: "Place sandboxes on a node again, and end a drain", Args: a.oneNode, ValidArgsFunction: a.nodeToTake,
		Long: `Let a node be given work again, by its record and by itself, and end a drain: what was
drained runs again, as a new attempt. Does not wait for it. With --node-socket or
--address the node alone is asked, also without a coordinator.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withOneNode(cmd.Context(), given, address, a.uncordon)
		},
	}
	addressFlag(c, &address)
	return c
}

// uncordon lifts what the node itself says, and what its record says.
func (a *app) uncordon(ctx context.Context, n *node) error {
	if err := n.setCordoned(ctx, false); err != nil {
		return err
	}
	err := n.unreached
	if err == nil {
		err = n.presence.Uncordon(ctx)
	}
	if n.record == nil {
		if err != nil {
			return err
		}
		return a.saidByNode(ctx, n, "node uncordoned")
	}
	if err == nil {
		return a.printRecord(n.record, "uncordoned")
	}
	if s := n.record.GetNode().GetStatus(); s.GetCordoned() || s.GetHolding() {
		return fmt.Errorf("its record is uncordoned, what the node itself says is not: %w", err)
	}
	a.note("node %s itself was not asked, and was not cordoned when it was heard of last, %s ago: %v",
		n.name, output.Age(time.Now(), n.record.GetNode().GetStatus().GetReportedAt()), err)
	return a.printRecord(n.record, "uncordoned")
}

// saidByNode ends what only the node itself was asked for: by a sentence, or with -o by
// how it is now.
func (a *app) saidByNode(ctx context.Context, n *node, sentence string) error {
	if a.format == output.Table {
		_, err := fmt.Fprintln(a.out, sentence)
		return err
	}
	now, err := n.presence.Get(ctx)
	if err != nil {
		return err
	}
	return a.printPresence(now)
}

// note says on standard error what is worth knowing beside a success.
func (a *app) note(format string, args ...any) {
	_, _ = fmt.Fprintf(a.err, "staddle: "+format+"\n", args...) // nobody could be told that this failed
}
