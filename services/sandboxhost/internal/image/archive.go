package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// importLease is how long the runtime keeps the parts of an archive that was
// never finished, should we die.
const importLease = time.Hour

// Import reads an OCI or docker archive, plain or with gzip, to its end and makes its
// images present and unpacked. Of an archive that is not whole nothing is kept. It returns
// fault.Invalid if it is none, is cut off, or holds no image with a name for this
// platform; fault.Exhausted if the disk is full.
func (s *Store) Import(ctx context.Context, r io.Reader) (_ []Image, err error) {
	c, err := s.deps.Client()
	if err != nil {
		return nil, err
	}
	if err := s.makeRoom(ctx, "import images"); err != nil {
		return nil, err
	}
	lease, err := c.LeasesService().Create(ctx, leases.WithRandomID(), leases.WithExpiration(importLease))
	if err != nil {
		return nil, fault.New(fault.Unavailable, "import images: %w", err)
	}
	defer giveBack()
	defer func() { s.endLease(ctx, c, lease, err != nil) }()
	ctx = leases.WithLease(ctx, lease.ID)

	index, err := readArchive(ctx, c.ContentStore(), r)
	if err != nil {
		return nil, s.withFigures(ctx, notWhole(err), 0)
	}
	records, err := namedImages(ctx, c.ContentStore(), index)
	if err != nil {
		return nil, err
	}
	for _, record := range records {
		if err := whole(ctx, c.ContentStore(), record); err != nil {
			return nil, err
		}
	}
	return s.enter(ctx, c, lease, records)
}

// readArchive stores the parts of an archive.
func readArchive(ctx context.Context, store content.Store, r io.Reader) (ocispec.Descriptor, error) {
	plain, err := decompressed(r)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	index, err := archive.ImportIndex(ctx, store, plain)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	// The sum that tells whether all came as it was sent follows what a reader of tar reads.
	_, err = io.Copy(io.Discard, plain)
	return index, err
}

// decompressed reads what begins as gzip does through gzip, and everything else as
// it is. RFC 1952, 2.3.1 gives the two bytes; RFC 8878, 3.1.1 the four of zstd.
func decompressed(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	start, err := b.Peek(4)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case bytes.HasPrefix(start, []byte{0x1f, 0x8b}):
		return gzip.NewReader(b)
	case bytes.HasPrefix(start, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return nil, errors.New("it is compressed with zstd; decompress it first, or compress it with gzip")
	}
	return b, nil
}

// endLease lets go of the parts; of a failed import they are collected at once.
func (s *Store) endLease(ctx context.Context, c *containerd.Client, lease leases.Lease, failed bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortLimit)
	defer cancel()
	var opts []leases.DeleteOpt
	if failed {
		opts = append(opts, leases.SynchronousDelete)
	}
	if err := c.LeasesService().Delete(ctx, lease, opts...); err != nil && !errdefs.IsNotFound(err) {
		s.deps.Log.Warn("lease of import not removed", logging.Component(lease.ID), logging.Err(err))
	}
}

// notWhole says what is wrong with an archive that could not be read.
func notWhole(err error) error {
	if diskFull(err) {
		return classify("import images", err)
	}
	if errdefs.IsUnavailable(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fault.New(fault.Unavailable, "import images: %w", err)
	}
	return fault.New(fault.Invalid, "import images: this is no whole OCI or docker archive: %w", err)
}

// namedImages lists the images of an archive that have a name.
func namedImages(ctx context.Context, store content.Store, index ocispec.Descriptor) ([]images.Image, error) {
	raw, err := content.ReadBlob(ctx, store, index)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "import images: read index: %w", err)
	}
	var parsed ocispec.Index
	if err := json.Unmarshal(raw, &parsed); err != nil {
		return nil, fault.New(fault.Invalid, "import images: read index: %w", err)
	}
	var records []images.Image
	for _, m := range parsed.Manifests {
		name := nameOf(m.Annotations)
		if name == "" {
			continue
		}
		full, err := Normalize(name)
		if err != nil {
			return nil, err
		}
		m.Annotations = nil
		records = append(records, images.Image{Name: full, Target: m, Labels: map[string]string{importedLabel: time.Now().UTC().Format(time.RFC3339)}})
	}
	if len(records) == 0 {
		return nil, fault.New(fault.Invalid, "import images: the archive holds no image with a name; save it with its tag")
	}
	return records, nil
}

// nameOf is the full name that an archive gives an image. A bare tag is none.
func nameOf(annotations map[string]string) string {
	if name := annotations[images.AnnotationImageName]; name != "" {
		return name
	}
	if name := annotations[ocispec.AnnotationRefName]; strings.ContainsAny(name, ":/") {
		return name
	}
	return ""
}

// whole makes sure that all parts of an image for this platform came, and ties
// them to its manifest, so that they are kept as long as it is.
func whole(ctx context.Context, store content.Store, record images.Image) error {
	found := false
	check := func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		info, err := store.Info(ctx, desc.Digest)
		if err != nil {
			return nil, err
		}
		real := desc
		real.Size = info.Size // of which the archive may say something else
		if err := describable(real); err != nil {
			return nil, err
		}
		found = found || images.IsConfigType(desc.MediaType)
		return images.Children(ctx, store, desc)
	}
	handler := images.FilterPlatforms(images.HandlerFunc(check), platforms.Default())
	handler = images.LimitManifests(handler, platforms.Default(), 1)
	handler = images.SetChildrenLabels(store, handler)
	err := images.Walk(ctx, handler, record.Target)
	if errdefs.IsNotFound(err) {
		return fault.New(fault.Invalid, "import image %s: the archive is not whole: %w", record.Name, err)
	}
	if errors.Is(err, fault.Invalid) { // our own word
		return fmt.Errorf("import image %s: %w", record.Name, err)
	}
	if err != nil {
		return fault.New(fault.Unavailable, "import image %s: %w", record.Name, err)
	}
	if !found {
		return fault.New(fault.Invalid, "import image %s: it holds nothing for %s", record.Name, platforms.DefaultString())
	}
	return nil
}

// enter unpacks the images and makes their records. All are unpacked first, so
// that none is entered if one does not unpack. What a name meant before is kept.
func (s *Store) enter(ctx context.Context, c *containerd.Client, lease leases.Lease, records []images.Image) ([]Image, error) {
	var done []Image
	for _, record := range records {
		image, err := s.ready(ctx, c, record)
		if errors.Is(err, fault.NotFound) { // the archive holds nothing that can run here
			return nil, fault.New(fault.Invalid, "import images: %w", err)
		}
		if err != nil {
			return nil, s.withFigures(ctx, err, 0)
		}
		done = append(done, image)
	}
	for i, record := range records {
		entered, err := s.move(ctx, c, lease, record)
		if err != nil {
			return nil, fmt.Errorf("import image %s: %w", record.Name, err)
		}
		done[i] = s.described(done[i], entered)
	}
	return done, nil
}

// putImage makes or replaces a record. What was imported and is pulled now is no longer
// only here.
func putImage(ctx context.Context, store images.Store, record images.Image) (images.Image, error) {
	entered, err := store.Create(ctx, record)
	if errdefs.IsAlreadyExists(err) {
		entered, err = store.Update(ctx, record, "target", "labels."+importedLabel) // a pin stays
	}
	if err != nil {
		return images.Image{}, fault.New(fault.Unavailable, "enter it at the runtime: %w", err)
	}
	return entered, nil
}
