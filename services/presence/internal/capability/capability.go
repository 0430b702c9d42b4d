// Package capability asks a neighbour, for ever, whether it serves, and why not.
//
// The answer comes by gRPC health, the reason from the neighbour's own GetStatus.
// A neighbour that cannot be asked is Away, which is said with the cause; it is
// never taken for one that said no. It must never decide what an answer means for
// the node. In the trail it is where a crash of a process is first noticed.
package capability

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"staddle.internal/kit/backoff"
	processv1 "staddle.internal/proto/gen/staddle/process/v1"

	"staddle.internal/services/presence/internal/condition"
)

var again = backoff.Policy{Initial: 20 * time.Millisecond, Cap: 500 * time.Millisecond, Stable: time.Second}

const (
	// askTimeout bounds the question for the reason.
	askTimeout = time.Second
	// askEvery is how often the reason is asked for again while it does not serve.
	askEvery = 2 * time.Second
)

// Capability is one name in the health of one neighbour.
type Capability struct {
	// Process is the neighbour's name.
	Process string
	// Health is the name in its gRPC health, "" for the process itself.
	Health string
	// Conn leads to it.
	Conn grpc.ClientConnInterface
}

// Follow tells every observation until ctx ends.
func (c Capability) Follow(ctx context.Context, tell func(condition.Observation)) {
	for attempt := 0; ; {
		began := time.Now()
		err := c.follow(ctx, tell)
		if ctx.Err() != nil {
			return
		}
		tell(condition.Observation{Answer: condition.Away, Reason: fmt.Sprintf("%s does not answer: %v", c.Process, err)})
		attempt = again.Next(attempt, time.Since(began))
		if backoff.Wait(ctx, again.Delay(attempt, rand.Float64())) != nil {
			return
		}
	}
}

// follow reads one health stream to its end.
func (c Capability) follow(ctx context.Context, tell func(condition.Observation)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := healthv1.NewHealthClient(c.Conn).Watch(ctx, &healthv1.HealthCheckRequest{Service: c.Health})
	if err != nil {
		return err
	}
	answers, ended := make(chan bool), make(chan error, 1)
	wg.Go(func() { ended <- receive(ctx, stream, answers) }) // ends with ctx; waited for above
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	serving := true // nothing to ask again before the first answer
	for {
		select {
		case err := <-ended:
			return err
		case serving = <-answers:
		case <-ticker.C:
			if serving {
				continue
			}
		}
		tell(c.observe(ctx, serving))
	}
}

func receive(ctx context.Context, stream grpc.ServerStreamingClient[healthv1.HealthCheckResponse], answers chan<- bool) error {
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case answers <- answer.GetStatus() == healthv1.HealthCheckResponse_SERVING:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c Capability) observe(ctx context.Context, serving bool) condition.Observation {
	if serving {
		return condition.Observation{Answer: condition.Serving}
	}
	if c.Health != "" { // GetStatus tells of the process as a whole
		return condition.Observation{Answer: condition.Away, Reason: fmt.Sprintf("%s: no %s", c.Process, c.Health)}
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	away := condition.Observation{Answer: condition.Away, Reason: c.Process + " does not serve"}
	st, err := processv1.NewProcessServiceClient(c.Conn).GetStatus(ctx, &processv1.GetStatusRequest{})
	if err != nil {
		return away // its health did answer; only the reason is missing
	}
	if st.GetState() == processv1.ProcessState_PROCESS_STATE_STOPPING {
		away.Answer = condition.Gone
	}
	if st.GetReason() != "" {
		away.Reason = st.GetReason()
	}
	return away
}
