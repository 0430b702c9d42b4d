package target

import (
	"context"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/sandbox"
)

// Services returns all services of the node.
func (n *Node) Services(ctx context.Context) ([]*sandboxhostv1.ServiceState, error) {
	var all []*sandboxhostv1.ServiceState
	for token := ""; ; {
		page, err := n.services.ListServices(ctx, &sandboxhostv1.ListServicesRequest{PageSize: pageSize, PageToken: token})
		if err != nil {
			return nil, wrap(err, "list services")
		}
		all = append(all, page.GetServices()...)
		if token = page.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}

// CreateService makes the node keep a new service; an empty address is any that is free.
func (n *Node) CreateService(ctx context.Context, name, address string, spec *resourcev1.ServiceSpec) (*sandboxhostv1.ServiceState, error) {
	resp, err := n.services.EnsureService(ctx, &sandboxhostv1.EnsureServiceRequest{
		Uid: id.New(), Name: name, Generation: 1, Manager: sandbox.Local, Spec: spec, Address: address,
	})
	if fault.Reason(err) == "NAME_TAKEN" {
		return nil, exit.Try(wrap(err, "create service %s", name), "another name, or staddle service rm %s", name)
	}
	if err != nil {
		return nil, wrap(err, "create service %s", name)
	}
	return resp.GetService(), nil
}

// RemoveService ends the service of a name or a uid, one of the cluster only if it is lost
// to it, and returns its name.
func (n *Node) RemoveService(ctx context.Context, ref string, lost bool) (string, error) {
	all, err := n.Services(ctx)
	if err != nil {
		return "", err
	}
	for _, s := range all {
		w := s.GetWish()
		if w.GetName() != ref && w.GetUid() != ref {
			continue
		}
		if w.GetManager() != sandbox.Local && !lost {
			return "", exit.Try(fault.New(fault.Denied, "remove service %s: it belongs to the cluster", w.GetName()),
				"staddle delete service %s; or the same command with --lost, if the cluster has lost its record", w.GetName())
		}
		_, err := n.services.RemoveService(ctx, &sandboxhostv1.RemoveServiceRequest{Uid: w.GetUid(), Manager: w.GetManager(), Lost: lost})
		if err != nil {
			return "", wrap(err, "remove service %s", ref)
		}
		return w.GetName(), nil
	}
	return "", exit.Try(fault.New(fault.NotFound, "remove service %s: there is none", ref), "staddle service ls")
}
