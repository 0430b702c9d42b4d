package image

import (
	"context"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
)

// LeftLeases lists the leases of pulls whose time is over and that nobody has let go
// of. One whose time is not over is kept for the next pull to go on with.
func LeftLeases(ctx context.Context, c *containerd.Client, now time.Time) ([]leases.Lease, error) {
	all, err := c.LeasesService().List(ctx, `labels."`+pullLabel+`"`)
	if err != nil {
		return nil, err
	}
	var left []leases.Lease
	for _, l := range all {
		if ended(l, now) {
			left = append(left, l)
		}
	}
	return left, nil
}
