package service

import (
	"maps"
	"net/netip"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/balance"
	"staddle.internal/services/sandboxhost/internal/hostport"
	"staddle.internal/services/sandboxhost/internal/network"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// member is what services need to know of a sandbox.
type member struct {
	name   string
	labels map[string]string
	addr   netip.Addr // on the node's network; the zero Addr while it is not ready
}

func (m member) equal(other member) bool {
	return m.name == other.name && m.addr == other.addr && maps.Equal(m.labels, other.labels)
}

// memberOf reads a state: only what is ready has an address to be led to.
func (k *Keeper) memberOf(s *sandboxhostv1.SandboxState) member {
	m := member{name: s.GetName(), labels: s.GetLabels()}
	if s.GetRemoving() || !isReady(s.GetStatus()) {
		return m
	}
	for _, text := range s.GetStatus().GetAddresses() {
		if addr, err := netip.ParseAddr(text); err == nil && k.cfg.Subnet.Contains(addr) {
			m.addr = addr
		}
	}
	return m
}

// isReady says whether a sandbox runs and can do its work.
func isReady(s *resourcev1.SandboxStatus) bool {
	if s.GetPhase() != resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING {
		return false
	}
	for _, c := range s.GetConditions() {
		if c.GetType() == "Ready" {
			return c.GetState() == resourcev1.ConditionState_CONDITION_STATE_TRUE
		}
	}
	return false
}

// plan says what leads where, and who is behind any service.
func plan(wishes map[string]*sandboxhostv1.ServiceWish, members map[id.Sandbox]member) (map[balance.Front]balance.Service, map[id.Sandbox]bool) {
	fronts, all := map[balance.Front]balance.Service{}, map[id.Sandbox]bool{}
	for _, wish := range wishes {
		addr, err := netip.ParseAddr(wish.GetAddress())
		if err != nil {
			continue // a headless one
		}
		behind := behindOf(wish, members)
		for uid := range behind {
			all[uid] = true
		}
		for _, p := range wish.GetSpec().GetPorts() {
			s := balance.Service{Affinity: wish.GetSpec().GetAffinity().AsDuration()}
			for _, m := range behind {
				s.Backends = append(s.Backends, netip.AddrPortFrom(m.addr, target(p)))
			}
			fronts[balance.Front{Address: addr, Protocol: protocolOf(p), Port: uint16(p.GetPort())}] = s
			if p.GetNodePort() != 0 {
				at := nodePort(p)
				fronts[balance.Front{Node: true, Address: at.Address, Protocol: at.Protocol, Port: at.Host}] = s
			}
		}
	}
	return fronts, all
}

// nodePorts are the ports of the node that a service has.
func nodePorts(wish *sandboxhostv1.ServiceWish) []network.Port {
	var all []network.Port
	for _, p := range wish.GetSpec().GetPorts() {
		if p.GetNodePort() != 0 {
			all = append(all, nodePort(p))
		}
	}
	return all
}

func nodePort(p *resourcev1.ServicePort) network.Port {
	addr, _ := netip.ParseAddr(p.GetNodeAddress()) // "" is the zero Addr: all addresses
	return network.Port{Protocol: protocolOf(p), Host: uint16(p.GetNodePort()), Address: addr}
}

// behindOf are the ready sandboxes with all labels of a service.
func behindOf(wish *sandboxhostv1.ServiceWish, members map[id.Sandbox]member) map[id.Sandbox]member {
	behind := map[id.Sandbox]member{}
	for uid, m := range members {
		if m.addr.IsValid() && selects(wish.GetSpec().GetSelector(), m.labels) {
			behind[uid] = m
		}
	}
	return behind
}

// selects says whether there are all labels of a selector, of which an empty one has none.
func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if have, ok := labels[key]; !ok || have != value {
			return false
		}
	}
	return len(selector) > 0
}

func target(p *resourcev1.ServicePort) uint16 {
	if p.GetTargetPort() != 0 {
		return uint16(p.GetTargetPort())
	}
	return uint16(p.GetPort())
}

func protocolOf(p *resourcev1.ServicePort) string {
	if p.GetProtocol() == "" {
		return hostport.TCP
	}
	return p.GetProtocol()
}
