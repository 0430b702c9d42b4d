package network

import (
	"net/netip"
	"testing"
)

func TestSix_IsAsFarBehindTheBeginning(t *testing.T) {
	for _, tt := range []struct{ subnet, subnet6, addr, want string }{
		{"10.77.0.0/16", "fd00::/64", "10.77.1.2", "fd00::102"},
		{"10.77.0.0/16", "fd00::/64", "10.77.0.1", "fd00::1"},
		{"10.77.128.0/17", "fd00::ab:0/112", "10.77.128.3", "fd00::ab:3"},
		{"10.0.0.0/8", "2001:db8::/48", "10.255.255.254", "2001:db8::ff:fffe"},
		{"10.77.0.0/16", "fd00::/64", "10.78.0.1", "invalid IP"},
	} {
		n := New(Config{Subnet: netip.MustParsePrefix(tt.subnet), Subnet6: netip.MustParsePrefix(tt.subnet6)}, Deps{})
		if got := n.six(netip.MustParseAddr(tt.addr)).String(); got != tt.want {
			t.Errorf("%s in %s and %s: got %s, want %s", tt.addr, tt.subnet, tt.subnet6, got, tt.want)
		}
	}
	if got := New(Config{Subnet: netip.MustParsePrefix("10.77.0.0/16")}, Deps{}).six(netip.MustParseAddr("10.77.0.2")); got.IsValid() {
		t.Errorf("without IPv6: got %s", got)
	}
}
