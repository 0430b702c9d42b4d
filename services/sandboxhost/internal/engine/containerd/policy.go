package containerd

import (
	"staddle.internal/kit/config"
	"staddle.internal/services/sandboxhost/internal/network"
)

// policyOf is what the configuration says that sandboxes reach of the node.
func policyOf(n config.Network) network.Policy {
	p := network.Policy{Metadata: n.AllowMetadata, AnyResolver: n.DNS.Disable}
	p.Ports = rangesOf(n.NodePorts())
	for _, r := range n.GroupRules {
		p.Groups = append(p.Groups, network.GroupRule{From: r.From, To: r.To, Ports: rangesOf(r.PortRanges())})
	}
	return p
}

func rangesOf(ports []config.PortRange) (all []network.PortRange) {
	for _, r := range ports {
		all = append(all, network.PortRange(r))
	}
	return all
}
