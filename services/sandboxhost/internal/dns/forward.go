package dns

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"time"

	"github.com/miekg/dns"
)

const (
	// upstreamLimit bounds one question to one server, forwardLimit all of them: stub
	// resolvers ask again after 5 s.
	upstreamLimit = 2 * time.Second
	forwardLimit  = 4500 * time.Millisecond
	// maxServers is how many servers of a file are asked.
	maxServers = 6
	// maxFile bounds how much of a file is read.
	maxFile = 64 << 10
	// port is that of name servers.
	port = 53
)

// Files say which servers a node uses. Where the first names only a stub on the node's
// loopback, the others have what the stub asks: systemd's and NetworkManager's.
var Files = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf", "/run/NetworkManager/no-stub-resolv.conf"}

// Host is what a node's own resolver is told.
type Host struct {
	// Servers that are not on its loopback, at most 6.
	Servers []netip.AddrPort
	// Search is its list of domains.
	Search []string
}

// ReadHost reads the first of the files that names a server which is not on loopback, and
// not one of the node that would ask us. What cannot be read says nothing.
func ReadHost(files []string, not netip.Addr) Host {
	var first *Host
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		host := parseHost(raw[:min(len(raw), maxFile)], not)
		if len(host.Servers) > 0 {
			return host
		}
		if first == nil {
			first = &host
		}
	}
	if first == nil {
		return Host{}
	}
	return *first
}

func parseHost(raw []byte, not netip.Addr) Host {
	conf, err := dns.ClientConfigFromReader(bytes.NewReader(raw))
	if err != nil {
		return Host{}
	}
	host := Host{Search: conf.Search}
	for _, text := range conf.Servers {
		addr, err := netip.ParseAddr(text)
		addr = addr.Unmap()
		if err != nil || addr.IsLoopback() || addr.IsUnspecified() || addr == not || len(host.Servers) == maxServers {
			continue
		}
		host.Servers = append(host.Servers, netip.AddrPortFrom(addr, port))
	}
	return host
}

// forward asks the servers, one after the other, until one has an answer. nil if none had.
func forward(ctx context.Context, servers []netip.AddrPort, network string, asked *dns.Msg) *dns.Msg {
	ctx, cancel := context.WithTimeout(ctx, forwardLimit)
	defer cancel()
	question := asked.Copy()
	var last *dns.Msg
	for _, server := range servers {
		question.Id = dns.Id()
		client := &dns.Client{Net: network, Timeout: upstreamLimit}
		reply, _, err := client.ExchangeContext(ctx, question, server.String())
		if err != nil || len(reply.Question) != 1 || reply.Question[0] != question.Question[0] {
			continue // this one is away, or was not the one to answer
		}
		reply.Id = asked.Id
		if reply.Rcode != dns.RcodeServerFailure && reply.Rcode != dns.RcodeRefused {
			return reply
		}
		last = reply
	}
	return last
}
