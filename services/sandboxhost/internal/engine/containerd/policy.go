package containerd

import (
	"staddle.internal/kit/config"
	"staddle.internal/services/sandboxhost/internal/network"
)

// policyOf is what the configuration says that sandboxes reach of the node.
func policyOf(n config.Network) network.Policy {
	p := network.Policy{Metadata: n.AllowMetadata, AnyResolver: n.DNS.Disable}
	for _, r := range n.NodePorts() {
		p.Ports = append(p.Ports, network.NodePorts{Protocol: r.Protocol, First: r.First, Last: r.Last})
	}
	return p
}
