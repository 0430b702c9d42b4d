package image

import (
	"context"
	"fmt"
	"slices"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// maxNamed bounds how many users of an image an error names.
const maxNamed = 8

// User is something on the node that needs an image.
type User struct {
	// Name for people, like "sandbox web".
	Name string
	// Image is the reference by which it asks.
	Image string
}

// Remove takes one name of an image away, and waits until its parts are gone as far
// as nothing else needs them. It returns the full name. One that is needed by users,
// or by a container of the runtime, is fault.Conflict; one that is not there is
// fault.NotFound.
func (s *Store) Remove(ctx context.Context, ref string, users []User) (string, error) {
	name, err := Normalize(ref)
	if err != nil {
		return "", err
	}
	c, err := s.deps.Client()
	if err != nil {
		return "", err
	}
	record, err := c.ImageService().Get(ctx, name)
	if err != nil {
		return "", notRemoved(name, err)
	}
	made, err := containersOf(ctx, c, name)
	if err != nil {
		return "", err
	}
	if needed := neededBy(record, users); len(needed) > 0 {
		return "", inUse(name, needed)
	}
	if len(made) > 0 {
		return "", inUse(name, made)
	}
	err = c.ImageService().Delete(ctx, name, images.SynchronousDelete())
	if err != nil {
		return "", notRemoved(name, err)
	}
	s.Forget(record.Target.Digest) // it may not be unpacked any more
	s.deps.Log.Info("image removed", logging.Component(name))
	return name, nil
}

func notRemoved(name string, err error) error {
	if errdefs.IsNotFound(err) {
		return fault.New(fault.NotFound, "remove image %s: it is not present on this node", name)
	}
	return fault.New(fault.Unavailable, "remove image %s: %w", name, err)
}

// containersOf names the containers that were made of an image, whoever made them.
func containersOf(ctx context.Context, c *containerd.Client, name string) ([]string, error) {
	made, err := c.ContainerService().List(ctx, fmt.Sprintf("image==%q", name))
	if err != nil {
		return nil, fault.New(fault.Unavailable, "remove image %s: look for its containers: %w", name, err)
	}
	names := make([]string, len(made))
	for i, m := range made {
		names[i] = "container " + m.ID
	}
	return names, nil
}

// neededBy names those who ask for the image, be it by this name or, under whatever
// name, by its digest.
func neededBy(record images.Image, users []User) []string {
	var names []string
	for _, u := range users {
		wanted, err := Normalize(u.Image)
		if err != nil {
			continue // what has no image by this reference needs none
		}
		_, digest, byDigest := strings.Cut(wanted, "@")
		if wanted == record.Name || byDigest && digest == record.Target.Digest.String() {
			names = append(names, u.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func inUse(name string, by []string) error {
	shown := strings.Join(by[:min(len(by), maxNamed)], ", ")
	if more := len(by) - maxNamed; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	return fault.WithReason(fault.New(fault.Conflict, "remove image %s: it is in use by %s", name, shown), "IMAGE_IN_USE")
}
