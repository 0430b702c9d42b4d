package service

import (
	"net/netip"

	"staddle.internal/services/sandboxhost/internal/dns"
)

// Named finds a service by its name.
func (k *Keeper) Named(name string) (dns.Service, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.wishes {
		if w.GetName() != name {
			continue
		}
		s := dns.Service{Name: name}
		s.Address, _ = netip.ParseAddr(w.GetAddress()) // a headless one has none
		if w.GetSpec().GetHeadless() {
			for _, m := range behindOf(w, k.members) {
				s.Ready = append(s.Ready, dns.Sandbox{Name: m.name, Address: m.addr})
			}
		}
		for _, p := range w.GetSpec().GetPorts() {
			s.Ports = append(s.Ports, dns.ServicePort{Name: p.GetName(), Protocol: protocolOf(p), Port: uint16(p.GetPort())})
		}
		return s, true
	}
	return dns.Service{}, false
}

// At finds the name of the service with an address.
func (k *Keeper) At(addr netip.Addr) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.wishes {
		if w.GetAddress() == addr.String() {
			return w.GetName(), true
		}
	}
	return "", false
}
