package command

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/graph"
	"staddle.internal/cli/internal/output"
)

// levels of a log, by the words of the command line.
var levels = map[string]processv1.LogLevel{
	"debug": processv1.LogLevel_LOG_LEVEL_DEBUG, "info": processv1.LogLevel_LOG_LEVEL_INFO,
	"warn": processv1.LogLevel_LOG_LEVEL_WARN, "error": processv1.LogLevel_LOG_LEVEL_ERROR,
}

// Bounds of the contract on how long a level lasts.
const (
	minLevel = time.Second
	maxLevel = 24 * time.Hour
)

func (a *app) logLevelCommand() *cobra.Command {
	var period time.Duration
	c := &cobra.Command{
		Use: "log-level [flags] [COMPONENT] LEVEL", Short: "Change how much the processes of this machine write",
		Args: args(cobra.RangeArgs(1, 2)), ValidArgsFunction: a.componentsAndLevels,
		Long: `Change the level of the log lines of one process, or of all of them, while they run:
debug, info, warn or error. It lasts until the process is started again, or as long as
--for says; then it is what it was at the start. "supervisor" names the supervisor
itself. "staddle component logs" shows the lines. Where something else than the
supervisor keeps the processes, such as systemd, each is asked at its own socket.`,
		Example: "  staddle log-level sandboxhost debug --for 10m",
		RunE: func(cmd *cobra.Command, given []string) error {
			req, err := levelRequest(given, period)
			if err != nil {
				return err
			}
			return a.logLevel(cmd.Context(), req)
		},
	}
	c.Flags().DurationVar(&period, "for", 0, "`TIME` after which it is as before, such as 10m (default: until the process is started again)")
	return c
}

func levelRequest(given []string, period time.Duration) (*supervisorv1.SetLogLevelRequest, error) {
	word := given[len(given)-1]
	level, ok := levels[word]
	if !ok {
		return nil, exit.BadUsage("log level %q is not known: write debug, info, warn or error", word)
	}
	req := &supervisorv1.SetLogLevelRequest{Level: level}
	if len(given) == 2 {
		req.Component = given[0]
	}
	if period != 0 {
		if period < minLevel || period > maxLevel {
			return nil, exit.BadUsage("--for %s: write %s to %s", period, minLevel, maxLevel)
		}
		req.Period = durationpb.New(period)
	}
	return req, nil
}

func (a *app) logLevel(ctx context.Context, req *supervisorv1.SetLogLevelRequest) error {
	ctx, cancel := a.bounded(ctx, graceCall)
	defer cancel()
	var answer *supervisorv1.SetLogLevelResponse
	err := a.withSupervisor(ctx, func(api supervisorv1.SupervisorServiceClient) (err error) {
		answer, err = api.SetLogLevel(ctx, req)
		return err
	})
	if fault.KindOf(err) == fault.Unavailable { // nobody knows all the processes: each is asked by itself
		answer, err = a.levelOfEach(ctx, req, err)
	}
	if err != nil {
		return known(err)
	}
	var rows []output.Row
	var errs []error
	for _, o := range answer.GetOutcomes() {
		now := levelWord(req.GetLevel())
		if o.GetFailure() != "" {
			now = ""
			errs = append(errs, errors.New("set log level of "+o.GetComponent()+": "+o.GetFailure()))
		}
		rows = append(rows, output.Row{ID: o.GetComponent(), Message: o, Cells: []string{o.GetComponent(), now, levelWord(o.GetPrevious())}})
	}
	if err := output.Print(a.out, a.format, []string{"PROCESS", "LEVEL", "BEFORE"}, rows); err != nil {
		return err
	}
	return joined(errs)
}

// levelWord is a level as the command line names it.
func levelWord(l processv1.LogLevel) string {
	return strings.ToLower(enumWord(l.String(), "LOG_LEVEL_"))
}

// componentsAndLevels offers both in the first place, and levels in the second.
func (a *app) componentsAndLevels(cmd *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	words := []cobra.Completion{"debug", "info", "warn", "error"}
	switch len(given) {
	case 0:
		names, directive := a.componentNames(1)(cmd, given, prefix)
		return append(append(words, names...), graph.Supervisor), directive
	case 1:
		if _, isLevel := levels[given[0]]; !isLevel {
			return words, cobra.ShellCompDirectiveNoFileComp
		}
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}
