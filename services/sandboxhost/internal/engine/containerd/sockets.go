package containerd

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"staddle.internal/services/sandboxhost/internal/engine"
)

// socketTables are the kernel's lists of sockets, relative to net in /proc.
var socketTables = []struct {
	file string
	udp  bool
}{{"tcp", false}, {"tcp6", false}, {"udp", true}, {"udp6", true}}

// States of sockets as the tables have them. A UDP socket without a peer is "closed",
// and waits all the same.
const (
	stateListen = "0A"
	stateClosed = "07"
)

// listenersIn reads the sockets out of one table that wait for somebody.
func listenersIn(table []byte, udp bool) ([]engine.Listener, error) {
	var list []engine.Listener
	first := true
	for line := range strings.Lines(string(table)) {
		if first { // the names of the columns
			first = false
			continue
		}
		const needed = 4
		fields := strings.Fields(line) // number, local, remote, state
		if len(fields) < needed {
			continue
		}
		if state := fields[3]; udp && state != stateClosed || !udp && state != stateListen {
			continue
		}
		address, err := parseSocket(fields[1])
		if err != nil {
			return nil, err
		}
		list = append(list, engine.Listener{Address: address, UDP: udp})
	}
	return list, nil
}

// parseSocket reads an address as "0100007F:1F90": words of 32 bits in the order of the
// machine, then the port.
func parseSocket(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	const word = 4
	if err != nil || len(raw)%word != 0 {
		return netip.AddrPort{}, fmt.Errorf("address %q is no address", text)
	}
	for i := 0; i < len(raw); i += word {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	address, ok := netip.AddrFromSlice(raw)
	number, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("address %q is no address", text)
	}
	return netip.AddrPortFrom(address.Unmap(), uint16(number)), nil
}
