package target

import (
	"context"

	"google.golang.org/grpc"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Inside is the door into the sandboxes of one node: its sandboxhost, by its socket or
// through the gateway of the node.
type Inside struct {
	conn *grpc.ClientConn
	// Exec runs processes.
	Exec sandboxhostv1.ExecServiceClient
	// Forward connects to ports.
	Forward sandboxhostv1.ForwardServiceClient
	// Copy carries files.
	Copy sandboxhostv1.CopyServiceClient
	// Events tells what happened to them.
	Events sandboxhostv1.EventServiceClient
}

func newInside(conn *grpc.ClientConn) *Inside {
	return &Inside{
		conn, sandboxhostv1.NewExecServiceClient(conn), sandboxhostv1.NewForwardServiceClient(conn), sandboxhostv1.NewCopyServiceClient(conn),
		sandboxhostv1.NewEventServiceClient(conn),
	}
}

// Inside is the door into the sandboxes of this node. It ends with it.
func (n *Node) Inside() *Inside { return newInside(n.conn) }

// Inside connects to the door of the node that a record is about, through its gateway.
func (s *Settings) Inside(ctx context.Context, node *resourcev1.Resource) (*Inside, error) {
	address, err := GatewayOf(node)
	if err != nil {
		return nil, err
	}
	conn, err := s.gateway(ctx, node.GetMeta().GetName(), address)
	if err != nil {
		return nil, err
	}
	return newInside(conn), nil
}

// Close ends the connection.
func (i *Inside) Close() error { return i.conn.Close() }
