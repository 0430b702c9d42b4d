package node

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/backoff"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// PressureAt adapts a connection to sandboxhost.
func PressureAt(conn grpc.ClientConnInterface) Pressure {
	return pressureOf{sandboxhostv1.NewPressureServiceClient(conn)}
}

type pressureOf struct {
	client sandboxhostv1.PressureServiceClient
}

// Follow reads one stream after the other. A host that is away for a moment has not said
// anything: only after the second try in vain nobody knows.
func (p pressureOf) Follow(ctx context.Context, tell func([]*resourcev1.Condition)) {
	for attempt := 0; ; {
		began := time.Now()
		_ = p.follow(ctx, tell) // why it is away is told by its own condition
		if ctx.Err() != nil {
			return
		}
		if attempt = watchAgain.Next(attempt, time.Since(began)); attempt == 2 {
			tell(nil)
		}
		if backoff.Wait(ctx, watchAgain.Delay(attempt, rand.Float64())) != nil {
			return
		}
	}
}

func (p pressureOf) follow(ctx context.Context, tell func([]*resourcev1.Condition)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.client.WatchPressure(ctx, &sandboxhostv1.WatchPressureRequest{})
	for err == nil {
		var now *sandboxhostv1.WatchPressureResponse
		if now, err = stream.Recv(); err == nil {
			tell(append(now.GetConditions(), now.GetConfinement()...))
		}
	}
	return err
}
