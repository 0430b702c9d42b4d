package probe

import (
	"fmt"
	"slices"
	"strings"

	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// maxNamed is how many other ports an explanation names.
const maxNamed = 5

// Explain says in one sentence what is wrong with the ports that should be open,
// empty if nothing is: bound to loopback only, another port than declared, or
// nothing at all.
func Explain(ports []*resourcev1.ContainerPort, listeners []engine.Listener) string {
	var parts []string
	for _, p := range ports {
		if why := explainOne(p, listeners); why != "" {
			parts = append(parts, why)
		}
	}
	return strings.Join(parts, "; ")
}

func explainOne(p *resourcev1.ContainerPort, listeners []engine.Listener) string {
	udp := p.GetProtocol() == resourcev1.PortProtocol_PORT_PROTOCOL_UDP
	name := portName(p.GetPort(), udp)
	var loopback, others []string
	for _, l := range listeners {
		switch {
		case l.UDP != udp:
		case uint32(l.Address.Port()) != p.GetPort():
			others = append(others, portName(uint32(l.Address.Port()), udp))
		case !l.Address.Addr().IsLoopback():
			return ""
		default:
			loopback = append(loopback, l.Address.Addr().String())
		}
	}
	slices.Sort(others)
	others = slices.Compact(others)
	switch {
	case len(loopback) > 0:
		return fmt.Sprintf("port %s is bound to %s only, where nobody outside reaches it; listen on 0.0.0.0", name, loopback[0])
	case len(others) > maxNamed:
		return fmt.Sprintf("nothing listens on port %s, but on %s and %d more; is it the right port?", name, strings.Join(others[:maxNamed], ", "), len(others)-maxNamed)
	case len(others) > 0:
		return fmt.Sprintf("nothing listens on port %s, but on %s; is it the right port?", name, strings.Join(others, ", "))
	}
	return fmt.Sprintf("nothing listens on port %s, nor on any other", name)
}

func portName(port uint32, udp bool) string {
	if udp {
		return fmt.Sprintf("%d/udp", port)
	}
	return fmt.Sprintf("%d/tcp", port)
}
