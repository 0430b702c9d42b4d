package config_test

import (
	"slices"
	"testing"

	"staddle.internal/kit/config"
)

func TestNode_GatewayAddress(t *testing.T) {
	own := []string{"192.0.2.7", "198.51.100.1", "2001:db8::7"}
	for _, c := range []struct {
		name, listen, advertise string
		own                     []string
		want                    string
	}{
		{"none", "", "", own, ""},
		{"one address", "192.0.2.9:1", "", own, "192.0.2.9:1"},
		{"a name", "node1.lan:1", "", own, "node1.lan:1"},
		{"told", "0.0.0.0:1", "node1.lan:2", own, "node1.lan:2"},
		{"all of IPv4", "0.0.0.0:1", "", own, "192.0.2.7:1"},
		{"all of IPv4 on a machine without", "0.0.0.0:1", "", own[2:], ""},
		{"all", "[::]:1", "", own, "[2001:db8::7]:1"},
		{"all, on a machine of IPv4", "[::]:1", "", own[:2], "192.0.2.7:1"},
		{"all, on a machine without addresses", "[::]:1", "", nil, ""},
	} {
		n := config.Node{ListenAddress: c.listen, AdvertiseAddress: c.advertise}
		if got := n.GatewayAddress(c.own); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestNode_ChecksTheGateway(t *testing.T) {
	for _, c := range []struct {
		listen, advertise string
		want              []string // keys
	}{
		{"127.0.0.1:8444", "", nil},
		{"", "", nil},
		{"[::]:8444", "node1:8444", nil},
		{":8444", "", []string{"listen_address"}},
		{"node1", "", []string{"listen_address"}},
		{"0.0.0.0:0", "", []string{"listen_address"}},
		{"0.0.0.0:8444", "0.0.0.0:8444", []string{"advertise_address"}},
		{"0.0.0.0:8444", "node1", []string{"advertise_address"}},
		{"", "node1:8444", []string{"advertise_address"}},
	} {
		n := config.DefaultNode()
		n.ListenAddress, n.AdvertiseAddress = c.listen, c.advertise
		var got []string
		for _, p := range n.Validate() {
			got = append(got, p.Key)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("listen on %q, tell %q: problems with %v, want %v", c.listen, c.advertise, got, c.want)
		}
	}
}
