package image

import (
	"context"
	"errors"
	"io"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"staddle.internal/kit/fault"
)

// Export is an image that is ready to be written. Close it.
type Export struct {
	// Size of all its parts, in bytes; the archive has a little more.
	Size int64

	client   *containerd.Client
	name     string
	platform platforms.MatchComparer // nil for all
	release  func()
}

// Export prepares an image of exactly this name for writing, for this platform or for
// all that it is made for; it stays until Close. fault.NotFound if it is not there, not
// for this platform, or, for all platforms, not whole.
func (s *Store) Export(ctx context.Context, ref string, allPlatforms bool) (_ *Export, err error) {
	name, err := Normalize(ref)
	if err != nil {
		return nil, err
	}
	c, err := s.deps.Client()
	if err != nil {
		return nil, err
	}
	release, ok := s.uses.read(name)
	if !ok {
		return nil, fault.New(fault.NotFound, "export image %s: it is being removed", name)
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	record, err := c.ImageService().Get(ctx, name)
	if errdefs.IsNotFound(err) {
		return nil, fault.New(fault.NotFound, "export image %s: it is not present on this node", name)
	}
	if err != nil {
		return nil, fault.New(fault.Unavailable, "export image %s: %w", name, err)
	}
	e := &Export{client: c, name: name, release: release}
	if !allPlatforms {
		e.platform = platforms.Default()
	}
	e.Size, err = e.measure(ctx, record)
	return e, err
}

// measure adds up the parts that are to be written, which all have to be there.
func (e *Export) measure(ctx context.Context, record images.Image) (size int64, err error) {
	store, found := e.client.ContentStore(), false
	var missing ocispec.Descriptor
	count := func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		info, err := store.Info(ctx, desc.Digest)
		if err != nil {
			missing = desc
			return nil, err
		}
		size += info.Size
		desc.Size = info.Size
		if err := describable(desc); err != nil {
			return nil, err
		}
		found = found || images.IsConfigType(desc.MediaType)
		return images.Children(ctx, store, desc)
	}
	handler := images.HandlerFunc(count)
	if e.platform != nil {
		handler = images.FilterPlatforms(handler, e.platform)
	}
	err = images.Walk(ctx, handler, record.Target)
	switch {
	case errdefs.IsNotFound(err) && e.platform == nil:
		return 0, fault.New(fault.NotFound, "export image %s for all platforms: its part %s is not present; this node has what it runs, %s: leave --all-platforms out",
			e.name, missing.Digest, platforms.DefaultString())
	case errdefs.IsNotFound(err):
		return 0, fault.New(fault.NotFound, "export image %s: its part %s is not present; pull it again", e.name, missing.Digest)
	case errors.Is(err, fault.Invalid): // our own word
		return 0, err
	case err != nil:
		return 0, fault.New(fault.Unavailable, "export image %s: %w", e.name, err)
	case !found:
		return 0, fault.New(fault.NotFound, "export image %s: it holds nothing for %s", e.name, platforms.DefaultString())
	}
	return size, nil
}

// Write writes the archive. After an error what was written is no archive.
func (e *Export) Write(ctx context.Context, w io.Writer) error {
	opts := []archive.ExportOpt{archive.WithImage(e.client.ImageService(), e.name)}
	if e.platform != nil {
		opts = append(opts, archive.WithPlatform(e.platform))
	}
	out := &watched{Writer: w}
	err := archive.Export(ctx, e.client.ContentStore(), out, opts...)
	if out.err != nil { // of who reads it; also of the end of the archive, which is not returned
		return out.err
	}
	if err != nil {
		return fault.New(fault.Unavailable, "export image %s: %w", e.name, err)
	}
	return nil
}

// Close lets the image be removed again.
func (e *Export) Close() { e.release() }

// watched keeps the error of a writer.
type watched struct {
	io.Writer
	err error
}

// Write passes on.
func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil && w.err == nil {
		w.err = err
	}
	return n, err
}
