package command

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/machine"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"
)

func (a *app) upCommand() *cobra.Command {
	var noSample bool
	c := &cobra.Command{
		Use: "up", Short: "Start Staddle on this machine", Args: args(cobra.NoArgs),
		Long: `Start a node and its coordinator on this machine, and a first sandbox.

It checks what the machine needs, installs the binaries, writes configuration
that is not there yet, starts the supervisor and waits until everything is ready.
What is there already stays as it is: a second run changes nothing. If a
component fails, its reason and its last lines are shown, and what was started
is stopped again. Needs root; without it, it asks sudo.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.asRoot(cmd.Context(), "namespaces, mounts and the network", func(ctx context.Context, m *machine.Machine) error {
				return m.Up(ctx, !noSample)
			})
		},
	}
	c.Flags().BoolVar(&noSample, "no-sample", false, "do not run a first sandbox")
	return c
}

func (a *app) downCommand() *cobra.Command {
	var purge, yes bool
	c := &cobra.Command{
		Use: "down", Short: "Stop Staddle and all sandboxes on this machine", Args: args(cobra.NoArgs),
		Long: `Stop all processes in reverse order, end all sandboxes of this machine, and remove
what they have in the kernel: mounts, namespaces, links, rules. Data stays, and
"staddle up" goes on with it. With --purge data, configuration and binaries are
removed as well. Safe when nothing runs.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.asRoot(cmd.Context(), "namespaces, mounts and the network", func(ctx context.Context, m *machine.Machine) error {
				return a.down(ctx, m, purge, yes)
			})
		},
	}
	c.Flags().BoolVar(&purge, "purge", false, "remove data, configuration and binaries as well")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

func (a *app) shutdownCommand() *cobra.Command {
	var drain bool
	var killAfter time.Duration
	c := &cobra.Command{
		Use: "shutdown", Short: "Stop all processes and leave sandboxes running", Args: args(cobra.NoArgs),
		Long: `Stop all processes of this machine in reverse order. Sandboxes, mounts and addresses
stay, and "staddle up" finds them again.

With --drain sandboxes are stopped first, each within its grace period, and their disks
unmounted, as before the machine is shut down. They run again after a reboot, or with
"staddle node uncordon". Safe when nothing runs.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			limited := cmd.Flags().Changed("kill-after")
			if limited && (!drain || killAfter < 0) {
				return exit.BadUsage("--kill-after is a time of 0s or more, and only has a meaning with --drain")
			}
			return a.asRoot(cmd.Context(), "the supervisor", func(ctx context.Context, m *machine.Machine) error {
				limit := &killAfter
				if !limited {
					limit = nil
				}
				return a.shutdown(ctx, m, drain, limit)
			})
		},
	}
	c.Flags().BoolVar(&drain, "drain", false, "stop sandboxes first")
	c.Flags().DurationVar(&killAfter, "kill-after", 0, "kill what still lives after this `TIME`, such as 5m (default: only each sandbox's grace period counts)")
	return c
}

func (a *app) shutdown(ctx context.Context, m *machine.Machine, drain bool, killAfter *time.Duration) error {
	ran, err := m.Shutdown(ctx, drain, killAfter)
	if err != nil {
		return err
	}
	text := "all processes have stopped"
	if !ran {
		text = "nothing runs"
	}
	_, err = fmt.Fprintln(a.out, text)
	return err
}

func (a *app) down(ctx context.Context, m *machine.Machine, purge, yes bool) error {
	if purge && !yes {
		if err := a.confirm("This removes all data, disks included: " + strings.Join(m.Leftovers(), ", ")); err != nil {
			return err
		}
	}
	return m.Down(ctx, purge)
}

// confirm asks on the terminal; without one the answer must be given as a flag.
func (a *app) confirm(what string) error {
	if !output.Terminal(a.in) {
		return exit.Try(exit.BadUsage("%s: there is no terminal to ask on", what), "the same with --yes")
	}
	if _, err := fmt.Fprintf(a.err, "%s\nGo on? [y/N] ", what); err != nil {
		return err
	}
	answer, err := bufio.NewReader(a.in).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if word := strings.ToLower(strings.TrimSpace(answer)); word != "y" && word != "yes" {
		return exit.WithCode(exit.Failed)
	}
	return nil
}

// asRoot runs fn with the installation that the flags name, as root: a caller
// who is not goes through sudo, saying so.
func (a *app) asRoot(ctx context.Context, why string, fn func(context.Context, *machine.Machine) error) error {
	if a.flags.NodeSocket != "" {
		return exit.BadUsage("--node-socket has no meaning here: name the installation with --root")
	}
	root := a.flags.Root
	if root != "" {
		abs, err := filepath.Abs(root)
		if err != nil {
			return fmt.Errorf("resolve --root: %w", err)
		}
		root = abs
	}
	if os.Geteuid() != 0 {
		return a.viaSudo(why, root)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own executable: %w", err)
	}
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	return fn(ctx, &machine.Machine{
		Paths: config.Paths{Root: root}, Source: filepath.Dir(exe), Out: a.out, Err: a.err, Home: target.Caller(),
	})
}

// viaSudo replaces this process by the same command under sudo.
func (a *app) viaSudo(why, root string) error {
	sudo, err := exec.LookPath("sudo")
	if err != nil {
		return exit.Try(fault.New(fault.Denied, "this needs root for %s, and there is no sudo", why), "the same as root")
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own executable: %w", err)
	}
	if _, err := fmt.Fprintf(a.err, "staddle: needs root for %s; using sudo\n", why); err != nil {
		return err
	}
	argv := append([]string{sudo, "--", exe}, os.Args[1:]...)
	if root != "" {
		argv = append(argv, "--root", root) // sudo clears the environment, and the last one counts
	}
	return fmt.Errorf("run sudo: %w", syscall.Exec(sudo, argv, os.Environ()))
}
