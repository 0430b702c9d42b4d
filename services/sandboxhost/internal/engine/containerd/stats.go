package containerd

import (
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/cgroup"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Meter opens the control group of all workloads, or below it that of a sandbox or a
// container. It returns cgroup.ErrGone where there is none, and fault.Unavailable before
// the engine is connected. The caller closes it.
func (e *Engine) Meter(names ...string) (*cgroup.Meter, error) {
	groups := e.groups()
	if groups == nil {
		return nil, fault.New(fault.Unavailable, "open control group: the engine is not connected yet")
	}
	return groups.Meter(e.group(names...))
}

// Traffic counts what went through the network of a sandbox, as the sandbox sees it. It
// returns fault.NotFound for one without a network of its own.
func (e *Engine) Traffic(uid id.Sandbox) (*sandboxhostv1.NetworkUsage, error) {
	t, err := e.network.Traffic(uid)
	if err != nil {
		return nil, err
	}
	return &sandboxhostv1.NetworkUsage{
		ReceivedBytes: t.Received, SentBytes: t.Sent,
		ReceivedPackets: t.ReceivedPackets, SentPackets: t.SentPackets, DroppedPackets: t.Dropped,
	}, nil
}
