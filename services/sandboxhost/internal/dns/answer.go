package dns

import (
	"encoding/hex"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

const (
	// ttl of what we tell: nobody remembers a sandbox that ended for longer.
	ttl = 5
	// negativeTTL is how long it is remembered that there is none.
	negativeTTL = 1
	// sandboxLabel stands between the name of a sandbox and the domain.
	sandboxLabel = "sandbox"
	// arpa is the domain of names of IPv4 addresses, arpa6 that of IPv6 ones (RFC 3596).
	arpa  = ".in-addr.arpa."
	arpa6 = ".ip6.arpa."
)

// Zone is the domain in which all sandboxes of a domain have their names, without a dot at
// the end: that of resolv.conf.
func Zone(domain string) string { return sandboxLabel + "." + domain }

// book says what we answer ourselves.
type book struct {
	domain  string         // canonical: lower case, a dot at the end
	subnets []netip.Prefix // of sandboxes
	names   *Names

	prefixes []netip.Prefix // of services
	services Services       // nil if there are none
}

// owns says whether we alone know about a canonical name.
func (b book) owns(name string) bool {
	if dns.IsSubDomain(b.domain, name) {
		return true
	}
	addr, ok := reversed(name)
	return ok && (b.ofSandboxes(addr) || b.ofServices(addr))
}

func (b book) ofSandboxes(addr netip.Addr) bool {
	return slices.ContainsFunc(b.subnets, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// answer answers a question about a name that we own. That a name is there and that it
// has what is asked for are two things: some resolvers give up for good when they hear
// that a name is not there.
func (b book) answer(q dns.Question) (code int, records []dns.RR) {
	name := dns.CanonicalName(q.Name)
	if addr, ok := reversed(name); ok && b.ofSandboxes(addr) {
		return b.pointer(q, addr)
	}
	if addr, ok := reversed(name); ok && b.ofServices(addr) {
		return b.servicePointer(q, addr)
	}
	below, ok := strings.CutSuffix(name, b.domain)
	below = strings.TrimSuffix(below, ".")
	if !ok {
		return dns.RcodeNameError, nil
	}
	if below == "" {
		if q.Qtype == dns.TypeSOA || q.Qtype == dns.TypeANY {
			return dns.RcodeSuccess, []dns.RR{b.authority()}
		}
		return dns.RcodeSuccess, nil
	}
	if below == sandboxLabel || below == serviceLabel {
		return dns.RcodeSuccess, nil
	}
	if of, ok := strings.CutSuffix(below, "."+serviceLabel); ok {
		return b.ofService(q, of)
	}
	host, ok := strings.CutSuffix(below, "."+sandboxLabel)
	if !ok {
		return dns.RcodeNameError, nil
	}
	addrs, known := b.names.addresses(host)
	if !known {
		return dns.RcodeNameError, nil
	}
	return dns.RcodeSuccess, addressRecords(q, addrs)
}

// addressRecords are those of the addresses that have the type that is asked for, in any
// order, so that many askers spread.
func addressRecords(q dns.Question, addrs []netip.Addr) []dns.RR {
	var records []dns.RR
	for _, addr := range addrs {
		header := dns.RR_Header{Name: q.Name, Class: dns.ClassINET, Ttl: ttl}
		switch {
		case addr.Is4() && (q.Qtype == dns.TypeA || q.Qtype == dns.TypeANY):
			header.Rrtype = dns.TypeA
			records = append(records, &dns.A{Hdr: header, A: addr.AsSlice()})
		case addr.Is6() && (q.Qtype == dns.TypeAAAA || q.Qtype == dns.TypeANY):
			header.Rrtype = dns.TypeAAAA
			records = append(records, &dns.AAAA{Hdr: header, AAAA: addr.AsSlice()})
		}
	}
	shuffle(records)
	return records
}

func shuffle(records []dns.RR) {
	rand.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
}

func (b book) pointer(q dns.Question, addr netip.Addr) (int, []dns.RR) {
	name := b.names.nameOf(addr)
	switch {
	case name == "":
		return dns.RcodeNameError, nil
	case q.Qtype != dns.TypePTR && q.Qtype != dns.TypeANY:
		return dns.RcodeSuccess, nil
	}
	header := dns.RR_Header{Name: q.Name, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: ttl}
	return dns.RcodeSuccess, []dns.RR{&dns.PTR{Hdr: header, Ptr: name + "." + sandboxLabel + "." + b.domain}}
}

// authority says for how long it may be remembered that something is not there.
func (b book) authority() dns.RR {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: b.domain, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: negativeTTL},
		Ns:  "ns." + b.domain, Mbox: "hostmaster." + b.domain,
		Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: negativeTTL,
	}
}

// reversed reads the address out of a canonical name like 4.3.2.1.in-addr.arpa or, with 32
// hexadecimal digits, 2.0.….d.f.ip6.arpa.
func reversed(name string) (netip.Addr, bool) {
	if text, ok := strings.CutSuffix(name, arpa6); ok {
		return reversed6(text)
	}
	text, ok := strings.CutSuffix(name, arpa)
	if !ok {
		return netip.Addr{}, false
	}
	parts := strings.Split(text, ".")
	var bytes [4]byte
	if len(parts) != len(bytes) {
		return netip.Addr{}, false
	}
	slices.Reverse(parts)
	for i, part := range parts {
		b, err := strconv.ParseUint(part, 10, 8)
		if err != nil || strconv.FormatUint(b, 10) != part {
			return netip.Addr{}, false
		}
		bytes[i] = byte(b)
	}
	return netip.AddrFrom4(bytes), true
}

func reversed6(text string) (netip.Addr, bool) {
	digits := strings.Split(text, ".")
	slices.Reverse(digits)
	raw, err := hex.DecodeString(strings.Join(digits, ""))
	if err != nil || slices.ContainsFunc(digits, func(d string) bool { return len(d) != 1 }) || len(raw) != net.IPv6len {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(raw)
}
