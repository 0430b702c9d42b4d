package command

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"staddle.internal/cli/internal/exit"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// publishPorts puts the ports of --publish into a spec.
func publishPorts(spec *resourcev1.SandboxSpec, texts []string) error {
	for _, text := range texts {
		p, ok := parsePublished(text)
		if !ok {
			return exit.BadUsage("--publish %q: write [ADDRESS:]HOSTPORT:PORT[/udp], like 8080:80 or 127.0.0.1:5353:53/udp", text)
		}
		spec.PublishedPorts = append(spec.PublishedPorts, p)
	}
	return nil
}

func parsePublished(text string) (*resourcev1.PublishedPort, bool) {
	ports, protocol, named := strings.Cut(text, "/")
	p := &resourcev1.PublishedPort{Protocol: resourcev1.PortProtocol_PORT_PROTOCOL_TCP}
	switch {
	case named && protocol == "udp":
		p.Protocol = resourcev1.PortProtocol_PORT_PROTOCOL_UDP
	case named && protocol != "tcp":
		return nil, false
	}
	parts := strings.Split(ports, ":")
	if len(parts) == 3 {
		addr, err := netip.ParseAddr(parts[0])
		if err != nil || !addr.Is4() {
			return nil, false
		}
		if !addr.IsUnspecified() { // 0.0.0.0 is every address, as people write it
			p.HostAddress = addr.String()
		}
		parts = parts[1:]
	}
	if len(parts) != 2 {
		return nil, false
	}
	host, err1 := strconv.ParseUint(parts[0], 10, 16)
	inside, err2 := strconv.ParseUint(parts[1], 10, 16)
	p.HostPort, p.Port = uint32(host), uint32(inside)
	return p, err1 == nil && err2 == nil && host > 0 && inside > 0
}

// portsOf are the published ports of a spec as people write them.
func portsOf(spec *resourcev1.SandboxSpec) string {
	all := make([]string, len(spec.GetPublishedPorts()))
	for i, p := range spec.GetPublishedPorts() {
		protocol := "tcp"
		if p.GetProtocol() == resourcev1.PortProtocol_PORT_PROTOCOL_UDP {
			protocol = "udp"
		}
		all[i] = fmt.Sprintf("%d:%d/%s", p.GetHostPort(), p.GetPort(), protocol)
		if p.GetHostAddress() != "" {
			all[i] = p.GetHostAddress() + ":" + all[i]
		}
	}
	return strings.Join(all, ",")
}
