package image

import (
	"context"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// pullLabel marks the lease of a pull with the name of its image.
const pullLabel = "staddle.internal/pull"

// expireLabel is where the runtime notes when a lease ends.
const expireLabel = "containerd.io/gc.expire"

// keepParts is how long the parts of a pull that was cut are kept, for the next one to
// go on with, after the last try.
const keepParts = 24 * time.Hour

// hold takes a lease on all that a pull of an image writes, and on what an earlier one
// left, whether this process or the runtime died since. Leases that ended go.
func (s *Store) hold(ctx context.Context, c *containerd.Client, name string) (leases.Lease, error) {
	manager := c.LeasesService()
	all, err := manager.List(ctx, `labels."`+pullLabel+`"`)
	if err != nil {
		return leases.Lease{}, fault.New(fault.Unavailable, "look for what earlier pulls left: %w", err)
	}
	lease, err := manager.Create(ctx, leases.WithRandomID(), leases.WithExpiration(keepParts), leases.WithLabel(pullLabel, name))
	if err != nil {
		return leases.Lease{}, fault.New(fault.Unavailable, "hold its parts: %w", err)
	}
	for _, earlier := range all {
		switch {
		case earlier.Labels[pullLabel] == name:
			if err := takeOver(ctx, manager, earlier, lease); err != nil {
				return lease, fault.New(fault.Unavailable, "take over what an earlier pull left: %w", err)
			}
		case ended(earlier, time.Now()):
			s.letGo(ctx, c, earlier, false)
		}
	}
	return lease, nil
}

// takeOver moves what one lease holds to another.
func takeOver(ctx context.Context, manager leases.Manager, from, to leases.Lease) error {
	held, err := manager.ListResources(ctx, from)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	for _, resource := range held {
		if err := manager.AddResource(ctx, to, resource); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	if err := manager.Delete(ctx, from); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// ended says whether the time of a lease is over.
func ended(lease leases.Lease, now time.Time) bool {
	end, known := endOf(lease)
	return known && now.After(end)
}

// endOf is when the time of a lease is over, if it says so.
func endOf(lease leases.Lease) (time.Time, bool) {
	end, err := time.Parse(time.RFC3339, lease.Labels[expireLabel])
	return end, err == nil
}

// letGo ends a lease. What nothing else needs goes with it, at once if so asked.
func (s *Store) letGo(ctx context.Context, c *containerd.Client, lease leases.Lease, atOnce bool) {
	if lease.ID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortLimit)
	defer cancel()
	var opts []leases.DeleteOpt
	if atOnce {
		opts = append(opts, leases.SynchronousDelete)
	}
	if err := c.LeasesService().Delete(ctx, lease, opts...); err != nil && !errdefs.IsNotFound(err) {
		s.deps.Log.Warn("lease of pull not removed", logging.Component(lease.Labels[pullLabel]), logging.Err(err))
	}
}

// leftParts has it noted that a pull that failed now has left something for the next one.
func (s *Store) leftParts() {
	select {
	case s.cut <- struct{}{}:
	default: // it will be looked anyway
	}
}

// sweepParts removes what pulls left whose time was over at now, whoever began them, and
// returns when that of the next ones is over; zero for none.
func (s *Store) sweepParts(ctx context.Context, now time.Time) (next time.Time, err error) {
	c, err := s.deps.Client()
	if err != nil {
		return time.Time{}, err
	}
	all, err := c.LeasesService().List(ctx, `labels."`+pullLabel+`"`)
	if err != nil {
		return time.Time{}, fault.New(fault.Unavailable, "look for what earlier pulls left: %w", err)
	}
	for _, lease := range all {
		end, known := endOf(lease)
		switch {
		case !known:
		case now.After(end):
			s.letGo(ctx, c, lease, true)
		case next.IsZero() || end.Before(next):
			next = end
		}
	}
	return next, nil
}
