package image

import (
	"context"
	"errors"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"

	"staddle.internal/kit/fault"
)

// Prune says what a person wants removed.
type Prune struct {
	// MinAge is for how long an image stays after its last use.
	MinAge time.Duration
	// All removes also what was imported, or used within MinAge.
	All bool
	// DryRun removes nothing.
	DryRun bool
}

// Prune removes the images that nothing needs, and returns them as they were, ordered
// by name, with the number of bytes that only they had. What somebody has just begun to
// use stays. A question that failed removes nothing more.
func (s *Store) Prune(ctx context.Context, users func() ([]User, error), p Prune) (removed []Image, bytes int64, err error) {
	since := time.Now()
	needing, err := users()
	if err != nil {
		return nil, 0, err
	}
	c, err := s.deps.Client()
	if err != nil {
		return nil, 0, err
	}
	all, records, err := s.kept(ctx, c, needing)
	if err != nil {
		return nil, 0, err
	}
	weights := map[string]parts{}
	for name, record := range records {
		if weights[name], err = s.weigh(ctx, c, record); err != nil {
			return nil, 0, err
		}
	}
	going := map[string]bool{}
	for _, name := range (Rules{MinAge: p.MinAge}).Prunable(since, all, p.All) {
		image, gone, err := s.prune(ctx, c, records[name], since, p.DryRun)
		if err != nil {
			return nil, 0, err
		}
		if gone {
			removed, going[name] = append(removed, image), true
		}
	}
	return removed, freed(weights, going), nil
}

// prune removes one image, or only says what it is and whether it could be.
func (s *Store) prune(ctx context.Context, c *containerd.Client, record images.Image, since time.Time, dry bool) (Image, bool, error) {
	image, err := s.inspect(ctx, c, record)
	if errors.Is(err, fault.Unavailable) {
		return Image{}, false, err
	}
	image.Digest = record.Target.Digest // also of one that cannot run here
	image = s.described(image, record)
	if dry {
		made, err := containersOf(ctx, c, record.Name)
		return image, err == nil && len(made) == 0, err
	}
	err = s.take(ctx, c, record, since, "pruned")
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) {
		return image, false, nil
	}
	return image, err == nil, err
}
