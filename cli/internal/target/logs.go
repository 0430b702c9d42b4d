package target

import (
	"context"
	"errors"
	"io"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Logs reads output from this node.
func (n *Node) Logs(ctx context.Context, req *sandboxhostv1.ReadLogsRequest, emit func(*sandboxhostv1.ReadLogsResponse) error) error {
	return readLogs(ctx, n.host, req, emit)
}

// Logs reads output through the door.
func (i *Inside) Logs(ctx context.Context, req *sandboxhostv1.ReadLogsRequest, emit func(*sandboxhostv1.ReadLogsResponse) error) error {
	return readLogs(ctx, sandboxhostv1.NewSandboxHostServiceClient(i.conn), req, emit)
}

func readLogs(
	ctx context.Context, host sandboxhostv1.SandboxHostServiceClient, req *sandboxhostv1.ReadLogsRequest, emit func(*sandboxhostv1.ReadLogsResponse) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := host.ReadLogs(ctx, req)
	if err != nil {
		return wrap(err, "read logs")
	}
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return ended("read logs", err)
		}
		if err := emit(msg); err != nil {
			return err
		}
	}
}
