package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

// redial is how long one that is away is left alone while it is watched.
const redial = time.Second

// maxEvents is how many events a node keeps.
const maxEvents = 4096

var eventColumns = []string{"LAST", "AGE", "COUNT", "SEVERITY", "SANDBOX", "CONTAINER", "REASON", "MESSAGE"}

func (a *app) eventsCommand() *cobra.Command {
	r := &eventReader{app: a}
	c := &cobra.Command{
		Use: "events [flags] [SANDBOX]", Short: "Show what happened to sandboxes",
		Args: args(cobra.MaximumNArgs(1)), ValidArgsFunction: a.sandboxNames(1),
		Long: `Show what happened to a sandbox, wherever it is, or to all of this node: since when, how
often, and when last. Warnings are what somebody may have to look at. The node keeps
the last 64 events of each sandbox, and the last 4096 of all; those of a sandbox that was
removed are found by its uid. With --watch go on, also over restarts of the node's
processes, until it is interrupted. What the processes of a machine do themselves is
shown by "component events".`,
		RunE: func(cmd *cobra.Command, given []string) error {
			if r.limit < 0 || r.limit > maxEvents {
				return exit.BadUsage("--limit %d: write 0 to %d", r.limit, maxEvents)
			}
			ctx, cancel := a.bounded(cmd.Context(), 0)
			defer cancel()
			return r.run(ctx, strings.Join(given, ""))
		},
	}
	c.Flags().BoolVarP(&r.watch, "watch", "w", false, "go on with what happens from now on")
	c.Flags().IntVar(&r.limit, "limit", 0, "`NUMBER` of events to begin with, the newest (default: all that are kept)")
	c.Flags().BoolVar(&r.warnings, "warnings", false, "only warnings")
	return c
}

// eventReader shows what happened.
type eventReader struct {
	app             *app
	watch, warnings bool
	limit           int

	seq    uint64 // of the last event that was read
	widths []int  // of the table, once its first rows are printed; nil before
}

func (r *eventReader) run(ctx context.Context, ref string) error {
	if !r.watch {
		return r.at(ctx, ref, r.list)
	}
	return again(ctx, func() error { return r.at(ctx, ref, r.follow) })
}

// at runs fn with the node of a sandbox, or without a sandbox with this node. A sandbox that
// is not there any more is named by its uid.
func (r *eventReader) at(ctx context.Context, ref string, fn func(context.Context, *target.Inside, string) error) error {
	here := func(uid string) error {
		return r.app.withNode(ctx, func(ctx context.Context, n *target.Node) error { return fn(ctx, n.Inside(), uid) })
	}
	if ref == "" {
		return here("")
	}
	found := false
	err := r.app.withInside(ctx, ref, func(ctx context.Context, inside *target.Inside, s *sandbox.Sandbox) error {
		found = true
		return fn(ctx, inside, s.UID)
	})
	if _, bad := id.ParseSandbox(ref); !found && bad == nil && errors.Is(err, fault.NotFound) {
		return here(ref)
	}
	return err
}

// list prints what is kept.
func (r *eventReader) list(ctx context.Context, inside *target.Inside, uid string) error {
	rows, err := r.kept(ctx, inside, uid)
	if err != nil {
		return err
	}
	return output.Print(r.app.out, r.app.format, eventColumns, rows)
}

func (r *eventReader) kept(ctx context.Context, inside *target.Inside, uid string) ([]output.Row, error) {
	var rows []output.Row
	req := &sandboxhostv1.ReadEventsRequest{Uid: uid}
	if !r.warnings { // those of another kind do not count
		req.Limit = uint32(r.limit) //nolint:gosec // at most maxEvents
	}
	err := inside.ReadEvents(ctx, req, func(e *sandboxhostv1.Event) error {
		if r.seq = e.GetSeq(); r.wanted(e) {
			rows = append(rows, eventRow(time.Now(), e))
		}
		return nil
	})
	if r.limit > 0 && len(rows) > r.limit {
		rows = rows[len(rows)-r.limit:]
	}
	return rows, err
}

// follow prints what is kept, unless that was done, and then what happens.
func (r *eventReader) follow(ctx context.Context, inside *target.Inside, uid string) error {
	if r.widths == nil {
		rows, err := r.kept(ctx, inside, uid)
		if err != nil {
			return err
		}
		if r.widths, err = r.app.beginLines(eventColumns, rows); err != nil {
			return err
		}
	}
	req := &sandboxhostv1.ReadEventsRequest{Uid: uid, AfterSeq: r.seq, Follow: true}
	return inside.ReadEvents(ctx, req, func(e *sandboxhostv1.Event) error {
		if r.seq = e.GetSeq(); !r.wanted(e) {
			return nil
		}
		return output.PrintLine(r.app.out, r.app.format, r.widths, eventRow(time.Now(), e))
	})
}

func (r *eventReader) wanted(e *sandboxhostv1.Event) bool {
	return !r.warnings || e.GetSeverity() == sandboxhostv1.EventSeverity_EVENT_SEVERITY_WARNING
}

func eventRow(now time.Time, e *sandboxhostv1.Event) output.Row {
	return output.Row{
		ID: fmt.Sprint(e.GetSeq()), Message: e,
		Cells: []string{
			moment(e.GetLastAt()), output.Age(now, e.GetFirstAt()), fmt.Sprint(e.GetCount()),
			strings.ToLower(enumWord(e.GetSeverity().String(), "EVENT_SEVERITY_")), e.GetSandbox(), e.GetContainer(), e.GetReason(), e.GetMessage(),
		},
	}
}

// beginLines prints the first rows of a table that goes on line by line, and returns the
// widths of its columns.
func (a *app) beginLines(columns []string, rows []output.Row) ([]int, error) {
	table := [][]string{columns}
	for _, r := range rows {
		table = append(table, r.Cells)
	}
	widths := output.Widths(table)
	if a.format == output.Table {
		rows = append([]output.Row{{Cells: columns}}, rows...)
	}
	for _, r := range rows {
		if err := output.PrintLine(a.out, a.format, widths, r); err != nil {
			return nil, err
		}
	}
	return widths, nil
}

// again repeats what watches one who goes away from time to time, until ctx ends or it
// fails for another reason.
func again(ctx context.Context, watch func() error) error {
	for {
		err := watch()
		if fault.KindOf(err) != fault.Unavailable || ctx.Err() != nil {
			if errors.Is(err, context.Canceled) {
				return context.Cause(ctx)
			}
			return err
		}
		if err := backoff.Wait(ctx, redial); err != nil {
			return err
		}
	}
}
