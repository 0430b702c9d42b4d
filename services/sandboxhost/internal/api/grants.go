package api

import (
	"context"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/grant"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// grantServer implements GrantService.
type grantServer struct {
	sandboxhostv1.UnimplementedGrantServiceServer
	store *grant.Store
}

// RegisterGrants serves the grants of a store on a server.
func RegisterGrants(on grpc.ServiceRegistrar, store *grant.Store) {
	sandboxhostv1.RegisterGrantServiceServer(on, &grantServer{store: store})
}

// GrantDisk lets a sandbox use a disk.
func (s *grantServer) GrantDisk(_ context.Context, req *sandboxhostv1.GrantDiskRequest) (*sandboxhostv1.GrantDiskResponse, error) {
	err := s.store.Grant(&sandboxhostv1.Grant{
		DiskUid: req.GetDiskUid(), Disk: req.GetDisk(), SandboxUid: req.GetSandboxUid(), Epoch: req.GetEpoch(), Path: req.GetPath(),
	})
	if err != nil {
		return nil, err
	}
	return &sandboxhostv1.GrantDiskResponse{}, nil
}

// RevokeDisk asks a grant back.
func (s *grantServer) RevokeDisk(_ context.Context, req *sandboxhostv1.RevokeDiskRequest) (*sandboxhostv1.RevokeDiskResponse, error) {
	if err := s.store.Revoke(id.Disk(req.GetDiskUid()), req.GetEpoch()); err != nil {
		return nil, err
	}
	return &sandboxhostv1.RevokeDiskResponse{}, nil
}

// ParkDisk says that an idle disk is unmounted.
func (s *grantServer) ParkDisk(_ context.Context, req *sandboxhostv1.ParkDiskRequest) (*sandboxhostv1.ParkDiskResponse, error) {
	if err := s.store.Park(id.Disk(req.GetDiskUid()), req.GetEpoch()); err != nil {
		return nil, err
	}
	return &sandboxhostv1.ParkDiskResponse{}, nil
}

// ForgetGrant drops a returned grant.
func (s *grantServer) ForgetGrant(_ context.Context, req *sandboxhostv1.ForgetGrantRequest) (*sandboxhostv1.ForgetGrantResponse, error) {
	if err := s.store.Forget(id.Disk(req.GetDiskUid()), req.GetEpoch()); err != nil {
		return nil, err
	}
	return &sandboxhostv1.ForgetGrantResponse{}, nil
}

// WatchGrants sends all grants and their changes.
func (s *grantServer) WatchGrants(_ *sandboxhostv1.WatchGrantsRequest, stream grpc.ServerStreamingServer[sandboxhostv1.WatchGrantsResponse]) error {
	for e := range s.store.Grants().Subscribe(stream.Context()) {
		m := &sandboxhostv1.WatchGrantsResponse{}
		switch e.Kind {
		case watch.Synced:
			m.Event = &sandboxhostv1.WatchGrantsResponse_Synced{Synced: true}
		case watch.Deleted:
			m.Event = &sandboxhostv1.WatchGrantsResponse_Forgotten{Forgotten: e.Value}
		default:
			m.Event = &sandboxhostv1.WatchGrantsResponse_Changed{Changed: e.Value}
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	if err := stream.Context().Err(); err != nil {
		return err
	}
	return fault.New(fault.Unavailable, "watch grants: the reader is too slow; begin anew")
}
