// Package api serves ClusterAccessService: the gRPC door of this process.
//
// It turns messages into calls of the mirror, the reporter, the authority and the
// coordinator, and back. It must never decide anything about records. In the
// trail it is where the agents read their records and leave their status.
package api

import (
	"context"
	"encoding/base64"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/fault"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/clusteraccess/internal/link"
	"staddle.internal/services/clusteraccess/internal/mirror"
)

// Bounds of a page.
const (
	defaultPage = 100
	maxPage     = 1000
	// maxPageBytes keeps a page well below the 4 MiB of one message.
	maxPageBytes = 2 << 20
)

// coordinator answers what the mirror cannot.
type coordinator interface {
	Resource(ctx context.Context, kind resourcev1.Kind, uid string, at *resourcev1.Position) (*resourcev1.Resource, error)
	Renew(ctx context.Context, session int64, ttl time.Duration) (link.Session, error)
	End(ctx context.Context, session int64, workloadsKept bool) error
	Secrets(ctx context.Context, uid string, tell func(*coordinatorv1.ResolveSecretsResponse) error) error
}

// reporter takes statuses.
type reporter interface {
	Report(records []*resourcev1.Resource) error
}

// authority learns of renewals and tells of them.
type authority interface {
	Renewed(sentAt, ttl time.Duration)
	Follow(ctx context.Context, tell func(*clusteraccessv1.WatchAuthorityResponse) error) error
}

// refusals learns who is let in no more.
type refusals interface {
	Refuse(identities []string)
}

// Deps is what the service needs.
type Deps struct {
	// Mirror holds the records.
	Mirror *mirror.Mirror
	// Coordinator is asked for what must be true now.
	Coordinator coordinator
	// Reporter takes statuses.
	Reporter reporter
	// Authority is moved by renewals.
	Authority authority
	// Refusals are told with renewals.
	Refusals refusals
}

// Server is the service.
type Server struct {
	clusteraccessv1.UnimplementedClusterAccessServiceServer

	deps Deps
}

// New returns the service.
func New(deps Deps) *Server { return &Server{deps: deps} }

// GetResource asks the coordinator. Its NotFound makes things go away, so it is
// passed on only if the mirror was live all the while: then it is the word of the
// history that the mirror shows, and not of one that came in between.
func (s *Server) GetResource(ctx context.Context, req *clusteraccessv1.GetResourceRequest) (*clusteraccessv1.GetResourceResponse, error) {
	before := s.deps.Mirror.State()
	record, err := s.deps.Coordinator.Resource(ctx, req.GetKind(), req.GetUid(), req.GetPosition())
	if errors.Is(err, fault.NotFound) && !liveThroughout(before, s.deps.Mirror.State()) {
		return nil, fault.New(fault.Unavailable, "get record %s: the link was not up throughout", req.GetUid())
	}
	if err != nil {
		return nil, err
	}
	return &clusteraccessv1.GetResourceResponse{Resource: record}, nil
}

func liveThroughout(before, after *clusteraccessv1.MirrorState) bool {
	return before.GetLive() && after.GetLive() && before.GetTerm() == after.GetTerm() &&
		before.GetSince().AsTime().Equal(after.GetSince().AsTime())
}

// ListResources answers from the mirror.
func (s *Server) ListResources(_ context.Context, req *clusteraccessv1.ListResourcesRequest) (*clusteraccessv1.ListResourcesResponse, error) {
	after, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil {
		return nil, fault.New(fault.Invalid, "list resources: page_token is not one of ours; begin without one")
	}
	size := int(req.GetPageSize())
	if size <= 0 {
		size = defaultPage
	}
	records, more, state := s.deps.Mirror.List(req.GetKind(), string(after), min(size, maxPage))
	if n := fit(records); n < len(records) {
		records, more = records[:n], true
	}
	resp := &clusteraccessv1.ListResourcesResponse{Resources: records, Mirror: state}
	if more {
		last := records[len(records)-1].GetMeta().GetName()
		resp.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(last))
	}
	return resp, nil
}

// fit is how many of some records go into a page: one at least.
func fit(records []*resourcev1.Resource) int {
	bytes := 0
	for i, r := range records {
		if bytes += proto.Size(r); bytes > maxPageBytes && i > 0 {
			return i
		}
	}
	return len(records)
}

// WatchResources streams the mirror.
func (s *Server) WatchResources(req *clusteraccessv1.WatchResourcesRequest, stream grpc.ServerStreamingServer[clusteraccessv1.WatchResourcesResponse]) error {
	reader := s.deps.Mirror.Read(req.GetKinds())
	defer reader.Close()
	for {
		msg, err := reader.Next(stream.Context())
		if err != nil {
			return err
		}
		if err := stream.Send(msg); err != nil {
			return err
		}
	}
}

// ReportStatus takes statuses into memory.
func (s *Server) ReportStatus(_ context.Context, req *clusteraccessv1.ReportStatusRequest) (*clusteraccessv1.ReportStatusResponse, error) {
	if err := s.deps.Reporter.Report(req.GetResources()); err != nil {
		return nil, err
	}
	return &clusteraccessv1.ReportStatusResponse{}, nil
}

// RenewSession renews at the coordinator. What moves the authority is the time
// before the request was sent: the coordinator counts from later.
func (s *Server) RenewSession(ctx context.Context, req *clusteraccessv1.RenewSessionRequest) (*clusteraccessv1.RenewSessionResponse, error) {
	sentAt := boottime.Now()
	session, err := s.deps.Coordinator.Renew(ctx, req.GetSessionId(), req.GetTtl().AsDuration())
	if err != nil {
		return nil, err
	}
	s.deps.Authority.Renewed(sentAt, session.TTL)
	s.deps.Refusals.Refuse(session.Refused)
	return &clusteraccessv1.RenewSessionResponse{
		SessionId: session.ID, Ttl: durationpb.New(session.TTL), NodeUid: session.NodeUID,
	}, nil
}

// EndSession ends the session at the coordinator.
func (s *Server) EndSession(ctx context.Context, req *clusteraccessv1.EndSessionRequest) (*clusteraccessv1.EndSessionResponse, error) {
	if err := s.deps.Coordinator.End(ctx, req.GetSessionId(), req.GetWorkloadsKept()); err != nil {
		return nil, err
	}
	return &clusteraccessv1.EndSessionResponse{}, nil
}

// WatchAuthority streams the authority.
func (s *Server) WatchAuthority(_ *clusteraccessv1.WatchAuthorityRequest, stream grpc.ServerStreamingServer[clusteraccessv1.WatchAuthorityResponse]) error {
	return s.deps.Authority.Follow(stream.Context(), stream.Send)
}

// ResolveSecrets passes values on and keeps none.
func (s *Server) ResolveSecrets(req *clusteraccessv1.ResolveSecretsRequest, stream grpc.ServerStreamingServer[clusteraccessv1.ResolveSecretsResponse]) error {
	return s.deps.Coordinator.Secrets(stream.Context(), req.GetSandboxUid(), func(from *coordinatorv1.ResolveSecretsResponse) error {
		msg := &clusteraccessv1.ResolveSecretsResponse{}
		if data := from.GetSecret(); data != nil {
			msg.Event = &clusteraccessv1.ResolveSecretsResponse_Secret{Secret: data}
		} else {
			msg.Event = &clusteraccessv1.ResolveSecretsResponse_Missing{Missing: from.GetMissing()}
		}
		return stream.Send(msg)
	})
}
