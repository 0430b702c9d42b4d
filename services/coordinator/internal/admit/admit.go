// Package admit owns who is let in to the coordinator's services beyond the role of
// their certificate: no node that was removed, and none while another machine has
// its session.
//
// It looks at the mirror alone. It must never decide about one record, which rights
// does. In the trail it is what every request meets first.
package admit

import (
	"context"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"

	"staddle.internal/services/coordinator/internal/mirror"
	"staddle.internal/services/coordinator/internal/rights"
)

// Door lets callers in.
type Door struct {
	// TrustDomain is the domain of all identities.
	TrustDomain string
	// Mirror knows sessions and removed nodes.
	Mirror *mirror.Mirror
}

// Caller reads who calls and refuses nodes that were removed.
func (d Door) Caller(ctx context.Context) (rights.Caller, error) {
	c, err := rights.CallerOf(rpc.Caller(ctx), d.TrustDomain)
	if err == nil && c.Node() != "" && d.Mirror.Removed(c.Node()) {
		return c, fault.WithReason(fault.New(fault.Denied, "serve node %s: it was removed", c.Node()), "NODE_REMOVED")
	}
	return c, err
}

// OneMachine refuses a node while another machine has its session: a copy of its
// identity must not get the node's records, and so not run its sandboxes twice.
func (d Door) OneMachine(c rights.Caller, instance string) error {
	open := d.Mirror.Session(c.Node())
	if c.Node() == "" || open.ID == 0 || open.Instance == instance {
		return nil
	}
	return fault.WithReason(fault.New(fault.Denied,
		"serve node %s: another machine, or an earlier boot, has its session for up to %s more", c.Node(), open.TTL()), "DUPLICATE_NODE")
}
