package supervisor

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"

	"staddle.internal/kit/process"
)

// presence is the process that drains the node.
const presence = "presence"

// drainer has the node drained as for a shutdown of the machine, and waits for it.
func drainer(p *process.Process) func(context.Context, *durationpb.Duration) error {
	return func(ctx context.Context, killAfter *durationpb.Duration) error {
		conn, err := p.Dial(presence)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx) // ends the stream with this function
		defer cancel()
		stream, err := presencev1.NewPresenceServiceClient(conn).Drain(ctx, &presencev1.DrainRequest{
			Shutdown: true, KillAfter: killAfter, Reason: "shutdown of the supervisor",
		})
		for err == nil {
			var now *presencev1.DrainResponse
			if now, err = stream.Recv(); now.GetProgress().GetStep() == presencev1.DrainStep_DRAIN_STEP_DONE {
				return nil
			}
		}
		return fmt.Errorf("drain the node: %w", err)
	}
}
