package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/logging"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// again spaces the openings of a stream.
var again = backoff.Policy{Initial: 20 * time.Millisecond, Cap: time.Second, Stable: 10 * time.Second}

// Run works until ctx ends. It is ready when both streams have told all that they
// have, and the workers run.
func (a *Agent) Run(ctx context.Context, ready func()) error {
	var wg, heard sync.WaitGroup
	heard.Add(2)
	wg.Go(func() { feed(ctx, a.log, "clusteraccess", a.followCluster, sync.OnceFunc(heard.Done)) })
	wg.Go(func() { feed(ctx, a.log, "sandboxhost", a.followHost, sync.OnceFunc(heard.Done)) })
	wg.Go(func() { a.resync(ctx) })
	for range workers {
		wg.Go(func() {
			for a.step(ctx) {
			}
		})
	}
	wg.Go(func() {
		heard.Wait()
		if ctx.Err() == nil {
			ready()
		}
	})
	<-ctx.Done()
	a.queue.ShutDown()
	wg.Wait() // all of the above end with ctx
	return context.Cause(ctx)
}

// feed reads a stream for ever. A stream that ends, also cleanly, is opened again.
func feed(ctx context.Context, log *slog.Logger, name string, follow func(context.Context, func()) error, heard func()) {
	defer heard() // lets go of who waits when ctx ends
	for attempt := 0; ; {
		began := time.Now()
		err := follow(ctx, heard)
		if ctx.Err() != nil {
			return
		}
		attempt = again.Next(attempt, time.Since(began))
		wait := again.Delay(attempt, rand.Float64())
		log.Warn("stream ended", logging.Component(name), logging.Err(err), logging.RetryIn(wait))
		if backoff.Wait(ctx, wait) != nil {
			return
		}
	}
}

func (a *Agent) followCluster(ctx context.Context, heard func()) error {
	a.view.clusterAway()
	defer a.view.clusterAway()
	a.reportAnew()
	return a.deps.Cluster.Watch(ctx, func(msg *clusteraccessv1.WatchResourcesResponse) {
		if a.view.clusterEvent(msg) {
			heard()
		}
	})
}

func (a *Agent) followHost(ctx context.Context, heard func()) error {
	a.view.hostAway()
	defer a.view.hostAway()
	return a.deps.Host.Watch(ctx, func(msg *sandboxhostv1.WatchSandboxesResponse) {
		if a.view.hostEvent(msg) {
			heard()
		}
	})
}

// resync looks at everything again now and then, whatever the streams say, and
// reports anew what the mirror does not show.
func (a *Agent) resync(ctx context.Context) {
	for {
		wait := a.cfg.Resync + time.Duration(rand.Int64N(int64(a.cfg.Resync)/4+1))
		if backoff.Wait(ctx, wait) != nil {
			return
		}
		a.reportAnew()
		a.lookAgain(a.view.all()...)
	}
}
