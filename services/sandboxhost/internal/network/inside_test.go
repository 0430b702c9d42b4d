package network

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestWithin_LacksOnlyWhatWasSet(t *testing.T) {
	addr, gateway := netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("10.77.0.1")
	six, gateway6 := netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::1")
	for name, tt := range map[string]struct {
		harm  func(w within) within
		lacks bool
		also6 bool
	}{
		"whole":                 {func(w within) within { return w }, false, false},
		"another address":       {func(w within) within { w.addrs[netip.MustParseAddr("192.0.2.1")] = true; return w }, false, false},
		"loopback down":         {func(w within) within { w.loopback = false; return w }, true, true},
		"down":                  {func(w within) within { w.up = false; return w }, true, true},
		"no address":            {func(w within) within { delete(w.addrs, addr); return w }, true, true},
		"no default route":      {func(w within) within { delete(w.defaults, netlink.FAMILY_V4); return w }, true, true},
		"no gateway":            {func(w within) within { delete(w.gateways, gateway); return w }, true, true},
		"no IPv6 address":       {func(w within) within { delete(w.addrs, six); return w }, false, true},
		"no IPv6 default route": {func(w within) within { delete(w.defaults, netlink.FAMILY_V6); return w }, false, true},
		"no IPv6 gateway":       {func(w within) within { delete(w.gateways, gateway6); return w }, false, true},
	} {
		w := tt.harm(within{
			loopback: true, up: true, addrs: map[netip.Addr]bool{addr: true, six: true},
			gateways: map[netip.Addr]bool{gateway: true, gateway6: true},
			defaults: map[int]bool{netlink.FAMILY_V4: true, netlink.FAMILY_V6: true},
		})
		if got := w.lacks(addr, gateway, netip.Addr{}, netip.Addr{}); (got != "") != tt.lacks {
			t.Errorf("%s, IPv4 alone: lacks %q", name, got)
		}
		if got := w.lacks(addr, gateway, six, gateway6); (got != "") != tt.also6 {
			t.Errorf("%s: lacks %q", name, got)
		}
	}
}
