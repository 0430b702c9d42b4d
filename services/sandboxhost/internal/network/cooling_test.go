package network

import (
	"net/netip"
	"testing"
	"time"
)

func TestSoonest(t *testing.T) {
	subnet := netip.MustParsePrefix("10.0.0.0/28")
	one, two, far := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.9.0.2")
	freed := map[netip.Addr]time.Duration{one: 100 * time.Second, two: 110 * time.Second, far: 90 * time.Second}
	for _, tt := range []struct {
		now, want time.Duration
		ok        bool
	}{
		{112 * time.Second, 100*time.Second + coolDown - 112*time.Second, true},
		{100*time.Second + coolDown, 10 * time.Second, true},
		{110*time.Second + coolDown, 0, false},
	} {
		if got, ok := soonest(freed, subnet, tt.now); got != tt.want || ok != tt.ok {
			t.Errorf("at %s: got %s, %t, want %s, %t", tt.now, got, ok, tt.want, tt.ok)
		}
	}
	if got := cooled(freed, 100*time.Second+coolDown); len(got) != 2 {
		t.Errorf("got %v, want the two that were freed first", got)
	}
}
