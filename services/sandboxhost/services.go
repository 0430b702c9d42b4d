package sandboxhost

import (
	"staddle.internal/kit/process"
	"staddle.internal/services/sandboxhost/internal/balance"
	"staddle.internal/services/sandboxhost/internal/engine/containerd"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/service"
)

// newServices keeps the services of the node. One without a network of its own has none.
func newServices(p *process.Process, notes *kept, h *host.Host, eng *containerd.Engine) *service.Keeper {
	network := p.Config.Network
	prefixes := network.ServicePrefixes
	if network.Disable {
		prefixes = nil
	}
	return service.New(
		service.Config{Prefixes: prefixes, Subnet: network.Subnet},
		service.Deps{
			Journal: notes, States: h.States(), Reflect: eng.Reflect, Ports: eng.Ports(), Log: p.Log,
			Balancer: balance.New(balance.Config{Bridge: network.Bridge, Gateway: network.Gateway(), Prefixes: prefixes, NoLocalNet: network.DisableLocalNet}, p.Log),
		})
}
