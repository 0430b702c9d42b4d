package network

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
)

// heardPort is where hear listens.
const heardPort = 7002

// hear returns what comes to a port of udp of a sandbox.
func hear(t *testing.T, n *node, uid id.Sandbox) <-chan string {
	t.Helper()
	var c net.PacketConn
	err := n.inNet(uid, func() (err error) {
		c, err = net.ListenPacket("udp", fmt.Sprintf(":%d", heardPort))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 64)
	go func() { // ends with the socket; waited for in the cleanup
		defer close(heard)
		buffer := make([]byte, 128)
		for {
			read, _, err := c.ReadFrom(buffer)
			if err != nil {
				return
			}
			heard <- string(buffer[:read])
		}
	}()
	t.Cleanup(func() {
		_ = c.Close()
		for range heard { // until it is closed
		}
	})
	return heard
}

// first demands that a text is what is heard first.
func first(t *testing.T, heard <-chan string, want string) {
	t.Helper()
	select {
	case got := <-heard:
		if got != want {
			t.Errorf("heard %q first, want %q alone", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("nothing was heard, want %q", want)
	}
}

// sendFrame sends a frame as it is.
func sendFrame(ethernet uint16, frame []byte) error {
	link, err := net.InterfaceByName(inside)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index, Protocol: networkOrder(ethernet)})
}

func networkOrder(v uint16) uint16 { return binary.NativeEndian.Uint16(bigEndian(v)) }

func ethernetHeader(from, to net.HardwareAddr, kind uint16) []byte {
	return append(append(append([]byte{}, to...), from...), bigEndian(kind)...)
}

// datagram is a frame with a packet of udp, without a sum of the data.
func datagram(from, to net.HardwareAddr, source, destination netip.AddrPort, text string) []byte {
	const ipHeader, udpHeader = 20, 8
	ip := make([]byte, ipHeader)
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(ipHeader+udpHeader+len(text)))
	copy(ip[layer4.source:], source.Addr().AsSlice())
	copy(ip[layer4.destination:], destination.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], sum(ip))
	udp := append(bigEndian(source.Port()), bigEndian(destination.Port())...)
	udp = append(append(udp, bigEndian(uint16(udpHeader+len(text)))...), 0, 0)
	return append(append(append(ethernetHeader(from, to, unix.ETH_P_IP), ip...), udp...), text...)
}

// sum is the Internet checksum of a header (RFC 1071).
func sum(header []byte) uint16 {
	var total uint32
	for i := 0; i < len(header); i += 2 {
		total += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return ^uint16(total)
}

// arpReply is a frame that says that an address is at where it comes from (RFC 826).
func arpReply(from, to net.HardwareAddr, claimed, asker netip.Addr) []byte {
	frame := append(ethernetHeader(from, to, unix.ETH_P_ARP), 0, 1, 8, 0, 6, 4, 0, 2)
	frame = append(append(frame, from...), claimed.AsSlice()...)
	return append(append(frame, to...), asker.AsSlice()...)
}

// datagram6 is a frame with a packet of udp over IPv6.
func datagram6(from, to net.HardwareAddr, source, destination netip.AddrPort, text string) []byte {
	const ipHeader, udpHeader = 40, 8
	size := bigEndian(uint16(udpHeader + len(text)))
	udp := append(append(bigEndian(source.Port()), bigEndian(destination.Port())...), size...)
	udp = append(append(udp, 0, 0), text...)
	ip := make([]byte, ipHeader)
	ip[0], ip[6], ip[7] = 0x60, unix.IPPROTO_UDP, 64
	copy(ip[4:], size)
	copy(ip[layer6.source:], source.Addr().AsSlice())
	copy(ip[layer6.destination:], destination.Addr().AsSlice())
	summed := append(append(append([]byte{}, ip[layer6.source:]...), 0, 0), size...) // with the pseudo header of RFC 8200
	summed = append(append(summed, 0, 0, 0, unix.IPPROTO_UDP), udp...)
	if len(summed)%2 == 1 {
		summed = append(summed, 0)
	}
	binary.BigEndian.PutUint16(udp[6:], sum(summed))
	return append(append(ethernetHeader(from, to, unix.ETH_P_IPV6), ip...), udp...)
}
