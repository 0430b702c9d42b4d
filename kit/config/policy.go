package config

import (
	"fmt"
	"strconv"
	"strings"
)

// maxNodePorts bounds the rules that every packet to the node is compared with.
const maxNodePorts = 64

// PortRange is some ports of one protocol.
type PortRange struct {
	// Protocol is tcp or udp.
	Protocol string
	// First and Last port, at least 1.
	First, Last uint16
}

// NodePorts are the ports of AllowNodePorts. What is no port is left out.
func (n Network) NodePorts() []PortRange {
	var all []PortRange
	for _, text := range n.AllowNodePorts {
		if r, ok := parsePorts(text); ok {
			all = append(all, r)
		}
	}
	return all
}

// parsePorts reads PROTOCOL/PORT or PROTOCOL/FIRST-LAST.
func parsePorts(text string) (PortRange, bool) {
	protocol, ports, ok := strings.Cut(text, "/")
	if !ok || protocol != "tcp" && protocol != "udp" {
		return PortRange{}, false
	}
	from, to, isRange := strings.Cut(ports, "-")
	if !isRange {
		to = from
	}
	first, ok1 := parsePort(from)
	last, ok2 := parsePort(to)
	return PortRange{Protocol: protocol, First: first, Last: last}, ok1 && ok2 && first <= last
}

func parsePort(text string) (uint16, bool) {
	if strings.Trim(text, "0123456789") != "" { // a sign is no digit
		return 0, false
	}
	port, err := strconv.ParseUint(text, 10, 16)
	return uint16(port), err == nil && port != 0
}

func (c *checks) nodePorts(n Network) {
	all := n.AllowNodePorts
	c.must(len(all) <= maxNodePorts, "network.allow_node_ports", fmt.Sprintf("%d entries are too many", len(all)), fmt.Sprintf("write at most %d; ranges help", maxNodePorts))
	for i, text := range all {
		_, ok := parsePorts(text)
		c.must(ok, fmt.Sprintf("network.allow_node_ports[%d]", i), fmt.Sprintf("%q is no port of the node", text), "write one like tcp/8080 or udp/5000-5010")
	}
}
