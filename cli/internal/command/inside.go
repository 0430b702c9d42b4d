package command

import (
	"context"
	"errors"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

// withInside runs fn with a sandbox and the door of its node: its socket if it is this
// machine and lets the caller in, else its gateway, which the coordinator knows.
func (a *app) withInside(ctx context.Context, ref string, fn func(context.Context, *target.Inside, *sandbox.Sandbox) error) (err error) {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	host, err := settings.Node(ctx)
	if err == nil {
		defer func() { err = errors.Join(err, host.Close()) }()
		s, findErr := host.Find(ctx, ref)
		if findErr == nil {
			return fn(ctx, host.Inside(), &s)
		}
		err = findErr
	}
	if settings.Direct {
		return err
	}
	cluster, clusterErr := settings.Cluster(ctx)
	if clusterErr != nil {
		if fault.KindOf(err) == fault.NotFound {
			return err // the node's answer; the coordinator could only have said where else it is
		}
		return clusterErr
	}
	inside, s, err := insideAfar(ctx, settings, cluster, ref)
	if err = errors.Join(err, cluster.Close()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inside.Close()) }()
	return fn(ctx, inside, s)
}

// insideAfar finds a sandbox in the cluster, and reaches its node.
func insideAfar(ctx context.Context, settings *target.Settings, cluster *target.Cluster, ref string) (*target.Inside, *sandbox.Sandbox, error) {
	s, err := cluster.Find(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	if s.Node == "" {
		return nil, nil, fault.WithReason(fault.New(fault.Conflict, "sandbox %s does not run: it has no node yet: %s", s.Name, stateOf(&s)), "NOT_RUNNING")
	}
	node, err := cluster.Lookup(ctx, resourcev1.Kind_KIND_NODE, s.Node)
	if err != nil {
		return nil, nil, err
	}
	inside, err := settings.Inside(ctx, node)
	return inside, &s, err
}
