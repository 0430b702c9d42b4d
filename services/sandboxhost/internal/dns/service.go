package dns

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// serviceLabel stands between the name of a service and the domain.
const serviceLabel = "service"

// Service is what names tell of a service.
type Service struct {
	// Name of it.
	Name string
	// Address is the virtual one. The zero Addr means that there is none, and that Ready
	// is told in its place.
	Address netip.Addr
	// Ready are the ready sandboxes of a service without an address.
	Ready []Sandbox
	// Ports of it.
	Ports []ServicePort
}

// Sandbox is one that is behind a service.
type Sandbox struct {
	// Name of it.
	Name string
	// Address of it.
	Address netip.Addr
}

// addresses are those that its name leads to.
func (s Service) addresses() []netip.Addr {
	if s.Address.IsValid() {
		return []netip.Addr{s.Address}
	}
	var all []netip.Addr
	for _, one := range s.Ready {
		all = append(all, one.Address)
	}
	return all
}

// ServicePort is a port of a service.
type ServicePort struct {
	// Name of it; may be empty.
	Name string
	// Protocol is "tcp" or "udp".
	Protocol string
	// Port of the virtual address, or of the sandboxes.
	Port uint16
}

// Services knows the services of the node.
type Services interface {
	// Named finds a service by its name.
	Named(name string) (Service, bool)
	// At finds the name of the service with an address.
	At(addr netip.Addr) (string, bool)
}

func (b book) ofServices(addr netip.Addr) bool {
	return b.services != nil && slices.ContainsFunc(b.prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// ofService answers for NAME, and for _PORT._PROTOCOL.NAME of a port with a name (RFC 2782).
func (b book) ofService(q dns.Question, below string) (int, []dns.RR) {
	if b.services == nil {
		return dns.RcodeNameError, nil
	}
	labels := strings.Split(below, ".")
	s, ok := b.services.Named(labels[len(labels)-1])
	switch {
	case !ok:
		return dns.RcodeNameError, nil
	case len(labels) == 1:
		return dns.RcodeSuccess, addressRecords(q, s.addresses())
	case len(labels) != 3:
		return dns.RcodeNameError, nil
	}
	for _, p := range s.Ports {
		if p.Name == "" || labels[0] != "_"+p.Name || labels[1] != "_"+p.Protocol {
			continue
		}
		if q.Qtype != dns.TypeSRV && q.Qtype != dns.TypeANY {
			return dns.RcodeSuccess, nil
		}
		return dns.RcodeSuccess, b.portRecords(q, s, p.Port)
	}
	return dns.RcodeNameError, nil
}

// portRecords say where a port of a service is: at its name, or at those of its sandboxes,
// in any order.
func (b book) portRecords(q dns.Question, s Service, port uint16) []dns.RR {
	header := dns.RR_Header{Name: q.Name, Rrtype: dns.TypeSRV, Class: dns.ClassINET, Ttl: ttl}
	if s.Address.IsValid() {
		return []dns.RR{&dns.SRV{Hdr: header, Port: port, Target: b.serviceName(s.Name)}}
	}
	var records []dns.RR
	for _, one := range s.Ready {
		records = append(records, &dns.SRV{Hdr: header, Port: port, Target: strings.ToLower(one.Name) + "." + sandboxLabel + "." + b.domain})
	}
	shuffle(records)
	return records
}

func (b book) serviceName(name string) string { return name + "." + serviceLabel + "." + b.domain }

func (b book) servicePointer(q dns.Question, addr netip.Addr) (int, []dns.RR) {
	name, ok := b.services.At(addr)
	switch {
	case !ok:
		return dns.RcodeNameError, nil
	case q.Qtype != dns.TypePTR && q.Qtype != dns.TypeANY:
		return dns.RcodeSuccess, nil
	}
	header := dns.RR_Header{Name: q.Name, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: ttl}
	return dns.RcodeSuccess, []dns.RR{&dns.PTR{Hdr: header, Ptr: b.serviceName(name)}}
}
