package target

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Stats is what a node and its sandboxes use, as it was read at once.
type Stats struct {
	Node      *sandboxhostv1.NodeStats
	Sandboxes []*sandboxhostv1.SandboxStats
}

// WatchStats reads what is used at once and then every so often, until ctx ends or show
// fails.
func (n *Node) WatchStats(ctx context.Context, every time.Duration, show func(Stats) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := sandboxhostv1.NewStatsServiceClient(n.conn).WatchStats(ctx, &sandboxhostv1.WatchStatsRequest{Interval: durationpb.New(every)})
	if err != nil {
		return wrap(err, "read what is used")
	}
	for {
		var round Stats
		for complete := false; !complete; {
			part, err := stream.Recv()
			if err != nil {
				return ended("read what is used", err)
			}
			if part.GetNode() != nil {
				round.Node = part.GetNode()
			}
			round.Sandboxes = append(round.Sandboxes, part.GetSandboxes()...)
			complete = part.GetComplete()
		}
		if err := show(round); err != nil {
			return err
		}
	}
}
