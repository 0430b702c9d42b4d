package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// maxNodePorts bounds the rules that every packet to the node is compared with.
const maxNodePorts = 64

// Bounds of the rules that the first packet of a connection between sandboxes is compared with.
const maxGroupRules, maxGroupPorts = 64, 16

// AnyGroup stands for every network group.
const AnyGroup = "*"

// networkGroup is what SandboxSpec.network_group allows.
var networkGroup = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// PortRange is some ports of one protocol.
type PortRange struct {
	// Protocol is tcp or udp.
	Protocol string
	// First and Last port, at least 1.
	First, Last uint16
}

// NodePorts are the ports of AllowNodePorts. What is no port is left out.
func (n Network) NodePorts() []PortRange { return portRanges(n.AllowNodePorts) }

// PortRanges are the ports that the rule is about; none for every one.
func (r GroupRule) PortRanges() []PortRange { return portRanges(r.Ports) }

func portRanges(texts []string) []PortRange {
	var all []PortRange
	for _, text := range texts {
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
	c.portList("network.allow_node_ports", n.AllowNodePorts, maxNodePorts, "the node", "tcp/8080")
}

// portList checks a list of ports of somebody.
func (c *checks) portList(key string, all []string, most int, whose, example string) {
	c.must(len(all) <= most, key, fmt.Sprintf("%d entries are too many", len(all)), fmt.Sprintf("write at most %d; ranges help", most))
	for i, text := range all {
		_, ok := parsePorts(text)
		c.must(ok, fmt.Sprintf("%s[%d]", key, i), fmt.Sprintf("%q is no port of %s", text, whose), "write one like "+example+" or udp/5000-5010")
	}
}

func (c *checks) groupRules(n Network) {
	all := n.GroupRules
	c.must(len(all) <= maxGroupRules, "network.group_rules", fmt.Sprintf("%d rules are too many", len(all)), fmt.Sprintf("write at most %d", maxGroupRules))
	for i, r := range all {
		key := fmt.Sprintf("network.group_rules[%d]", i)
		for _, group := range []struct{ key, name string }{{key + ".from", r.From}, {key + ".to", r.To}} {
			c.must(group.name == AnyGroup || networkGroup.MatchString(group.name), group.key, fmt.Sprintf("%q is no network group", group.name),
				`write a name of at most 63 lower-case letters, digits and dashes, "default" for sandboxes that name none, or "*" for all`)
		}
		c.must(r.From != r.To || r.From == "" || r.From == AnyGroup, key, fmt.Sprintf("from and to are both %q", r.From), "leave the rule out: sandboxes of one group reach each other")
		c.portList(key+".ports", r.Ports, maxGroupPorts, "a sandbox", "tcp/5432")
	}
}
