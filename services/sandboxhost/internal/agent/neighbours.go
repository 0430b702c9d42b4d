package agent

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// manager under which the cluster's wishes are made.
const manager = "cluster"

// Cluster is what the agent needs of clusteraccess. Its errors carry kinds.
type Cluster interface {
	// Watch tells every message of the stream of sandbox records until it ends,
	// and returns why, never nil.
	Watch(ctx context.Context, tell func(*clusteraccessv1.WatchResourcesResponse)) error
	// Get asks the coordinator itself for a sandbox record: NotFound is a fact of a
	// history that contains the position.
	Get(ctx context.Context, uid id.Sandbox, at *resourcev1.Position) error
	// Report hands over the status of a record.
	Report(ctx context.Context, record *resourcev1.Resource) error
}

// Host is what the agent needs of sandboxhost. Its errors carry kinds.
type Host interface {
	// Watch tells every message of the stream of the cluster's sandboxes until it
	// ends, and returns why, never nil.
	Watch(ctx context.Context, tell func(*sandboxhostv1.WatchSandboxesResponse)) error
	// EnsureSandbox hands over the wish in a record, and where in the history it is.
	EnsureSandbox(ctx context.Context, record *resourcev1.Resource, at *resourcev1.Position) error
	// RemoveSandbox ends a wish.
	RemoveSandbox(ctx context.Context, uid id.Sandbox) error
	// ForgetSandbox drops what is known of a removed sandbox.
	ForgetSandbox(ctx context.Context, uid id.Sandbox) error
	// Holds says whether the host holds anything of a uid.
	Holds(ctx context.Context, uid id.Sandbox) (bool, error)
}

// Neighbours adapts the connections to both processes.
func Neighbours(clusteraccess, sandboxhost grpc.ClientConnInterface) (Cluster, Host) {
	return cluster{clusteraccessv1.NewClusterAccessServiceClient(clusteraccess)},
		host{sandboxhostv1.NewSandboxHostServiceClient(sandboxhost)}
}

type cluster struct {
	client clusteraccessv1.ClusterAccessServiceClient
}

func (c cluster) Watch(ctx context.Context, tell func(*clusteraccessv1.WatchResourcesResponse)) error {
	return watchKind(ctx, c.client, resourcev1.Kind_KIND_SANDBOX, tell)
}

func watchKind(ctx context.Context, from clusteraccessv1.ClusterAccessServiceClient, kind resourcev1.Kind, tell func(*clusteraccessv1.WatchResourcesResponse)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := from.WatchResources(ctx, &clusteraccessv1.WatchResourcesRequest{Kinds: []resourcev1.Kind{kind}})
	return read(stream, err, tell)
}

func (c cluster) Get(ctx context.Context, uid id.Sandbox, at *resourcev1.Position) error {
	_, err := c.client.GetResource(ctx, &clusteraccessv1.GetResourceRequest{
		Kind: resourcev1.Kind_KIND_SANDBOX, Uid: string(uid), Position: at,
	})
	return err
}

func (c cluster) Report(ctx context.Context, record *resourcev1.Resource) error {
	_, err := c.client.ReportStatus(ctx, &clusteraccessv1.ReportStatusRequest{Resources: []*resourcev1.Resource{record}})
	return err
}

type host struct {
	client sandboxhostv1.SandboxHostServiceClient
}

func (h host) Watch(ctx context.Context, tell func(*sandboxhostv1.WatchSandboxesResponse)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := h.client.WatchSandboxes(ctx, &sandboxhostv1.WatchSandboxesRequest{Manager: manager})
	return read(stream, err, tell)
}

func (h host) EnsureSandbox(ctx context.Context, record *resourcev1.Resource, at *resourcev1.Position) error {
	meta := record.GetMeta()
	_, err := h.client.EnsureSandbox(ctx, &sandboxhostv1.EnsureSandboxRequest{
		Uid: meta.GetUid(), Name: meta.GetName(), Generation: meta.GetGeneration(),
		Manager: manager, Spec: record.GetSandbox().GetSpec(), Position: at, Labels: meta.GetLabels(),
	})
	return err
}

func (h host) RemoveSandbox(ctx context.Context, uid id.Sandbox) error {
	_, err := h.client.RemoveSandbox(ctx, &sandboxhostv1.RemoveSandboxRequest{Uid: string(uid), Manager: manager})
	return err
}

func (h host) ForgetSandbox(ctx context.Context, uid id.Sandbox) error {
	_, err := h.client.ForgetSandbox(ctx, &sandboxhostv1.ForgetSandboxRequest{Uid: string(uid), Manager: manager})
	return err
}

func (h host) Holds(ctx context.Context, uid id.Sandbox) (bool, error) {
	_, err := h.client.GetSandbox(ctx, &sandboxhostv1.GetSandboxRequest{Uid: string(uid)})
	if errors.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// ServiceNeighbours adapts the connections to both processes, for services.
func ServiceNeighbours(clusteraccess, sandboxhost grpc.ClientConnInterface) (ServiceRecords, ServiceHost) {
	return serviceRecords{clusteraccessv1.NewClusterAccessServiceClient(clusteraccess)},
		serviceHost{sandboxhostv1.NewServiceHostServiceClient(sandboxhost)}
}

type serviceRecords struct {
	client clusteraccessv1.ClusterAccessServiceClient
}

func (c serviceRecords) Watch(ctx context.Context, tell func(*clusteraccessv1.WatchResourcesResponse)) error {
	return watchKind(ctx, c.client, resourcev1.Kind_KIND_SERVICE, tell)
}

func (c serviceRecords) Get(ctx context.Context, uid string, at *resourcev1.Position) error {
	_, err := c.client.GetResource(ctx, &clusteraccessv1.GetResourceRequest{Kind: resourcev1.Kind_KIND_SERVICE, Uid: uid, Position: at})
	return err
}

type serviceHost struct {
	client sandboxhostv1.ServiceHostServiceClient
}

func (h serviceHost) Services(ctx context.Context) ([]*sandboxhostv1.ServiceWish, error) {
	var all []*sandboxhostv1.ServiceWish
	for token := ""; ; {
		page, err := h.client.ListServices(ctx, &sandboxhostv1.ListServicesRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, s := range page.GetServices() {
			if s.GetWish().GetManager() == manager {
				all = append(all, s.GetWish())
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}

func (h serviceHost) EnsureService(ctx context.Context, record *resourcev1.Resource, at *resourcev1.Position) error {
	meta := record.GetMeta()
	_, err := h.client.EnsureService(ctx, &sandboxhostv1.EnsureServiceRequest{
		Uid: meta.GetUid(), Name: meta.GetName(), Generation: meta.GetGeneration(), Manager: manager,
		Spec: record.GetService().GetSpec(), Address: record.GetService().GetPlacement().GetAddress(), Position: at,
	})
	return err
}

func (h serviceHost) RemoveService(ctx context.Context, uid string) error {
	_, err := h.client.RemoveService(ctx, &sandboxhostv1.RemoveServiceRequest{Uid: uid, Manager: manager})
	return err
}

// read tells every message of a stream until it ends.
func read[M any](stream grpc.ServerStreamingClient[M], err error, tell func(*M)) error {
	for err == nil {
		var msg *M
		if msg, err = stream.Recv(); err == nil {
			tell(msg)
		}
	}
	return err
}
