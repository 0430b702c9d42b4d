package image

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

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
// by a container of the runtime, or by an export that goes on, and one that is pinned,
// is fault.Conflict; one that is not there is fault.NotFound. users were counted at or
// after since.
func (s *Store) Remove(ctx context.Context, ref string, users []User, since time.Time) (string, error) {
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
	if labelsOf(record).pinned {
		return "", fault.WithReason(fault.New(fault.Conflict, "remove image %s: it is pinned", name), "IMAGE_PINNED")
	}
	if needed := neededBy(record, users); len(needed) > 0 {
		return "", inUse(name, needed)
	}
	return name, s.take(ctx, c, record, since, "asked for")
}

// take removes a record, and what only it had, unless somebody has just begun to use
// it.
func (s *Store) take(ctx context.Context, c *containerd.Client, record images.Image, since time.Time, why string) (err error) {
	made, err := containersOf(ctx, c, record.Name)
	if err != nil {
		return err
	}
	if len(made) > 0 {
		return inUse(record.Name, made)
	}
	done, by := s.uses.leave(record.Name, since)
	if done == nil {
		return inUse(record.Name, []string{by})
	}
	defer func() { done(err == nil) }()
	if err := c.ImageService().Delete(ctx, record.Name, images.SynchronousDelete()); err != nil {
		return notRemoved(record.Name, err)
	}
	s.Forget(record.Target.Digest) // it may not be unpacked any more
	s.deps.Log.Info("image removed", logging.Component(record.Name), logging.Reason(why))
	return nil
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

// wanted is what users ask for: who, by full name and by digest.
type wanted struct{ names, digests map[string][]string }

// wantedBy reads the references of all users once. What is no reference needs nothing.
func wantedBy(users []User) wanted {
	w := wanted{names: map[string][]string{}, digests: map[string][]string{}}
	full := map[string]string{}
	for _, u := range users {
		name, known := full[u.Image]
		if !known {
			name, _ = Normalize(u.Image)
			full[u.Image] = name
		}
		if name == "" {
			continue
		}
		w.names[name] = append(w.names[name], u.Name)
		if _, digest, byDigest := strings.Cut(name, "@"); byDigest {
			w.digests[digest] = append(w.digests[digest], u.Name)
		}
	}
	return w
}

// of names those who ask for the image, be it by this name or, under whatever name, by
// its digest.
func (w wanted) of(record images.Image) []string {
	names := slices.Concat(w.names[record.Name], w.digests[record.Target.Digest.String()])
	slices.Sort(names)
	return slices.Compact(names)
}

// present says whether all that is asked for is there.
func (w wanted) present(list []images.Image) bool {
	there := map[string]bool{}
	for _, record := range list {
		there[record.Name], there[record.Target.Digest.String()] = true, true
	}
	for name := range w.names {
		_, digest, _ := strings.Cut(name, "@")
		if !there[name] && !there[digest] {
			return false
		}
	}
	return true
}

func neededBy(record images.Image, users []User) []string { return wantedBy(users).of(record) }

func inUse(name string, by []string) error {
	shown := strings.Join(by[:min(len(by), maxNamed)], ", ")
	if more := len(by) - maxNamed; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	return fault.WithReason(fault.New(fault.Conflict, "remove image %s: it is in use by %s", name, shown), "IMAGE_IN_USE")
}
