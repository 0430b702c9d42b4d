package clusteraccess

import (
	"google.golang.org/protobuf/proto"

	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
)

// requests are the messages whose rules are compiled at start.
func requests() []proto.Message {
	return []proto.Message{
		&clusteraccessv1.GetResourceRequest{}, &clusteraccessv1.ListResourcesRequest{},
		&clusteraccessv1.WatchResourcesRequest{}, &clusteraccessv1.ReportStatusRequest{},
		&clusteraccessv1.RenewSessionRequest{}, &clusteraccessv1.EndSessionRequest{},
		&clusteraccessv1.WatchAuthorityRequest{}, &clusteraccessv1.ResolveSecretsRequest{},
	}
}
