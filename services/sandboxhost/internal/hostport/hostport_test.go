package hostport

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestOwner_NamesWhoListens(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	packets, err := net.ListenPacket("udp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	port := netip.MustParseAddrPort(l.Addr().String()).Port()
	udp := netip.MustParseAddrPort(packets.LocalAddr().String()).Port()
	any4, other := netip.IPv4Unspecified(), netip.MustParseAddr("127.0.0.2")
	for _, tt := range []struct {
		network string
		at      netip.AddrPort
		want    bool
	}{
		{TCP, netip.MustParseAddrPort(l.Addr().String()), true},
		{TCP, netip.AddrPortFrom(any4, port), true},
		{TCP, netip.AddrPortFrom(other, port), false},
		{UDP, netip.AddrPortFrom(other, udp), true},
		{TCP, netip.AddrPortFrom(any4, 1), false},
	} {
		got, err := Owner(tt.network, tt.at)
		if err != nil || strings.Contains(got, "process "+strconv.Itoa(os.Getpid())) != tt.want || (got == "") == tt.want {
			t.Errorf("%s %s: got %q, %v, want somebody: %t", tt.network, tt.at, got, err, tt.want)
		}
	}
}

// A connection is nobody who listens.
func TestParse_OnlyWhoListens(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F91 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 100 0 0 10 0
`
	got, err := parse(strings.NewReader(table), TCP)
	if err != nil || len(got) != 1 || got[0].at.String() != "127.0.0.1:8080" || got[0].inode != 4711 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := parse(strings.NewReader("0: x 0 0A 0 0 0 0 0 1"), TCP); err == nil {
		t.Error("nonsense was read")
	}
}
