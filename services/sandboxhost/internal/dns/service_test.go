package dns

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// known is the services of a test.
type known []Service

func (k known) Named(name string) (Service, bool) {
	for _, s := range k {
		if s.Name == name {
			return s, true
		}
	}
	return Service{}, false
}

func (k known) At(addr netip.Addr) (string, bool) {
	for _, s := range k {
		if s.Address == addr {
			return s.Name, true
		}
	}
	return "", false
}

func TestBook_AnswersForServices(t *testing.T) {
	b := book{
		domain: "staddle.internal.", subnets: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")}, names: NewNames(),
		prefixes: []netip.Prefix{netip.MustParsePrefix("10.78.0.0/16")},
		services: known{{Name: "web", Address: netip.MustParseAddr("10.78.0.1"), Ports: []ServicePort{{Name: "http", Protocol: "tcp", Port: 80}, {Protocol: "udp", Port: 53}}}},
	}
	for _, tt := range []struct {
		name  string
		kind  uint16
		owned bool
		code  int
		want  string // end of the one record, "" for none
	}{
		{"web.service.staddle.internal.", dns.TypeA, true, dns.RcodeSuccess, "A\t10.78.0.1"},
		{"Web.Service.Staddle.Internal.", dns.TypeA, true, dns.RcodeSuccess, "A\t10.78.0.1"},
		{"web.service.staddle.internal.", dns.TypeAAAA, true, dns.RcodeSuccess, ""},
		{"service.staddle.internal.", dns.TypeA, true, dns.RcodeSuccess, ""},
		{"db.service.staddle.internal.", dns.TypeA, true, dns.RcodeNameError, ""},
		{"web.sandbox.staddle.internal.", dns.TypeA, true, dns.RcodeNameError, ""},
		{"_http._tcp.web.service.staddle.internal.", dns.TypeSRV, true, dns.RcodeSuccess, "SRV\t0 0 80 web.service.staddle.internal."},
		{"_http._tcp.web.service.staddle.internal.", dns.TypeA, true, dns.RcodeSuccess, ""},
		{"_http._udp.web.service.staddle.internal.", dns.TypeSRV, true, dns.RcodeNameError, ""},
		{"_._udp.web.service.staddle.internal.", dns.TypeSRV, true, dns.RcodeNameError, ""},
		{"_tcp.web.service.staddle.internal.", dns.TypeSRV, true, dns.RcodeNameError, ""},
		{"1.0.78.10.in-addr.arpa.", dns.TypePTR, true, dns.RcodeSuccess, "PTR\tweb.service.staddle.internal."},
		{"2.0.78.10.in-addr.arpa.", dns.TypePTR, true, dns.RcodeNameError, ""},
		{"1.0.79.10.in-addr.arpa.", dns.TypePTR, false, 0, ""},
	} {
		if owns := b.owns(dns.CanonicalName(tt.name)); owns != tt.owned {
			t.Errorf("%s: owned %t, want %t", tt.name, owns, tt.owned)
		}
		if !tt.owned {
			continue
		}
		code, records := b.answer(dns.Question{Name: tt.name, Qtype: tt.kind, Qclass: dns.ClassINET})
		ok := len(records) == 0
		if tt.want != "" {
			ok = len(records) == 1 && strings.HasSuffix(records[0].String(), tt.want)
		}
		if code != tt.code || !ok {
			t.Errorf("%s %s: got code %d, %v, want %d, %q", tt.name, dns.TypeToString[tt.kind], code, records, tt.code, tt.want)
		}
	}
	if b.services = nil; b.owns("1.0.78.10.in-addr.arpa.") {
		t.Error("a node without services owns their addresses")
	}
}

// A service without an address is where its ready sandboxes are: all of them, each with
// its own name as place of a port, and nobody while none is ready.
func TestBook_AnswersForHeadlessServices(t *testing.T) {
	one, two := Sandbox{"One", netip.MustParseAddr("10.77.0.2")}, Sandbox{"two", netip.MustParseAddr("10.77.0.3")}
	ports := []ServicePort{{Name: "http", Protocol: "tcp", Port: 8080}}
	b := book{
		domain: "staddle.internal.", subnets: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")}, names: NewNames(),
		services: known{{Name: "pool", Ready: []Sandbox{one, two}, Ports: ports}, {Name: "idle", Ports: ports}},
	}
	for _, tt := range []struct {
		name string
		kind uint16
		want []string // ends of the records, sorted
	}{
		{"pool.service.staddle.internal.", dns.TypeA, []string{"A\t10.77.0.2", "A\t10.77.0.3"}},
		{"pool.service.staddle.internal.", dns.TypeAAAA, nil},
		{"_http._tcp.pool.service.staddle.internal.", dns.TypeSRV, []string{
			"SRV\t0 0 8080 one.sandbox.staddle.internal.", "SRV\t0 0 8080 two.sandbox.staddle.internal.",
		}},
		{"idle.service.staddle.internal.", dns.TypeA, nil},
		{"_http._tcp.idle.service.staddle.internal.", dns.TypeSRV, nil},
	} {
		code, records := b.answer(dns.Question{Name: tt.name, Qtype: tt.kind, Qclass: dns.ClassINET})
		var got []string
		for _, r := range records {
			got = append(got, r.String())
		}
		slices.Sort(got)
		ok := code == dns.RcodeSuccess && len(got) == len(tt.want)
		for i := range min(len(got), len(tt.want)) {
			ok = ok && strings.HasSuffix(got[i], tt.want[i])
		}
		if !ok {
			t.Errorf("%s %s: got code %d, %v, want %v", tt.name, dns.TypeToString[tt.kind], code, got, tt.want)
		}
	}
}
