package main

import (
	"fmt"
	"net"
)

// greet tells everybody at a port of tcp and udp where he comes from.
func greet(port string) {
	l, err := net.Listen("tcp4", ":"+port)
	must(err)
	p, err := net.ListenPacket("udp4", ":"+port)
	must(err)
	go stay()
	fmt.Println("serving")
	go func() {
		buffer := make([]byte, 16)
		for {
			_, from, err := p.ReadFrom(buffer)
			must(err)
			_, _ = fmt.Fprintln(answer{p, from}, from.(*net.UDPAddr).IP)
		}
	}()
	for {
		c, err := l.Accept()
		must(err)
		_, _ = fmt.Fprintln(c, c.RemoteAddr().(*net.TCPAddr).IP)
		_ = c.Close()
	}
}

// answer writes to one client of udp.
type answer struct {
	net.PacketConn

	to net.Addr
}

func (a answer) Write(p []byte) (int, error) { return a.WriteTo(p, a.to) }
