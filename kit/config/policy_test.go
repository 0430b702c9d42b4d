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
