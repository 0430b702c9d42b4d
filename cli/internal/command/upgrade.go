package command

import (
	"context"

	"github.com/spf13/cobra"

	"staddle.internal/cli/internal/machine"
)

func (a *app) upgradeCommand() *cobra.Command {
	var folder string
	c := &cobra.Command{
		Use: "upgrade", Short: "Restart all processes, with new binaries or in place", Args: args(cobra.NoArgs),
		Long: `Restart the processes of this machine one after the other in dependency order, with
the binaries of a folder, or with the installed ones. Each must be ready again before
the next is touched. If one is not, all get their old binaries back and the command
fails; if all are, the new binaries are installed. Sandboxes, mounts and addresses are
not touched, and who follows output goes on.

An interrupt ends the command, and not the upgrade. Needs root; without it, it asks
sudo.`,
		Example: "  staddle upgrade --binaries ./bin",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.asRoot(cmd.Context(), "the supervisor", func(ctx context.Context, m *machine.Machine) error {
				return m.Upgrade(ctx, folder)
			})
		},
	}
	c.Flags().StringVar(&folder, "binaries", "", "`FOLDER` with the new binaries (default: restart with the installed ones)")
	return c
}
