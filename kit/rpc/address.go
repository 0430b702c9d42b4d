package rpc

import "net"

// ListensAt reports whether a TCP listener is what listening at address, as
// host:port, would give: port 0 is any, and an address that names no host any
// host's. What cannot be resolved is none.
func ListensAt(l net.Listener, address string) bool {
	there, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return false
	}
	want, err := net.ResolveTCPAddr("tcp", address)
	if err != nil || want.Port != 0 && want.Port != there.Port {
		return false
	}
	if want.IP == nil || want.IP.IsUnspecified() {
		return there.IP == nil || there.IP.IsUnspecified()
	}
	return want.IP.Equal(there.IP)
}
