package containerd

import (
	"slices"
	"testing"

	"staddle.internal/services/sandboxhost/internal/engine"
)

func TestListenersIn(t *testing.T) {
	const tcp = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0
   1: 0100007F:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0
   2: 0201C90A:1F90 0101C90A:D431 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0
`
	const tcp6 = `  sl  local_address                         remote_address                        st
   0: 00000000000000000000000000000000:1F91 00000000000000000000000000000000:0000 0A 0
   1: 00000000000000000000000001000000:1F92 00000000000000000000000000000000:0000 0A 0
   2: 0000000000000000FFFF00000100007F:1F93 00000000000000000000000000000000:0000 0A 0
`
	const udp = `   sl  local_address rem_address   st
  10: 00000000:0035 00000000:0000 07 0
  11: 0201C90A:9000 0101C90A:0035 01 0
`
	tests := []struct {
		table string
		udp   bool
		want  []string
	}{
		{tcp, false, []string{"0.0.0.0:8080", "127.0.0.1:3000"}},
		{tcp6, false, []string{"[::]:8081", "[::1]:8082", "127.0.0.1:8083"}},
		{udp, true, []string{"0.0.0.0:53"}},
		{"header\n", false, nil},
	}
	for _, tt := range tests {
		list, err := listenersIn([]byte(tt.table), tt.udp)
		var got []string
		for _, l := range list {
			got = append(got, l.Address.String())
		}
		if err != nil || !slices.Equal(got, tt.want) || slices.ContainsFunc(list, func(l engine.Listener) bool { return l.UDP != tt.udp }) {
			t.Errorf("got %v, %v, want %v", got, err, tt.want)
		}
	}
	for _, bad := range []string{"h\n0: 0:1F90 0:0 0A", "h\n0: 0100007G:1F90 0:0 0A", "h\n0: 0100007F:12345 0:0 0A", "h\n0: 0100007F 0:0 0A"} {
		if list, err := listenersIn([]byte(bad), false); err == nil {
			t.Errorf("%q: got %v, want an error", bad, list)
		}
	}
}
