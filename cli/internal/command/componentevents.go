package command

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/graph"
	"staddle.internal/cli/internal/output"
)

// maxComponentEvents is how many a supervisor keeps.
const maxComponentEvents = 1000

func (a *app) componentEventsCommand() *cobra.Command {
	var watch bool
	var limit int
	c := &cobra.Command{
		Use: "events [flags] [COMPONENT]", Short: "Show what happened to the processes of this machine",
		Args: args(cobra.MaximumNArgs(1)), ValidArgsFunction: a.componentsAndSupervisor(1),
		Long: `Show each change of state of the processes of this machine, or of one of them: when,
from what to what, why, how a process ended and when it is tried again; and, under
the name "supervisor", what became of each wish to replace its own program. The supervisor
keeps the last 1000, as long as it runs. With --watch go on, also over restarts of the
supervisor, until it is interrupted.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			if limit < 0 || limit > maxComponentEvents {
				return exit.BadUsage("--limit %d: write 0 to %d", limit, maxComponentEvents)
			}
			component := ""
			if len(given) > 0 {
				component = given[0]
			}
			return a.componentEvents(cmd.Context(), component, limit, watch)
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "go on with each new one")
	c.Flags().IntVar(&limit, "limit", 0, "`NUMBER` of events to begin with, the newest (default: all that are kept)")
	return c
}

var componentEventColumns = []string{"SEQ", "AT", "PROCESS", "FROM", "TO", "ATTEMPT", "EXIT", "NEXT", "REASON"}

func (a *app) componentEvents(ctx context.Context, component string, limit int, watch bool) error {
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	var list *supervisorv1.ListEventsResponse
	err := a.withSupervisor(ctx, func(api supervisorv1.SupervisorServiceClient) (err error) {
		list, err = api.ListEvents(ctx, &supervisorv1.ListEventsRequest{Component: component, Limit: uint32(limit)})
		return known(err)
	})
	if err != nil {
		return err
	}
	rows := make([]output.Row, len(list.GetEvents()))
	for i, e := range list.GetEvents() {
		rows[i] = componentEventRow(e)
	}
	if !watch {
		return output.Print(a.out, a.format, componentEventColumns, rows)
	}
	return a.watchComponentEvents(ctx, component, list, rows)
}

// watchComponentEvents prints the first rows and then each event as a line of its own.
func (a *app) watchComponentEvents(ctx context.Context, component string, list *supervisorv1.ListEventsResponse, rows []output.Row) error {
	widths, err := a.beginLines(componentEventColumns, rows)
	if err != nil {
		return err
	}
	req := &supervisorv1.WatchEventsRequest{Component: component, Life: list.GetLife()}
	if n := len(list.GetEvents()); n > 0 {
		req.AfterSeq = list.GetEvents()[n-1].GetSeq()
	}
	return again(ctx, func() error { return a.watchLife(ctx, req, widths) })
}

// watchLife prints what comes until the supervisor ends, and notes in req how far
// it came.
func (a *app) watchLife(ctx context.Context, req *supervisorv1.WatchEventsRequest, widths []int) error {
	return a.withSupervisor(ctx, func(api supervisorv1.SupervisorServiceClient) error {
		stream, err := api.WatchEvents(ctx, req)
		if err != nil {
			return err
		}
		for {
			m, err := stream.Recv()
			if err != nil {
				return err
			}
			if n := m.GetMissed(); n > 0 {
				if _, err := fmt.Fprintf(a.err, "staddle: %d events are not kept any more\n", n); err != nil {
					return err
				}
			}
			if err := output.PrintLine(a.out, a.format, widths, componentEventRow(m.GetEvent())); err != nil {
				return err
			}
			req.AfterSeq, req.Life = m.GetEvent().GetSeq(), m.GetLife()
		}
	})
}

func componentEventRow(e *supervisorv1.ComponentEvent) output.Row {
	ended, next, attempt := e.GetExitSignal(), "", ""
	if e.ExitCode != nil {
		ended = fmt.Sprint(e.GetExitCode())
	}
	if e.GetNextDelay() != nil {
		next = e.GetNextDelay().AsDuration().Round(time.Millisecond).String()
	}
	if n := e.GetAttempt(); n > 0 {
		attempt = fmt.Sprint(n)
	}
	return output.Row{
		ID: fmt.Sprint(e.GetSeq()), Message: e,
		Cells: []string{
			fmt.Sprint(e.GetSeq()), e.GetAt().AsTime().Local().Format("2006-01-02 15:04:05.000"), e.GetComponent(),
			graph.Word(e.GetFrom()), graph.Word(e.GetTo()), attempt, ended, next, e.GetCause(),
		},
	}
}
