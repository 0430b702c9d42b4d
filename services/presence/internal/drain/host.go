package drain

import (
	"context"
	"time"

	"google.golang.org/grpc"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// callTimeout bounds one question or change.
const callTimeout = 5 * time.Second

// HostAt adapts a connection to sandboxhost.
func HostAt(conn grpc.ClientConnInterface) Host {
	return host{
		holds: sandboxhostv1.NewHoldServiceClient(conn), sandboxes: sandboxhostv1.NewSandboxHostServiceClient(conn),
		grants: sandboxhostv1.NewGrantServiceClient(conn),
	}
}

type host struct {
	holds     sandboxhostv1.HoldServiceClient
	sandboxes sandboxhostv1.SandboxHostServiceClient
	grants    sandboxhostv1.GrantServiceClient
}

func (h host) Holds(ctx context.Context) ([]*sandboxhostv1.Hold, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := h.holds.ListHolds(ctx, &sandboxhostv1.ListHoldsRequest{})
	return resp.GetHolds(), err
}

func (h host) WatchHolds(ctx context.Context, tell func(*sandboxhostv1.WatchHoldsResponse)) error {
	stream, err := h.holds.WatchHolds(ctx, &sandboxhostv1.WatchHoldsRequest{})
	return receive(stream, err, tell)
}

func (h host) Ensure(ctx context.Context, hold *sandboxhostv1.Hold) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := h.holds.EnsureHold(ctx, &sandboxhostv1.EnsureHoldRequest{Hold: hold})
	return err
}

func (h host) Lift(ctx context.Context, purpose sandboxhostv1.HoldPurpose) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := h.holds.LiftHold(ctx, &sandboxhostv1.LiftHoldRequest{Purpose: purpose})
	return err
}

func (h host) Sandboxes(ctx context.Context, tell func(*sandboxhostv1.WatchSandboxesResponse)) error {
	stream, err := h.sandboxes.WatchSandboxes(ctx, &sandboxhostv1.WatchSandboxesRequest{})
	return receive(stream, err, tell)
}

func (h host) Grants(ctx context.Context, tell func(*sandboxhostv1.WatchGrantsResponse)) error {
	stream, err := h.grants.WatchGrants(ctx, &sandboxhostv1.WatchGrantsRequest{})
	return receive(stream, err, tell)
}

// receive tells every message of a stream, and returns why it ended.
func receive[M any](stream grpc.ServerStreamingClient[M], err error, tell func(*M)) error {
	for err == nil {
		var msg *M
		if msg, err = stream.Recv(); err == nil {
			tell(msg)
		}
	}
	return err
}
