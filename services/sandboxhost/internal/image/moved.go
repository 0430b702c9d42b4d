package image

import (
	"context"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// movedLabel marks an image that is kept under its digest with the name that meant it
// before.
const movedLabel = "staddle.internal/moved-from"

// Pinned is the reference of the one image that ref meant when it had a digest. An
// empty digest, or a reference that is none, leaves ref as it is.
func Pinned(ref, wanted string) string {
	named, err := reference.ParseDockerRef(ref)
	if err != nil || wanted == "" {
		return ref
	}
	pinned, err := reference.WithDigest(reference.TrimNamed(named), digest.Digest(wanted))
	if err != nil {
		return ref
	}
	return pinned.String()
}

// move lets the name of a record mean what it says, and keeps what it meant before.
func (s *Store) move(ctx context.Context, c *containerd.Client, lease leases.Lease, record images.Image) (images.Image, error) {
	old, err := before(ctx, c, lease, record.Name)
	if err != nil {
		return images.Image{}, err
	}
	if err := s.keepMoved(ctx, c, old, record.Target.Digest); err != nil {
		return images.Image{}, err
	}
	return putImage(ctx, c.ImageService(), record)
}

// before returns what a name means, and holds that until it is kept under another.
func before(ctx context.Context, c *containerd.Client, lease leases.Lease, name string) (images.Image, error) {
	old, err := c.ImageService().Get(ctx, name)
	if errdefs.IsNotFound(err) {
		return images.Image{}, nil
	}
	if err != nil {
		return images.Image{}, fault.New(fault.Unavailable, "look for image %s: %w", name, err)
	}
	err = c.LeasesService().AddResource(ctx, lease, leases.Resource{ID: old.Target.Digest.String(), Type: "content"})
	if err != nil && !errdefs.IsNotFound(err) {
		return images.Image{}, fault.New(fault.Unavailable, "hold what image %s is: %w", name, err)
	}
	return old, nil
}

// keepMoved keeps under its digest what a name meant until now: sandboxes run of it, and
// will again. It stays until nothing needs it and somebody, or something, cleans up.
func (s *Store) keepMoved(ctx context.Context, c *containerd.Client, old images.Image, now digest.Digest) error {
	if old.Name == "" || old.Target.Digest == now || byDigest(old.Name) {
		return nil
	}
	kept := images.Image{Name: Pinned(old.Name, old.Target.Digest.String()), Target: old.Target, Labels: map[string]string{movedLabel: old.Name}}
	if _, err := c.ImageService().Create(ctx, kept); err != nil && !errdefs.IsAlreadyExists(err) {
		return fault.New(fault.Unavailable, "keep what image %s was: %w", old.Name, err)
	}
	s.deps.Log.Info("image moved", logging.Component(old.Name), logging.From(old.Target.Digest.String()), logging.To(now.String()))
	return nil
}
