package image

import (
	"context"
	"encoding/json"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"staddle.internal/kit/fault"
)

// parts are what an image has on the disk, with their sizes in bytes: compressed by
// digest, unpacked by the name of the snapshot.
type parts map[string]int64

// freed is how many bytes go with some images: those of parts that none of the others
// has.
func freed(all map[string]parts, going map[string]bool) int64 {
	stays := map[string]bool{}
	for name, has := range all {
		for part := range has {
			stays[part] = stays[part] || !going[name]
		}
	}
	var sum int64
	counted := map[string]bool{}
	for name := range going {
		for part, size := range all[name] {
			if !stays[part] && !counted[part] {
				counted[part] = true
				sum += size
			}
		}
	}
	return sum
}

// weigh lists the parts of an image that are present.
func (s *Store) weigh(ctx context.Context, c *containerd.Client, record images.Image) (parts, error) {
	store, has := c.ContentStore(), parts{}
	walk := func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		info, err := store.Info(ctx, desc.Digest)
		if errdefs.IsNotFound(err) {
			return nil, images.ErrSkipDesc
		}
		if err != nil {
			return nil, err
		}
		has[desc.Digest.String()] = info.Size
		desc.Size = info.Size
		if describable(desc) != nil {
			return nil, images.ErrSkipDesc
		}
		if images.IsConfigType(desc.MediaType) {
			return nil, s.weighUnpacked(ctx, c, desc, has)
		}
		return images.Children(ctx, store, desc)
	}
	if err := images.Walk(ctx, images.HandlerFunc(walk), record.Target); err != nil {
		return nil, fault.New(fault.Unavailable, "weigh image %s: %w", record.Name, err)
	}
	return has, nil
}

// weighUnpacked adds the layers that are unpacked of the image with this configuration.
func (s *Store) weighUnpacked(ctx context.Context, c *containerd.Client, desc ocispec.Descriptor, has parts) error {
	raw, err := content.ReadBlob(ctx, c.ContentStore(), desc)
	if err != nil {
		return err
	}
	unpacked := c.SnapshotService(s.cfg.Snapshotter)
	for _, chain := range identity.ChainIDs(layersOf(raw)) {
		usage, err := unpacked.Usage(ctx, chain.String())
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		has["unpacked "+chain.String()] = usage.Size
	}
	return nil
}

// layersOf reads the layers of an image's configuration: none of one that cannot be read,
// which was not unpacked either.
func layersOf(raw []byte) []digest.Digest {
	var config struct {
		RootFS struct {
			DiffIDs []digest.Digest `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if json.Unmarshal(raw, &config) != nil {
		return nil
	}
	return config.RootFS.DiffIDs
}
