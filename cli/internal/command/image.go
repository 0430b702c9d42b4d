package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"
)

var imageColumns = []string{"NAME", "DIGEST", "SIZE", "AGE", "USED", "KEPT"}

func (a *app) imageCommand() *cobra.Command {
	var refresh bool
	pull := &cobra.Command{
		Use: "pull IMAGE", Short: "Make an image of a registry present", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error { return a.imagePull(cmd.Context(), given[0], refresh) },
	}
	pull.Flags().BoolVar(&refresh, "refresh", false, "ask the registry even if the image is present")
	load := &cobra.Command{
		Use: "import FILE|-", Short: "Make the images of an OCI or docker archive present (may be gzip)", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: anyFile,
		RunE: func(cmd *cobra.Command, given []string) error { return a.imageImport(cmd.Context(), given[0]) },
	}
	list := &cobra.Command{
		Use: "ls", Short: "List the images of the node", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withNode(cmd.Context(), func(ctx context.Context, n *target.Node) error {
				images, err := n.Images(ctx)
				if err != nil {
					return err
				}
				return output.Print(a.out, a.format, imageColumns, imageRows(images))
			})
		},
	}
	remove := &cobra.Command{
		Use: "rm IMAGE...", Short: "Remove images that no sandbox uses", Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: a.imageNames,
		RunE: func(cmd *cobra.Command, given []string) error { return a.imageRemove(cmd.Context(), given) },
	}
	c := group("image", "Images of this node", load, pull, list, remove,
		a.imageExportCommand(), a.imagePinCommand(), a.imageUnpinCommand(), a.imagePruneCommand())
	c.Long = "Images are kept by each node. These commands talk to the node's own socket,\n" +
		"which root may and the members of the group staddle-admin."
	return c
}

// withNode runs fn with the sandboxhost of this machine.
func (a *app) withNode(ctx context.Context, fn func(context.Context, *target.Node) error) (err error) {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	n, err := settings.Node(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	return fn(ctx, n)
}

func (a *app) imagePull(ctx context.Context, ref string, refresh bool) error {
	return a.withNode(ctx, func(ctx context.Context, n *target.Node) error {
		progress := output.NewProgress(a.err)
		defer progress.Done("")
		waits := func(turn int) {
			progress.Say(fmt.Sprintf("waiting to begin pulling %s: number %d in the queue (images.max_pulls of the node)", ref, turn))
		}
		image, err := n.Pull(ctx, ref, refresh, waits, func(done, total int64) { progress.Bytes("pulling "+ref, done, total) })
		if err != nil {
			return err
		}
		progress.Done("")
		return a.printImages([]*sandboxhostv1.Image{image})
	})
}

func (a *app) imageImport(ctx context.Context, path string) error {
	archive, size, err := a.openArchive(path)
	if err != nil {
		return err
	}
	defer archive.Close() //nolint:errcheck // only read from
	return a.withNode(ctx, func(ctx context.Context, n *target.Node) error {
		progress := output.NewProgress(a.err)
		defer progress.Done("")
		images, err := n.Import(ctx, archive, func(sent int64) { progress.Bytes("importing", sent, size) })
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		progress.Done("")
		return a.printImages(images)
	})
}

// imageRemove goes on with the others when one cannot be removed.
func (a *app) imageRemove(ctx context.Context, refs []string) error {
	return a.withNode(ctx, func(ctx context.Context, n *target.Node) error {
		var errs []error
		for _, ref := range refs {
			name, err := n.RemoveImage(ctx, ref)
			if err == nil {
				_, err = fmt.Fprintln(a.out, name)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// openArchive opens the file, or standard input for "-", with its size where it
// is known.
func (a *app) openArchive(path string) (io.ReadCloser, int64, error) {
	if path == "-" {
		return io.NopCloser(a.in), 0, nil
	}
	f, err := os.Open(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, 0, fault.New(fault.NotFound, "import image: %s does not exist", path)
	case err != nil:
		return nil, 0, fault.New(fault.Invalid, "import image: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(fault.New(fault.Invalid, "import image: %w", err), f.Close())
	}
	return f, info.Size(), nil
}

func (a *app) printImages(images []*sandboxhostv1.Image) error {
	if a.format == output.Table {
		for _, i := range images {
			if _, err := fmt.Fprintf(a.out, "%s %s\n", i.GetName(), i.GetDigest()); err != nil {
				return err
			}
		}
		return nil
	}
	return output.Print(a.out, a.format, imageColumns, imageRows(images))
}

func imageRows(images []*sandboxhostv1.Image) []output.Row {
	now := time.Now()
	rows := make([]output.Row, len(images))
	for i, image := range images {
		rows[i] = output.Row{
			ID: image.GetName(), Message: image,
			Cells: []string{
				image.GetName(), image.GetDigest(), output.Bytes(image.GetSizeBytes()), output.Age(now, image.GetCreatedAt()),
				lastUse(now, image), keptAs(image),
			},
		}
	}
	return rows
}
