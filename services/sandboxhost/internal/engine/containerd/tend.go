package containerd

import (
	"context"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/logging"
)

// tendPeriod is how often somebody looks whether the network still is as it was
// made: nobody is told by whom a firewall is loaded anew.
const tendPeriod = 10 * time.Second

// tendNetwork mends what all sandboxes stand on, from the adoption on until ctx
// ends, and has the keepers of those that lost their interface look.
func (e *Engine) tendNetwork(ctx context.Context, adopted <-chan struct{}) {
	select {
	case <-adopted:
	case <-ctx.Done():
		return
	}
	said := ""
	for !e.cfg.Network.Disable && backoff.Wait(ctx, tendPeriod) == nil {
		off, err := e.network.Mend(ctx)
		for _, uid := range off {
			e.hints.one(uid)
		}
		switch {
		case err == nil:
			said = ""
		case err.Error() != said && ctx.Err() == nil:
			said = err.Error()
			e.log.Warn("network not mended", logging.Err(err))
		}
	}
}
