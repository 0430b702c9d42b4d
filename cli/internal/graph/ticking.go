package graph

import (
	"context"
	"time"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"
)

// period is how often a graph is shown again while nothing changes.
const period = time.Second

// Ticking calls show with each graph that watch gives, and again each second, so
// that the times in it go on. It returns the error of show, or else that of watch.
func Ticking(ctx context.Context, watch func(context.Context, func(*supervisorv1.GetGraphResponse) error) error,
	show func(*supervisorv1.GetGraphResponse) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	graphs, ended := make(chan *supervisorv1.GetGraphResponse), make(chan struct{})
	var watched error // set once ended is closed
	go func() {       // owned by this call, which waits for it
		defer close(ended)
		watched = watch(ctx, func(g *supervisorv1.GetGraphResponse) error {
			select {
			case graphs <- g:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	tick := time.NewTicker(period)
	defer tick.Stop()
	var last *supervisorv1.GetGraphResponse
	for {
		select {
		case last = <-graphs:
		case <-tick.C:
		case <-ended:
			return watched
		}
		if last == nil {
			continue
		}
		if err := show(last); err != nil {
			cancel()
			<-ended
			return err
		}
	}
}
