package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/graph"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"
)

func (a *app) componentCommand() *cobra.Command {
	return group("component", "Single processes of this machine",
		a.componentListCommand(),
		a.eachComponent("start", "Start processes that were stopped", `Start processes that "component stop" keeps stopped. They come up as soon as what
they need is ready; "staddle status --watch" shows it.`, startComponent),
		a.eachComponent("stop", "Stop processes and keep them stopped", `Stop processes, and wait until they are gone. They stay stopped until "component
start" or "component restart", or until the supervisor itself is started anew. What
needs them stays up, and sandboxes go on running.`, stopComponent),
		a.restartCommand(),
		a.componentLogsCommand(),
		a.componentEventsCommand(),
	)
}

// withSupervisor runs fn with the supervisor of this machine.
func (a *app) withSupervisor(ctx context.Context, fn func(supervisorv1.SupervisorServiceClient) error) (err error) {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	path := settings.Paths.Socket(graph.Supervisor)
	conn, err := target.Socket(ctx, graph.Supervisor, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return target.Refused(graph.Supervisor, path, fn(supervisorv1.NewSupervisorServiceClient(conn)))
}

func (a *app) componentListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the processes", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.bounded(cmd.Context(), graceCall)
			defer cancel()
			return a.withSupervisor(ctx, func(api supervisorv1.SupervisorServiceClient) error {
				g, err := api.GetGraph(ctx, &supervisorv1.GetGraphRequest{})
				if err != nil {
					return fmt.Errorf("get graph: %w", err)
				}
				now, rows := time.Now(), make([]output.Row, len(g.GetComponents()))
				for i, c := range g.GetComponents() {
					rows[i] = output.Row{ID: c.GetName(), Message: c, Cells: graph.Cells(now, c, 0)}
				}
				return output.Print(a.out, a.format, graphColumns, rows)
			})
		},
	}
}

// componentDoer does one thing to one component.
type componentDoer = func(ctx context.Context, api supervisorv1.SupervisorServiceClient, name string) error

func startComponent(ctx context.Context, api supervisorv1.SupervisorServiceClient, name string) error {
	_, err := api.StartComponent(ctx, &supervisorv1.StartComponentRequest{Name: name})
	return err
}

func stopComponent(ctx context.Context, api supervisorv1.SupervisorServiceClient, name string) error {
	_, err := api.StopComponent(ctx, &supervisorv1.StopComponentRequest{Name: name})
	return err
}

// eachComponent makes a command that does one thing to each component named. All
// are tried; the first failure decides the exit code.
func (a *app) eachComponent(use, short, long string, do componentDoer) *cobra.Command {
	return &cobra.Command{
		Use: use + " [flags] NAME...", Short: short, Long: long, Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: a.componentNames(math.MaxInt),
		RunE: func(cmd *cobra.Command, names []string) error {
			ctx, cancel := a.bounded(cmd.Context(), waitStopped)
			defer cancel()
			return a.withSupervisor(ctx, func(api supervisorv1.SupervisorServiceClient) error {
				var errs []error
				for _, name := range names {
					err := known(do(ctx, api, name))
					if err == nil {
						_, err = fmt.Fprintln(a.out, name)
					}
					if err != nil {
						errs = append(errs, err)
					}
				}
				return joined(errs)
			})
		},
	}
}

// known adds to the error about a name how to learn which there are.
func known(err error) error {
	if fault.KindOf(err) == fault.NotFound {
		return exit.Try(err, "staddle component ls")
	}
	return err
}

func (a *app) componentLogsCommand() *cobra.Command {
	var follow bool
	var tail int
	c := &cobra.Command{
		Use: "logs [flags] NAME", Short: "Show what a process wrote", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: a.componentNames(1),
		Long: `Show what the processes of a component wrote, the oldest line that is kept first:
the newest 8 MiB and some of what was before, over all its restarts. With --follow go
on, through restarts, until it is interrupted or the supervisor ends.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			req := &supervisorv1.ReadComponentLogsRequest{Name: given[0], Follow: follow}
			if cmd.Flags().Changed("tail") {
				if tail < 0 || tail > maxTail {
					return exit.BadUsage("--tail %d: write 0 to %d", tail, maxTail)
				}
				lines := uint32(tail)
				req.TailLines = &lines
			}
			return a.componentLogs(cmd.Context(), req)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is written from now on")
	c.Flags().IntVar(&tail, "tail", 0, "begin with the last `NUMBER` of lines (default: all that are kept)")
	return c
}

// maxTail is the bound of the contract.
const maxTail = 1_000_000

func (a *app) componentLogs(ctx context.Context, req *supervisorv1.ReadComponentLogsRequest) error {
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	return a.withSupervisor(ctx, func(api supervisorv1.SupervisorServiceClient) error {
		stream, err := api.ReadComponentLogs(ctx, req)
		for err == nil {
			var piece *supervisorv1.ReadComponentLogsResponse
			if piece, err = stream.Recv(); err == nil {
				err = a.showPiece(piece)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, context.Canceled):
			return context.Cause(ctx)
		}
		return known(err)
	})
}

func (a *app) showPiece(piece *supervisorv1.ReadComponentLogsResponse) error {
	if n := piece.GetMissedBytes(); n > 0 {
		if _, err := fmt.Fprintf(a.err, "staddle: %d bytes are not kept any more\n", n); err != nil {
			return err
		}
	}
	_, err := a.out.Write(piece.GetData())
	return err
}
