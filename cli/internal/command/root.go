package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"staddle.internal/kit/config"
	"staddle.internal/kit/version"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"
)

const about = `Staddle runs sandboxes on nodes.

Commands talk to the coordinator, with the identity of an operator; or, with
--node-socket, straight to one node, which works without any coordinator.
The first step on a fresh machine is "staddle up".

A sandbox is named by its name, its uid, or the first characters of its uid (at
least 6, if they fit only one).

` + exit.Help

// Groups of commands in the help text.
const (
	groupMachine   = "machine"
	groupSandboxes = "sandboxes"
	groupRecords   = "records"
)

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "staddle", Short: "Run sandboxes on nodes", Long: about,
		Version: version.String(), SilenceErrors: true, SilenceUsage: true,
		Args: onlyCommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(wrongFlag)
	root.AddGroup(
		&cobra.Group{ID: groupMachine, Title: "This machine:"},
		&cobra.Group{ID: groupSandboxes, Title: "Sandboxes:"},
		&cobra.Group{ID: groupRecords, Title: "Records:"},
	)
	a.globalFlags(root)
	completeGlobals(root)
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return a.checkGlobals() }
	add(root, groupMachine, a.upCommand(), a.downCommand(), a.shutdownCommand(), a.statusCommand(), a.doctorCommand(), a.upgradeCommand(),
		a.componentCommand(), a.logLevelCommand())
	add(root, groupSandboxes, a.runCommand(), a.psCommand(), a.topCommand(), a.describeCommand(), a.explainCommand(), a.eventsCommand(), a.waitCommand(), a.logsCommand(), a.execCommand(), a.attachCommand(), a.portForwardCommand(), a.cpCommand(), a.stopCommand(), a.startCommand(), a.rmCommand(), a.imageCommand())
	add(root, groupRecords, a.getCommand(), a.applyCommand(), a.deleteCommand(), a.diskCommand(), a.serviceCommand(), a.secretCommand(), a.nodeCommand())
	root.AddCommand(a.versionCommand())
	return root
}

func add(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		root.AddCommand(c)
	}
}

func (a *app) globalFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&a.flags.Root, "root", os.Getenv("STADDLE_ROOT"), "`FOLDER` of an installation that has its files below it (default $STADDLE_ROOT)")
	f.StringVar(&a.flags.NodeSocket, "node-socket", "", "talk to one node directly, through the `SOCKET` of its sandboxhost")
	f.StringVar(&a.flags.Coordinator, "coordinator", "", "`HOST:PORT` of the coordinator")
	f.StringVar(&a.flags.CA, "ca", "", "`FILE` with the CA certificates of the cluster")
	f.StringVar(&a.flags.Cert, "cert", "", "`FILE` with the operator's certificate")
	f.StringVar(&a.flags.Key, "key", "", "`FILE` with the operator's key")
	f.StringVarP(&a.format, "output", "o", output.Table, "`FORM` of the result: "+strings.Join(output.Formats(), ", "))
	f.DurationVar(&a.timeout, "timeout", 0, "longest `TIME` for the whole command, such as 30s (default: depends on the command)")
}

func (a *app) checkGlobals() error {
	if !output.Known(a.format) {
		return exit.BadUsage("output form %q is not known: write one of %s", a.format, strings.Join(output.Formats(), ", "))
	}
	if a.timeout < 0 {
		return exit.BadUsage("timeout %s is negative", a.timeout)
	}
	for _, warning := range config.UnknownEnv(os.Environ(), []string{"STADDLE_ROOT"}) {
		if _, err := fmt.Fprintf(a.err, "staddle: %s\n", warning); err != nil {
			return err
		}
	}
	return nil
}

// onlyCommands refuses what is no command and names the nearest one.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	err := exit.BadUsage("there is no command %q", args[0])
	if near := config.Nearest(args[0], names); near != "" {
		return exit.Try(err, "%s %s", cmd.CommandPath(), near)
	}
	return exit.Try(err, "%s --help", cmd.CommandPath())
}

// group makes a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: onlyCommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	c.AddCommand(commands...)
	return c
}

// args makes a wrong number of arguments a mistake of usage, and shows the right
// one.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if check(cmd, given) == nil {
			return nil
		}
		err := exit.BadUsage("%s: an argument is missing", pathOf(cmd))
		for n := range given {
			if check(cmd, given[:n]) == nil {
				err = exit.BadUsage("%s: there are too many arguments: %s", pathOf(cmd), strings.Join(given, " "))
			}
		}
		return exit.Try(err, "%s", cmd.UseLine())
	}
}

// wrongFlag names the flag that was probably meant.
func wrongFlag(cmd *cobra.Command, err error) error {
	bad := exit.BadUsage("%s: %w", pathOf(cmd), err)
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := config.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			return exit.Try(bad, "%s --%s", cmd.CommandPath(), near)
		}
	}
	return exit.Try(bad, "%s --help", cmd.CommandPath())
}

// pathOf names a command within staddle, such as "image pull".
func pathOf(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), "staddle ")
}

// bounded applies --timeout, or without one the command's own limit; 0 means
// none.
func (a *app) bounded(ctx context.Context, own limit) (context.Context, context.CancelFunc) {
	if a.timeout > 0 {
		return context.WithTimeout(ctx, a.timeout)
	}
	if own > 0 {
		return context.WithTimeout(ctx, own)
	}
	return context.WithCancel(ctx)
}

// settings resolves the target of this invocation.
func (a *app) settings() (*target.Settings, error) { return target.Load(a.flags) }

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(a.out, version.String()+"\n")
			return err
		},
	}
}
