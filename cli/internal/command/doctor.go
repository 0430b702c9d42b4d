package command

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"staddle.internal/cli/internal/doctor"
	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
)

// doctorLimit bounds an examination: sandboxhost answers within a minute.
const doctorLimit = 90 * time.Second

func (a *app) doctorCommand() *cobra.Command {
	var fix bool
	c := &cobra.Command{
		Use: "doctor", Short: "Find out what is wrong with this machine, and mend it", Args: args(cobra.NoArgs),
		Long: `Find out what is wrong with this machine as a node, and print one line for each
finding with what to do about it:

  - what the kernel lacks, disks that are nearly full, a clock that is wrong
  - processes that do not answer, are not ready, or are of another version
  - what the sandbox host's notes and containerd or the kernel do not agree on: tasks,
    namespaces, interfaces, mounts, control groups and so on that are left over
    from sandboxes that are gone, or missing from those that run
  - what the notes of volumes and the folders and mounts of storage do not agree on

With --fix the sandbox host and storage remove what is left over and make again what is
missing; containers that run go on, and no data of a volume is touched. What is not Staddle's is never looked at. It says what it
could not find out, and goes on with the rest: it works while processes are down.

The exit code is 0 if nothing has to be done (any more), and 7 otherwise.`,
		Example: "  staddle doctor\n  staddle doctor --fix\n  staddle doctor -o json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), fix) },
	}
	c.Flags().BoolVar(&fix, "fix", false, "remove what is left over, and make again what is missing")
	return c
}

var doctorColumns = []string{"STATE", "PART", "FINDING", "DO"}

func (a *app) doctor(ctx context.Context, fix bool) error {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	ctx, cancel := a.bounded(ctx, doctorLimit)
	defer cancel()
	report := doctor.Examine(ctx, doctor.Options{Paths: settings.Paths, HostSocket: settings.NodeSocket, Fix: fix})
	rows := make([]output.Row, len(report.Findings))
	for i, f := range report.Findings {
		rows[i] = output.Row{ID: f.Part, Message: f.Message(), Cells: []string{string(f.State), f.Part, f.What, f.Do}}
	}
	if len(rows) > 0 || a.format != output.Table {
		if err := output.Print(a.out, a.format, doctorColumns, rows); err != nil {
			return err
		}
	}
	if a.format == output.Table {
		if err := a.doctorSummary(report); err != nil {
			return err
		}
	}
	if !report.Healthy() {
		return exit.WithCode(exit.Unhealthy)
	}
	return nil
}

// doctorSummary says what was looked at, so that no finding is an answer too.
func (a *app) doctorSummary(report doctor.Report) error {
	verdict := "nothing has to be done"
	if !report.Healthy() {
		verdict = "something has to be done"
	}
	_, err := fmt.Fprintf(a.err, "%s (%s)\n", verdict, strings.Join(report.Facts, "; "))
	return err
}
