package node

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// ClusterAt adapts a connection to clusteraccess.
func ClusterAt(conn grpc.ClientConnInterface) Cluster {
	return cluster{clusteraccessv1.NewClusterAccessServiceClient(conn)}
}

type cluster struct {
	client clusteraccessv1.ClusterAccessServiceClient
}

func (c cluster) Renew(ctx context.Context, id int64, ttl time.Duration) (Session, error) {
	resp, err := c.client.RenewSession(ctx, &clusteraccessv1.RenewSessionRequest{SessionId: id, Ttl: durationpb.New(ttl)})
	return Session{ID: resp.GetSessionId(), TTL: resp.GetTtl().AsDuration(), NodeUID: resp.GetNodeUid()}, err
}

func (c cluster) End(ctx context.Context, id int64) error {
	_, err := c.client.EndSession(ctx, &clusteraccessv1.EndSessionRequest{SessionId: id, WorkloadsKept: true})
	return err
}

func (c cluster) Report(ctx context.Context, record *resourcev1.Resource) error {
	_, err := c.client.ReportStatus(ctx, &clusteraccessv1.ReportStatusRequest{Resources: []*resourcev1.Resource{record}})
	return err
}

func (c cluster) Watch(ctx context.Context, tell func(*clusteraccessv1.WatchResourcesResponse)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.client.WatchResources(ctx, &clusteraccessv1.WatchResourcesRequest{Kinds: []resourcev1.Kind{resourcev1.Kind_KIND_NODE}})
	for err == nil {
		var msg *clusteraccessv1.WatchResourcesResponse
		if msg, err = stream.Recv(); err == nil {
			tell(msg)
		}
	}
	return err
}
