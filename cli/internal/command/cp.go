package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/copying"
	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

type cpOptions struct {
	container string
	archive   bool
}

func (a *app) cpCommand() *cobra.Command {
	var o cpOptions
	c := &cobra.Command{
		Use: "cp [flags] SANDBOX:PATH LOCAL | LOCAL SANDBOX:PATH", Short: "Copy files into or out of a sandbox",
		Long: `Copy a file, or a folder with all that is in it, between this machine and a container
that runs. Nothing of the container's image is used for it. A folder that is there
gets the copy in it; otherwise the copy has the very name. "-" in place of LOCAL is a tar
stream on standard output or input, which is unpacked in the folder PATH.

A file takes the place of another at once, when it is whole. Copies in belong to the
user of the container's main process, copies out to you; --archive keeps users, groups,
exact modes and times. Pipes, sockets and devices are left out, and links that lead
out of a copy on this machine. A node that is not this machine is reached through its
gateway.`,
		Example: `  staddle cp web:/etc/hosts .
  staddle cp ./site web:/srv
  staddle cp web:/var/log - | tar t`,
		Args: args(cobra.ExactArgs(2)), ValidArgsFunction: a.pathNames,
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.cp(cmd.Context(), given[0], given[1], o)
		},
	}
	c.Flags().StringVarP(&o.container, "container", "c", "", "`NAME` of the container, where there are several")
	c.Flags().BoolVarP(&o.archive, "archive", "a", false, "keep users, groups, exact modes and times")
	a.completeContainer(c, remotes)
	return c
}

// remote is a path inside a sandbox, as "SANDBOX:PATH". A path of this machine with a colon is
// written with a slash before that.
func remote(word string) (ref, path string, ok bool) {
	ref, path, ok = strings.Cut(word, ":")
	if !ok || strings.Contains(ref, "/") {
		return "", "", false
	}
	return ref, path, true
}

// remotes are the sandboxes that paths are inside of.
func remotes(words []string) []string {
	var refs []string
	for _, word := range words {
		if ref, _, ok := remote(word); ok {
			refs = append(refs, ref)
		}
	}
	return refs
}

func (a *app) cp(ctx context.Context, from, to string, o cpOptions) error {
	fromRef, fromPath, out := remote(from)
	toRef, toPath, in := remote(to)
	ref, path, local := fromRef, fromPath, to
	if in {
		ref, path, local = toRef, toPath, from
	}
	switch {
	case in == out:
		return exit.Try(exit.BadUsage("cp %s %s: one is inside a sandbox, as SANDBOX:PATH, and the other is not", from, to), "staddle cp web:/etc/hosts .")
	case ref == "" || !strings.HasPrefix(path, "/"):
		return exit.BadUsage("cp %s %s: write SANDBOX:PATH with an absolute path, such as web:/etc/hosts", from, to)
	case local == "":
		return exit.BadUsage("cp %s %s: a path is empty", from, to)
	case local == "-" && out && output.Terminal(a.out):
		return exit.BadUsage("cp %s -: a tar stream is nothing for a terminal: name a file, or pass it on", from)
	}
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	return a.withInside(ctx, ref, func(ctx context.Context, inside *target.Inside, s *sandbox.Sandbox) error {
		if err := chooseContainer(s, &o.container); err != nil {
			return err
		}
		p := output.NewProgress(a.err)
		done := int64(0)
		moved := func(n int) {
			done += int64(n)
			p.Bytes("copying "+s.Name+":"+path, done, 0)
		}
		skipped, err := a.copied(ctx, inside, s, path, copying.Local{Path: local, Archive: o.archive, Moved: moved}, o, in)
		p.Done("")
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return explainCopy(s, fmt.Errorf("copy %s to %s: %w", from, to, err))
		}
		if skipped > 0 {
			a.note("left out %d: pipes, sockets, devices, files of the kernel's own, or links that lead out of the copy", skipped)
		}
		return nil
	})
}

// explainCopy adds the next step.
func explainCopy(s *sandbox.Sandbox, err error) error {
	switch {
	case fault.Reason(err) == "NOT_RUNNING":
		return exit.Try(err, "staddle describe %s", s.Name)
	case fault.KindOf(err) == fault.Unavailable:
		return exit.Try(err, "copy again; files that were whole are in their places: staddle describe %s", s.Name)
	}
	return err
}

// copied copies in one of the four ways.
func (a *app) copied(ctx context.Context, inside *target.Inside, s *sandbox.Sandbox, path string, local copying.Local, o cpOptions, in bool) (skipped uint64, err error) {
	var report *sandboxhostv1.CopyReport
	start := &sandboxhostv1.CopyInStart{Uid: s.UID, Container: o.container, Path: path, Archive: o.archive}
	req := &sandboxhostv1.CopyOutRequest{Uid: s.UID, Container: o.container, Path: path}
	switch {
	case in && local.Path == "-":
		report, err = copying.In(ctx, inside.Copy, start, a.in)
	case in:
		return copying.InFrom(ctx, inside.Copy, start, local)
	case local.Path == "-":
		report, err = copying.Out(ctx, inside.Copy, req, a.out)
	default:
		return copying.OutTo(ctx, inside.Copy, req, local)
	}
	return report.GetSkipped(), err
}

// pathNames offers sandboxes, to be followed by a path; where none fits, files of this machine.
func (a *app) pathNames(cmd *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(given) >= 2 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, _ := a.sandboxNames(1)(cmd, nil, prefix)
	var fitting []cobra.Completion
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			fitting = append(fitting, name+":")
		}
	}
	if len(fitting) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return fitting, cobra.ShellCompDirectiveNoSpace
}
