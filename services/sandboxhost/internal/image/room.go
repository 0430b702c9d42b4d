package image

import (
	"context"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/filesystem"
)

// roomLimit bounds how long one who brings an image waits for others to be removed.
const roomLimit = 30 * time.Second

// lastInodes in use, in percent, are those that are kept for others.
const lastInodes = 99

func (s *Store) setRoom(w *Sweeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room = w
}

// makeRoom is called before an image comes. When less of the disk is free than the
// rules keep, others are removed first; if that does not help it returns
// fault.Exhausted, so that what runs on the node has the rest. A disk that cannot be
// measured refuses nothing.
func (s *Store) makeRoom(ctx context.Context, doing string) error {
	s.mu.Lock()
	w := s.room
	s.mu.Unlock()
	if w == nil {
		return nil
	}
	if _, short := s.short(ctx, w.rules); !short {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, roomLimit)
	defer cancel()
	w.Clean(limited)
	d, short := s.short(ctx, w.rules)
	if !short {
		return nil
	}
	return full(fault.New(fault.Exhausted,
		"%s: the disk is nearly full, and no image may be removed: %s; %s are kept free (images.gc.min_free)", doing, d, filesystem.Bytes(w.rules.MinFree)))
}

func full(err error) error { return fault.WithReason(err, "DISK_FULL") }

// short says whether a filesystem with images has less room than is kept free.
func (s *Store) short(ctx context.Context, rules Rules) (filesystem.Space, bool) {
	disks, err := s.disks(ctx)
	if err != nil {
		s.deps.Log.Debug("disk not measured", logging.Err(err))
		return filesystem.Space{}, false
	}
	return rules.shortest(disks)
}

func (r Rules) shortest(disks []filesystem.Space) (filesystem.Space, bool) {
	for _, d := range disks {
		if d.Free < r.MinFree || filesystem.Percent(d.Inodes-d.InodesFree, d.Inodes) >= lastInodes {
			return d, true
		}
	}
	return filesystem.Space{}, false
}

// withFigures adds to an error that says that the disk is full how full it was, and how
// many bytes were to come; 0 for not known.
func (s *Store) withFigures(ctx context.Context, err error, need int64) error {
	if fault.Reason(err) != "DISK_FULL" {
		return err
	}
	disks, measured := s.disks(context.WithoutCancel(ctx))
	if measured != nil || len(disks) == 0 {
		return err
	}
	tightest := disks[0]
	for _, d := range disks[1:] {
		if d.Free < tightest.Free {
			tightest = d
		}
	}
	if need > 0 {
		return full(fault.New(fault.Exhausted, "%w (its parts have %s compressed; %s)", err, filesystem.Bytes(need), tightest))
	}
	return full(fault.New(fault.Exhausted, "%w (%s)", err, tightest))
}
