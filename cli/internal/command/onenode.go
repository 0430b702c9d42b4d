package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/target"
)

// node is one node as a command works with it: its record at the coordinator, and the
// node itself.
type node struct {
	name string
	// record is nil where no coordinator was asked, or none answered.
	record  *resourcev1.Resource
	cluster *target.Cluster
	// presence is nil where the node was not reached, for the reason unreached.
	presence  *target.Presence
	unreached error
}

// close ends its connections.
func (n *node) close() error {
	var errs []error
	if n.presence != nil {
		errs = append(errs, n.presence.Close())
	}
	if n.cluster != nil {
		errs = append(errs, n.cluster.Close())
	}
	return errors.Join(errs...)
}

// setCordoned changes what the record says, if there is one.
func (n *node) setCordoned(ctx context.Context, cordoned bool) (err error) {
	if n.record == nil {
		return nil
	}
	n.record, err = n.cluster.UpdateRecord(ctx, n.record, func(r *resourcev1.Resource) error {
		if r.GetNode().GetSpec() == nil {
			r.GetNode().Spec = &resourcev1.NodeSpec{}
		}
		r.GetNode().Spec.Cordoned = cordoned
		return nil
	})
	return err
}

// withOneNode runs fn with the node that was named: by --node-socket, by the address of its
// gateway, or by its name or uid. Only in the last case is the coordinator asked; while
// it is away, a node on this machine is worked with alone.
func (a *app) withOneNode(ctx context.Context, given []string, address string, fn func(context.Context, *node) error) (err error) {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	n := &node{}
	defer func() { err = errors.Join(err, n.close()) }()
	switch {
	case settings.Direct && address != "":
		return exit.BadUsage("--node-socket says where the node is, and --address too: leave one out")
	case settings.Direct:
		if n.presence, err = settings.Presence(ctx); err != nil {
			return err
		}
	case address != "":
		n.name = given[0]
		if n.presence, err = settings.Gateway(ctx, n.name, address); err != nil {
			return err
		}
	default:
		if err := a.find(ctx, settings, n, given[0]); err != nil {
			return err
		}
	}
	return fn(ctx, n)
}

// find looks a node up at the coordinator and reaches it. A failure to reach it is for
// the command: it may have enough in the record.
func (a *app) find(ctx context.Context, settings *target.Settings, n *node, ref string) (err error) {
	n.name = ref
	if n.cluster, err = settings.Cluster(ctx); err == nil {
		n.record, err = n.cluster.Lookup(ctx, resourcev1.Kind_KIND_NODE, ref)
	}
	if err != nil {
		if fault.KindOf(err) != fault.Unavailable {
			return err
		}
		here, hereErr := presenceHere(ctx, settings, ref, "")
		if here == nil || hereErr != nil {
			return exit.Try(fault.New(fault.Unavailable, "find node %s: %v", ref, err), "%s; or name the node's gateway with --address", exit.Hint(err))
		}
		a.note("the node alone is asked: %v", err)
		n.presence = here
		return nil
	}
	n.name = n.record.GetMeta().GetName()
	n.presence, n.unreached = presenceOf(ctx, settings, n.record)
	return nil
}

// lookupNode asks the coordinator for the record of one node.
func lookupNode(ctx context.Context, settings *target.Settings, ref string) (r *resourcev1.Resource, err error) {
	c, err := settings.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return c.Lookup(ctx, resourcev1.Kind_KIND_NODE, ref)
}

// gatewayOf is the name of a node and where its gateway is.
func gatewayOf(r *resourcev1.Resource) (name, address string, err error) {
	address, err = target.GatewayOf(r)
	return r.GetMeta().GetName(), address, err
}

// presenceOf reaches a node by its record: on the socket of this machine if it is here,
// and else through its gateway, which a node that is here may have as well.
func presenceOf(ctx context.Context, settings *target.Settings, r *resourcev1.Resource) (*target.Presence, error) {
	here, hereErr := presenceHere(ctx, settings, r.GetMeta().GetName(), r.GetMeta().GetUid())
	if here != nil && hereErr == nil {
		return here, nil
	}
	name, address, err := gatewayOf(r)
	if err == nil {
		var p *target.Presence
		if p, err = settings.Gateway(ctx, name, address); err == nil {
			return p, nil
		}
	}
	if hereErr != nil {
		return nil, hereErr // it is on this machine: its own answer says more
	}
	if since := r.GetNode().GetPlacement().GetLostSince(); since != nil {
		return nil, exit.Try(fmt.Errorf("%w; it has had no session since %s", err, since.AsTime().Local().Format(time.DateTime)), "%s", exit.Hint(err))
	}
	return nil, err
}

// askHere bounds the question to a socket of this machine which node it is.
const askHere = 5 * time.Second

// presenceHere reaches a node that is on this machine. It returns nil without an error
// if another node is, or none. A name is not enough where the uid is known: two clusters
// may use the same.
func presenceHere(ctx context.Context, settings *target.Settings, name, uid string) (*target.Presence, error) {
	if here, err := config.LoadNode(settings.Paths.NodeFile()); err != nil || here.Name != name {
		return nil, nil //nolint:nilerr // a machine without a readable file has no node that this is about
	}
	ctx, cancel := context.WithTimeout(ctx, askHere)
	defer cancel()
	p, err := settings.Presence(ctx)
	if err != nil {
		return nil, err
	}
	now, err := p.Get(ctx)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if uid != "" && now.GetNodeUid() != "" && now.GetNodeUid() != uid {
		return nil, p.Close()
	}
	return p, nil
}
