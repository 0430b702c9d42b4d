package agent

import (
	"context"

	"staddle.internal/kit/id"
)

// report sends the host's status, once per seq and stream of records.
func (a *Agent) report(ctx context.Context, uid id.Sandbox, in Input) error {
	seq := in.Host.GetStatus().GetSeq()
	a.mu.Lock()
	done := a.reported[uid] >= seq
	a.mu.Unlock()
	if done {
		return nil
	}
	if err := a.deps.Cluster.Report(ctx, withStatus(in.Record, in.Host.GetStatus())); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reported[uid] = max(a.reported[uid], seq)
	return nil
}

func (a *Agent) unreport(uid id.Sandbox) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.reported, uid)
}

// reportAnew forgets what clusteraccess has taken: it may have been restarted.
func (a *Agent) reportAnew() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.reported)
}
