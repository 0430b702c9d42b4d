package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/graph"
	"staddle.internal/cli/internal/manifest"
	"staddle.internal/cli/internal/output"
)

func (a *app) statusCommand() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use: "status", Short: "Show the processes of this machine", Args: args(cobra.NoArgs),
		Long: `Show the processes of this machine in the order in which they start, each below
what it needs, with its state, since when, and why it is not ready.

The supervisor knows; without one, every process is asked on its own socket. Root
may ask, and the members of the group staddle-admin.
The exit code is 0 only if all of them are ready. With --watch it goes on until
it is interrupted.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.status(cmd.Context(), watch) },
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "go on with each change")
	return c
}

func (a *app) status(ctx context.Context, watch bool) error {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	if watch {
		return a.watchStatus(ctx, graph.New(settings.Paths))
	}
	g, err := graph.New(settings.Paths).Now(ctx)
	if fault.KindOf(err) == fault.NotFound && settings.Context != "" {
		return fmt.Errorf("%w (%s says that it is there)", err, settings.Context)
	}
	if err != nil {
		return err
	}
	if err := a.printGraph(g); err != nil {
		return err
	}
	switch {
	case graph.Ready(g):
		return nil
	case graph.Stopped(g):
		return exit.Try(errors.New("no process of Staddle runs here"), "staddle up")
	default:
		return exit.WithCode(exit.Failed)
	}
}

var graphColumns = []string{"PROCESS", "STATE", "FOR", "PID", "STARTS", "NEEDS", "REASON"}

func (a *app) printGraph(g *supervisorv1.GetGraphResponse) error {
	switch a.format {
	case output.JSON:
		text, err := manifest.JSON(g)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.out, "%s\n", text)
		return err
	case output.Table:
		_, err := io.WriteString(a.out, graphTable(time.Now(), g))
		return err
	}
	now := time.Now()
	rows := make([]output.Row, len(g.GetComponents()))
	for i, c := range g.GetComponents() {
		rows[i] = output.Row{ID: c.GetName(), Message: c, Cells: graph.Cells(now, c, 0)}
	}
	return output.Print(a.out, a.format, graphColumns, rows)
}

func graphTable(now time.Time, g *supervisorv1.GetGraphResponse) string {
	table := [][]string{graphColumns}
	depths := graph.Depths(g.GetComponents())
	for i, c := range g.GetComponents() {
		table = append(table, graph.Cells(now, c, depths[i]))
	}
	return output.Align(table)
}

// graphWidth is what the whole table takes where nothing is wrong. A narrower
// terminal gets the short one to watch: the tree says what needs what.
const graphWidth = 140

// watchStatus prints the graph and then a line per change; on a terminal the
// graph is drawn anew in its place.
func (a *app) watchStatus(ctx context.Context, from *graph.Source) error {
	live := a.format == output.Table && output.Terminal(a.out)
	view, watch := graph.NewView(a.out, live), from.Watch
	if live {
		watch = func(ctx context.Context, show func(*supervisorv1.GetGraphResponse) error) error {
			return graph.Ticking(ctx, from.Watch, show)
		}
	}
	err := watch(ctx, func(g *supervisorv1.GetGraphResponse) error {
		if a.format != output.Table {
			return a.printGraph(g)
		}
		return view.Show(g, func() string {
			if columns, _ := output.Size(a.out); live && columns < graphWidth {
				return graph.Short(time.Now(), g)
			}
			return graphTable(time.Now(), g)
		})
	})
	if errors.Is(err, context.Canceled) {
		return context.Cause(ctx)
	}
	return err
}
