package sandboxhost

import (
	"context"
	"net/netip"

	"staddle.internal/kit/logging"
	"staddle.internal/kit/process"
	"staddle.internal/services/sandboxhost/internal/dns"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/hostport"
)

// portOfNames is where name servers listen.
const portOfNames = 53

// runNames answers for the names of sandboxes, from before they are adopted on.
func runNames(p *process.Process, h *host.Host, names *dns.Names, services dns.Services) func(ctx context.Context, ready func()) error {
	network := p.Config.Network
	if network.Disable || network.DNS.Disable {
		return func(ctx context.Context, ready func()) error {
			ready()
			<-ctx.Done()
			return context.Cause(ctx)
		}
	}
	return dns.New(
		dns.Config{
			Address: netip.AddrPortFrom(network.Gateway(), portOfNames), Subnet: network.Subnet, Subnet6: network.Subnet6,
			Prefixes: network.ServicePrefixes,
			Domain:   network.DNS.Domain, Upstreams: network.DNS.Servers(),
		},
		dns.Deps{
			Log: p.Log, Names: names, Services: services, States: h.States(),
			NotReady: func(reason string) {
				if reason == "" {
					p.Status.Unblock(sourceNames)
					return
				}
				p.Status.Block(sourceNames, reason)
			},
			Owner: func(network string, at netip.AddrPort) string {
				owner, err := hostport.Owner(network, at)
				if err != nil {
					p.Log.Debug("owner of a port not found", logging.Err(err))
				}
				return owner
			},
		}).Run
}
