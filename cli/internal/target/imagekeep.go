package target

import (
	"context"
	"errors"
	"io"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
)

// Export writes an image as an archive, which is whole only if no error is returned.
// Progress counts bytes.
func (n *Node) Export(ctx context.Context, ref string, allPlatforms bool, w io.Writer, progress func(done, total int64)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := n.images.ExportImage(ctx, &sandboxhostv1.ExportImageRequest{Image: ref, AllPlatforms: allPlatforms})
	if err != nil {
		return wrap(err, "export image %s", ref)
	}
	for done, total := int64(0), int64(0); ; {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return seeImages(ended("export image "+ref, err))
		}
		if _, err := w.Write(msg.GetChunk()); err != nil {
			return fault.New(fault.Invalid, "write archive: %w", err)
		}
		done, total = done+int64(len(msg.GetChunk())), max(total, msg.GetTotalBytes())
		progress(min(done, total), total) // the archive has a little more than its parts
	}
}

// PinImage keeps an image and returns its name in full.
func (n *Node) PinImage(ctx context.Context, ref string) (string, error) {
	resp, err := n.images.PinImage(ctx, &sandboxhostv1.PinImageRequest{Image: ref})
	if err != nil {
		return "", seeImages(wrap(err, "pin image %s", ref))
	}
	return resp.GetName(), nil
}

// UnpinImage keeps it no more, and returns its name in full.
func (n *Node) UnpinImage(ctx context.Context, ref string) (string, error) {
	resp, err := n.images.UnpinImage(ctx, &sandboxhostv1.UnpinImageRequest{Image: ref})
	if err != nil {
		return "", seeImages(wrap(err, "unpin image %s", ref))
	}
	return resp.GetName(), nil
}

// PruneImages removes what nothing needs, or only says what that is.
func (n *Node) PruneImages(ctx context.Context, all, dry bool) (*sandboxhostv1.PruneImagesResponse, error) {
	resp, err := n.images.PruneImages(ctx, &sandboxhostv1.PruneImagesRequest{All: all, DryRun: dry})
	if err != nil {
		return nil, wrap(err, "prune images")
	}
	return resp, nil
}

// seeImages says what to do when there is no such image.
func seeImages(err error) error {
	if fault.KindOf(err) == fault.NotFound {
		return exit.Try(err, "see what there is: staddle image ls")
	}
	return err
}
