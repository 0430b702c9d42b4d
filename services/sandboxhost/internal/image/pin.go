package image

import (
	"context"

	"github.com/containerd/errdefs"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// Pin keeps an image until it is unpinned, and returns its full name. It is durable
// once it has returned, and safe to repeat. One that is not there is fault.NotFound.
func (s *Store) Pin(ctx context.Context, ref string) (string, error) {
	return s.setPinned(ctx, ref, "pin", pinnedValue)
}

// Unpin ends what Pin began. Errors are those of Pin.
func (s *Store) Unpin(ctx context.Context, ref string) (string, error) {
	return s.setPinned(ctx, ref, "unpin", "")
}

func (s *Store) setPinned(ctx context.Context, ref, doing, value string) (string, error) {
	name, err := Normalize(ref)
	if err != nil {
		return "", err
	}
	c, err := s.deps.Client()
	if err != nil {
		return "", err
	}
	err = setLabel(ctx, c, name, pinnedLabel, value)
	if errdefs.IsNotFound(err) {
		return "", fault.New(fault.NotFound, "%s image %s: it is not present on this node", doing, name)
	}
	if err != nil {
		return "", fault.New(fault.Unavailable, "%s image %s: %w", doing, name, err)
	}
	if value == "" {
		s.deps.Log.Info("image unpinned", logging.Component(name))
	} else {
		s.deps.Log.Info("image pinned", logging.Component(name))
	}
	return name, nil
}
