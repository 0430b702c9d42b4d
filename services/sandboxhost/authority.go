package sandboxhost

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/logging"

	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
)

// authorityPolicy is how often clusteraccess is asked again when it is away.
var authorityPolicy = backoff.Policy{Initial: 100 * time.Millisecond, Cap: 5 * time.Second, Stable: 10 * time.Second}

// authority follows the time of the node's last acknowledged session renewal. That
// it cannot be asked changes nothing: what was known last counts on.
type authority struct {
	client clusteraccessv1.ClusterAccessServiceClient
	boot   string
	log    *slog.Logger
	tell   func(renewedAt time.Duration)
}

func (a authority) run(ctx context.Context, ready func()) error {
	ready()
	for try := 1; ; {
		began := time.Now()
		err := a.follow(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wait := authorityPolicy.Delay(try, rand.Float64())
		try = authorityPolicy.Next(try, time.Since(began))
		a.log.Debug("authority not followed", logging.Err(err), logging.RetryIn(wait))
		if err := backoff.Wait(ctx, wait); err != nil {
			return err
		}
	}
}

// follow reads one stream to its end.
func (a authority) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := a.client.WatchAuthority(ctx, &clusteraccessv1.WatchAuthorityRequest{})
	if err != nil {
		return err
	}
	for {
		at, err := stream.Recv()
		if err != nil {
			return err
		}
		if at.GetBootId() == a.boot && at.GetRenewedAt() != nil {
			a.tell(at.GetRenewedAt().AsDuration())
		}
	}
}
