package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// serviceKeeper keeps services; a *service.Keeper.
type serviceKeeper interface {
	Ensure(wish *sandboxhostv1.ServiceWish) (*sandboxhostv1.ServiceState, error)
	Remove(uid, manager string) error
	List() ([]*sandboxhostv1.ServiceState, error)
}

// serviceServer implements ServiceHostService.
type serviceServer struct {
	sandboxhostv1.UnimplementedServiceHostServiceServer
	keeper serviceKeeper
}

// RegisterServices serves the services of k on a server.
func RegisterServices(on grpc.ServiceRegistrar, k serviceKeeper) {
	sandboxhostv1.RegisterServiceHostServiceServer(on, &serviceServer{keeper: k})
}

// EnsureService accepts a wish.
func (s *serviceServer) EnsureService(ctx context.Context, req *sandboxhostv1.EnsureServiceRequest) (*sandboxhostv1.EnsureServiceResponse, error) {
	if err := check(ctx, req.GetUid(), req.GetManager(), false); err != nil {
		return nil, err
	}
	address := req.GetAddress()
	switch asked := req.GetSpec().GetAddress(); {
	case address != "" && req.GetSpec().GetHeadless():
		return nil, fault.New(fault.Invalid, "service %s: address: a headless service has none: leave it out", req.GetName())
	case address == "":
		address = asked
	case asked != "" && asked != address:
		return nil, fault.New(fault.Invalid, "service %s: address: it is %s, and %s in the spec: name one", req.GetName(), address, asked)
	}
	state, err := s.keeper.Ensure(&sandboxhostv1.ServiceWish{
		Uid: req.GetUid(), Name: req.GetName(), Manager: req.GetManager(), Generation: req.GetGeneration(),
		Spec: req.GetSpec(), Address: address, Position: req.GetPosition(),
	})
	if err != nil {
		return nil, err
	}
	return &sandboxhostv1.EnsureServiceResponse{Service: state}, nil
}

// RemoveService ends a wish.
func (s *serviceServer) RemoveService(ctx context.Context, req *sandboxhostv1.RemoveServiceRequest) (*sandboxhostv1.RemoveServiceResponse, error) {
	if err := check(ctx, req.GetUid(), req.GetManager(), req.GetLost()); err != nil {
		return nil, err
	}
	if err := s.keeper.Remove(req.GetUid(), req.GetManager()); err != nil {
		return nil, err
	}
	return &sandboxhostv1.RemoveServiceResponse{}, nil
}

// ListServices returns a page of services by uid. The token of a page is the last uid
// before it.
func (s *serviceServer) ListServices(_ context.Context, req *sandboxhostv1.ListServicesRequest) (*sandboxhostv1.ListServicesResponse, error) {
	after := req.GetPageToken()
	if after != "" {
		if err := id.CheckUID(after); err != nil {
			return nil, fault.New(fault.Invalid, "page token was not made by this method: %w", err)
		}
	}
	all, err := s.keeper.List()
	if err != nil {
		return nil, err
	}
	size := min(int(req.GetPageSize()), largestPage)
	if size <= 0 {
		size = defaultPage
	}
	res, bytes := &sandboxhostv1.ListServicesResponse{}, 0
	for _, state := range all {
		if state.GetWish().GetUid() <= after {
			continue
		}
		bytes += proto.Size(state)
		if n := len(res.GetServices()); n == size || n > 0 && bytes > maxPageBytes {
			res.NextPageToken = res.GetServices()[n-1].GetWish().GetUid()
			break
		}
		res.Services = append(res.Services, state)
	}
	return res, nil
}
