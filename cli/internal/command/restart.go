package command

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/graph"
)

const (
	// reprogrammed is how long a supervisor that replaces its program may be out of
	// reach; it is milliseconds, as its socket stays.
	reprogrammed = 10 * time.Second
	// reasonRefused is the reason of Conflict for a program that did not stand its trial.
	reasonRefused = "PROGRAM_REFUSED"
)

func (a *app) restartCommand() *cobra.Command {
	c := a.eachComponent("restart", "Restart processes", `End processes and start them again, and wait until the old ones are gone. Sandboxes
go on running. A process that is backing off is started at once.

"supervisor" has the supervisor itself go on with the program and the node.yaml that
are installed now, and waits until it does. The other processes run on, and none of
their sockets refuses a call. A program that would not get far is found out before.`, a.restartComponent)
	c.ValidArgsFunction = a.componentsAndSupervisor(math.MaxInt)
	return c
}

func (a *app) restartComponent(ctx context.Context, api supervisorv1.SupervisorServiceClient, name string) error {
	if name == graph.Supervisor {
		return a.restartSupervisor(ctx, api)
	}
	_, err := api.RestartComponent(ctx, &supervisorv1.RestartComponentRequest{Name: name})
	return err
}

// restartSupervisor asks the program that serves now to make way for the next, and
// goes on asking, in the same words, until that one answers.
func (a *app) restartSupervisor(ctx context.Context, api supervisorv1.SupervisorServiceClient) error {
	now, err := api.GetSupervisor(ctx, &supervisorv1.GetSupervisorRequest{})
	if err != nil {
		return fmt.Errorf("restart supervisor: %w", err)
	}
	req := &supervisorv1.RestartSupervisorRequest{Life: now.GetProgram().GetLife(), Number: now.GetProgram().GetNumber()}
	var lost time.Time // since when it cannot be reached
	for {
		err := a.withSupervisor(ctx, func(api supervisorv1.SupervisorServiceClient) error {
			answer, err := api.RestartSupervisor(ctx, req)
			if err == nil && answer.GetProgram().GetLife() != req.GetLife() {
				return fault.New(fault.Conflict, "restart supervisor: it ended meanwhile, with all components, and was started anew")
			}
			return err
		})
		switch {
		case fault.Reason(err) == reasonRefused:
			return exit.Try(err, "mend what it says and repeat; the supervisor goes on as it was")
		case fault.KindOf(err) != fault.Unavailable || ctx.Err() != nil:
			return err
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) > reprogrammed:
			return err
		}
		if err := backoff.Wait(ctx, redialSoon); err != nil {
			return err
		}
	}
}

// redialSoon spaces the questions to a supervisor that is expected back at once.
const redialSoon = 50 * time.Millisecond

// componentsAndSupervisor offers the components and the supervisor itself.
func (a *app) componentsAndSupervisor(most int) completer {
	components := a.componentNames(most)
	return func(cmd *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names, directive := components(cmd, given, prefix)
		if len(given) >= most || len(names) == 0 && len(given) == 0 {
			return names, directive
		}
		return append(names, without([]string{graph.Supervisor}, given)...), directive
	}
}
