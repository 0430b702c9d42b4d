package network

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

// Traffic is what went through the network of a sandbox, as the sandbox sees it.
type Traffic struct {
	// Received and Sent are bytes.
	Received, Sent uint64
	// ReceivedPackets and SentPackets are packets that arrived.
	ReceivedPackets, SentPackets uint64
	// Dropped are packets that did not, in either direction.
	Dropped uint64
}

// Traffic counts at the host's end of the interface of a sandbox: nothing of its network
// is entered or kept open. It returns fault.NotFound where there is none.
func (n *Network) Traffic(uid id.Sandbox) (Traffic, error) {
	link, err := netlink.LinkByName(hostInterface(uid))
	if isGone(err) {
		return Traffic{}, fault.New(fault.NotFound, "count traffic: sandbox %s has no interface", uid)
	}
	if err != nil {
		return Traffic{}, fmt.Errorf("count traffic of sandbox %s: %w", uid, err)
	}
	s := link.Attrs().Statistics
	if s == nil {
		return Traffic{}, fault.New(fault.NotFound, "count traffic: the kernel does not count that of sandbox %s", uid)
	}
	// What one end receives, the other has sent.
	return Traffic{
		Received: s.TxBytes, Sent: s.RxBytes, ReceivedPackets: s.TxPackets, SentPackets: s.RxPackets, Dropped: s.TxDropped + s.RxDropped,
	}, nil
}
