package config

import (
	"slices"
	"strings"
	"testing"
)

func TestNodePorts_ReadsPortsAndRanges(t *testing.T) {
	n := Network{AllowNodePorts: []string{"tcp/8080", "udp/5000-5010", "tcp/1-65535"}}
	want := []PortRange{{"tcp", 8080, 8080}, {"udp", 5000, 5010}, {"tcp", 1, 65535}}
	if got := n.NodePorts(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestLoadNode_RefusesWhatIsNoPortOfTheNode(t *testing.T) {
	for _, text := range []string{
		"8080", "tcp", "tcp/", "tcp/0", "tcp/65536", "tcp/-1", "tcp/+1", "tcp/ 1", "tcp/20-10", "tcp/1-", "tcp/1-2-3", "sctp/1", "TCP/1", "tcp/1/2", "",
	} {
		_, err := load(t, "version: 1\nnetwork:\n  allow_node_ports:\n    - \""+text+"\"\n")
		wants(t, err, 4, "network.allow_node_ports[0]", "is no port of the node", "tcp/8080")
	}
	_, err := load(t, "version: 1\nnetwork:\n  allow_node_ports: ["+strings.Repeat("tcp/1, ", maxNodePorts+1)+"]\n")
	wants(t, err, 3, "network.allow_node_ports", "65 entries are too many")
}

func TestLoadNode_RoutableNetworks(t *testing.T) {
	const head = "version: 1\nnetwork:\n  ipv4_routable: ["
	n, err := load(t, head+"10.0.0.0/8, 0.0.0.0/0]\n  disable_local_net: true\n")
	if err != nil || len(n.Network.IPv4Routable) != 2 || !n.Network.DisableLocalNet {
		t.Errorf("got %+v, %v", n.Network, err)
	}
	_, err = load(t, head+"10.1.2.3/8]\n")
	wants(t, err, 3, "network.ipv4_routable[0]", "has host bits", "10.0.0.0/8")
	_, err = load(t, head+"\"fd00::/8\"]\n")
	wants(t, err, 3, "network.ipv4_routable[0]", "is no IPv4 network", "like 10.0.0.0/8")
	_, err = load(t, head+strings.Repeat("10.0.0.0/8, ", maxRoutable+1)+"]\n")
	wants(t, err, 3, "network.ipv4_routable", "17 networks are too many")
}

func TestLoadNode_ReadsGroupRules(t *testing.T) {
	const head = "version: 1\nnetwork:\n  group_rules:\n"
	n, err := load(t, head+"  - {from: web, to: db-1, ports: [tcp/5432, udp/5000-5010]}\n  - {from: \"*\", to: default}\n")
	if err != nil {
		t.Fatal(err)
	}
	rules := n.Network.GroupRules
	if got, want := rules[0].PortRanges(), []PortRange{{"tcp", 5432, 5432}, {"udp", 5000, 5010}}; len(rules) != 2 || !slices.Equal(got, want) || rules[1].From != AnyGroup {
		t.Errorf("got %+v, want ports %v", rules, want)
	}
	for _, tt := range []struct{ rule, key, problem, advice string }{
		{"{from: Web, to: db}", "network.group_rules[0].from", `"Web" is no network group`, "lower-case"},
		{"{from: web}", "network.group_rules[0].to", `"" is no network group`, `"*" for all`},
		{"{from: web_1, to: db}", "network.group_rules[0].from", "is no network group", "dashes"},
		{"{from: " + strings.Repeat("a", 64) + ", to: db}", "network.group_rules[0].from", "is no network group", "at most 63"},
		{"{from: web, to: web}", "network.group_rules[0]", "both", "leave the rule out"},
		{"{from: web, to: db, ports: [tcp/0]}", "network.group_rules[0].ports[0]", "is no port of a sandbox", "tcp/5432"},
		{"{from: web, to: db, ports: [" + strings.Repeat("tcp/1, ", maxGroupPorts+1) + "]}", "network.group_rules[0].ports", "17 entries are too many", "at most 16"},
	} {
		_, err := load(t, head+"  - "+tt.rule+"\n")
		wants(t, err, 4, tt.key, tt.problem, tt.advice)
	}
	_, err = load(t, head+strings.Repeat("  - {from: a, to: b}\n", maxGroupRules+1))
	wants(t, err, 4, "network.group_rules", "65 rules are too many", "at most 64")
}
