package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"
)

func (a *app) imageExportCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "export IMAGE FILE|-", Short: "Write an image to an OCI archive", Args: args(cobra.ExactArgs(2)), ValidArgsFunction: a.imageThenFile,
		Long: `Write an image to an OCI archive, with its name and its digest, which staddle image
import reads, and docker load. It has the image for the platform of this node; with
--all-platforms for all that it is made for, if their parts are present.

A file appears under its name only when it is whole; one that is there is replaced then.
With - the archive goes to standard output, unless that is a terminal.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.imageExport(cmd.Context(), given[0], given[1], all)
		},
	}
	c.Flags().BoolVar(&all, "all-platforms", false, "with the parts for other platforms than this node's")
	return c
}

// imageThenFile offers the images, and then files.
func (a *app) imageThenFile(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(given) == 1 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.imageNames(cmd, given, begun)
}

func (a *app) imagePinCommand() *cobra.Command {
	return &cobra.Command{
		Use: "pin IMAGE...", Short: "Keep images until they are unpinned", Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: a.imageNames,
		Long: `Keep images until they are unpinned: nothing removes them, neither when the disk is full
nor by staddle image prune or rm. A pin is of a name, and stays when the image is pulled or
imported again under it.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.eachImage(cmd.Context(), given, (*target.Node).PinImage)
		},
	}
}

func (a *app) imageUnpinCommand() *cobra.Command {
	return &cobra.Command{
		Use: "unpin IMAGE...", Short: "Keep images no longer than others", Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: a.imageNames,
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.eachImage(cmd.Context(), given, (*target.Node).UnpinImage)
		},
	}
}

func (a *app) imagePruneCommand() *cobra.Command {
	var all, dry bool
	c := &cobra.Command{
		Use: "prune", Short: "Remove the images that nothing needs", Args: args(cobra.NoArgs),
		Long: `Remove the images that no sandbox of this node asks for, whether it runs or not, and
say how much room that makes. Pinned images stay. So do imported ones and those that were
used a moment ago (images.gc.min_age in node.yaml), unless --all is given.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.imagePrune(cmd.Context(), all, dry) },
	}
	c.Flags().BoolVar(&all, "all", false, "imported images as well, and those that were used a moment ago")
	c.Flags().BoolVar(&dry, "dry-run", false, "only say what would be removed")
	return c
}

// eachImage goes on with the others when one fails.
func (a *app) eachImage(ctx context.Context, refs []string, do func(*target.Node, context.Context, string) (string, error)) error {
	return a.withNode(ctx, func(ctx context.Context, n *target.Node) error {
		var errs []error
		for _, ref := range refs {
			name, err := do(n, ctx, ref)
			if err == nil {
				_, err = fmt.Fprintln(a.out, name)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

func (a *app) imagePrune(ctx context.Context, all, dry bool) error {
	return a.withNode(ctx, func(ctx context.Context, n *target.Node) error {
		resp, err := n.PruneImages(ctx, all, dry)
		if err != nil {
			return err
		}
		if a.format != output.Table {
			return output.PrintOne(a.out, a.format, nil, output.Row{ID: "prune", Message: resp})
		}
		if err := a.printImages(resp.GetImages()); err != nil {
			return err
		}
		done := "removed"
		if dry {
			done = "would be removed"
		}
		a.note("%d images %s, %s freed", len(resp.GetImages()), done, output.Bytes(resp.GetFreedBytes()))
		return nil
	})
}

func (a *app) imageExport(ctx context.Context, ref, path string, all bool) error {
	if path == "-" {
		if output.Terminal(a.out) {
			return exit.Try(exit.BadUsage("an archive is nothing for a terminal"), "the same with a file instead of -")
		}
		return a.exportTo(ctx, ref, all, a.out)
	}
	return whole(path, func(w io.Writer) error { return a.exportTo(ctx, ref, all, w) })
}

func (a *app) exportTo(ctx context.Context, ref string, all bool, w io.Writer) error {
	return a.withNode(ctx, func(ctx context.Context, n *target.Node) error {
		progress := output.NewProgress(a.err)
		defer progress.Done("")
		return n.Export(ctx, ref, all, w, func(done, total int64) { progress.Bytes("exporting "+ref, done, total) })
	})
}

// whole has a file written that appears under its name only when all of it is on the
// disk. What was there before stays until then.
func whole(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fault.New(fault.Invalid, "write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()           // it may be closed
			_ = os.Remove(f.Name()) // half of it helps nobody; the first error says why
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(0o644), f.Sync(), f.Close()); err != nil { //nolint:gosec // an archive holds no secret that the image does not
		return fault.New(fault.Exhausted, "write %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fault.New(fault.Invalid, "write %s: %w", path, err)
	}
	return nil
}

// lastUse is how long ago an image was used, for people.
func lastUse(now time.Time, i *sandboxhostv1.Image) string {
	if i.GetInUse() {
		return "now"
	}
	return output.Age(now, i.GetLastUsedAt())
}

// keptAs says why an image may stay longer than others.
func keptAs(i *sandboxhostv1.Image) string {
	switch {
	case i.GetPinned():
		return "pinned"
	case i.GetImported():
		return "imported"
	}
	return ""
}
