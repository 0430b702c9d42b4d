package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/explain"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"
)

func (a *app) nodeStatusCommand() *cobra.Command {
	var watch bool
	var address string
	c := &cobra.Command{
		Use: "status NAME|UID", Short: "Ask a node whether it may be given work", Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.nodeNames,
		Long: `Ask a node itself whether it may be given work, and why not. The coordinator tells
where the gateway of the node is, and the node answers there, with what is so now
and not what it reported last. With --address no coordinator is asked.

MemoryPressure, DiskPressure and PIDPressure are true while the machine runs short of
that: it takes no new sandboxes then, and what runs goes on. AppArmor says whether the
machine confines workloads with it, and changes nothing else.

The exit code is 0 only if it may be given work. With --watch it goes on with each
change until it is interrupted.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.nodeStatus(cmd.Context(), given[0], address, watch)
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "go on with each change")
	c.Flags().StringVar(&address, "address", "", "`HOST:PORT` of the node's gateway; NAME is then the node's name")
	return c
}

// nodeNames offers the nodes, of which one is asked.
func (a *app) nodeNames(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.namesOf(cmd, resourcev1.Kind_KIND_NODE, given), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) nodeStatus(ctx context.Context, name, address string, watch bool) error {
	return a.withGateway(ctx, name, address, func(ctx context.Context, p *target.Presence) error {
		if watch {
			err := p.Watch(ctx, a.printPresence)
			if errors.Is(err, context.Canceled) {
				return context.Cause(ctx)
			}
			return err
		}
		now, err := p.Get(ctx)
		if err != nil {
			return err
		}
		if err := a.printPresence(now); err != nil {
			return err
		}
		if !now.GetReady() {
			return exit.WithCode(exit.Failed)
		}
		return nil
	})
}

// withGateway runs fn with a node through its gateway, at an address or where the
// coordinator says.
func (a *app) withGateway(ctx context.Context, ref, address string, fn func(context.Context, *target.Presence) error) (err error) {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	if settings.Direct {
		return exit.Try(exit.BadUsage("a node is asked through its gateway, which is not its socket"), "the same command without --node-socket")
	}
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	name := ref
	if address == "" {
		r, err := lookupNode(ctx, settings, ref)
		if err != nil {
			return err
		}
		if name, address, err = gatewayOf(r); err != nil {
			return err
		}
	}
	p, err := settings.Gateway(ctx, name, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return fn(ctx, p)
}

// printPresence prints what a node says of itself: its conditions, and what follows
// from all of them.
func (a *app) printPresence(p *presencev1.Presence) error {
	if a.format != output.Table {
		return output.PrintOne(a.out, a.format, nil, output.Row{ID: p.GetNodeUid(), Message: p})
	}
	_, err := io.WriteString(a.out, output.Align(presenceTable(time.Now(), p)))
	return err
}

func presenceTable(now time.Time, p *presencev1.Presence) [][]string {
	table := [][]string{{"CONDITION", "STATE", "FOR", "REASON"}}
	var missing []string
	for _, c := range p.GetConditions() {
		table = append(table, []string{
			c.GetType(), strings.ToLower(enumWord(c.GetState().String(), "CONDITION_STATE_")), output.Age(now, c.GetSince()), c.GetReason(),
		})
		if !isPressure(c) && !explain.Informs(c) && c.GetState() != resourcev1.ConditionState_CONDITION_STATE_TRUE {
			missing = append(missing, c.GetType())
		}
	}
	reason := ""
	if !p.GetReady() && len(missing) > 0 {
		reason = "because of " + strings.Join(missing, ", ")
	}
	if short := shortOf(p); p.GetReady() && short != "" {
		reason = "but takes no new sandboxes because of " + short
	}
	return append(table, []string{"Ready", fmt.Sprint(p.GetReady()), "", reason})
}

// shortOf lists what a node runs short of.
func shortOf(p *presencev1.Presence) string {
	var short []string
	for _, c := range p.GetConditions() {
		if isPressure(c) && c.GetState() == resourcev1.ConditionState_CONDITION_STATE_TRUE {
			short = append(short, c.GetType())
		}
	}
	return strings.Join(short, ", ")
}
