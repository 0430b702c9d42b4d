package rpc

import (
	"net"
	"path/filepath"
	"testing"
)

// Any user of the machine may connect, so that a call can say why it is refused; but
// none may use up the descriptors of a process.
func TestHandshaker_BoundsStrangers(t *testing.T) {
	h := &handshaker{peers: &Peers{}} // nobody has a role
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	must(t, err)
	defer l.Close()
	enter := func() (net.Conn, error) {
		client, err := net.Dial("unix", l.Addr().String())
		must(t, err)
		t.Cleanup(func() { _ = client.Close() })
		conn, err := l.Accept()
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		served, _, err := h.ServerHandshake(conn)
		return served, err
	}
	var first net.Conn
	for i := range maxStrangers {
		conn, err := enter()
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if first == nil {
			first = conn
		}
	}
	if _, err := enter(); err == nil {
		t.Fatalf("a stranger has connection %d", maxStrangers+1)
	}
	for range 2 { // counted once
		_ = first.Close()
	}
	if _, err := enter(); err != nil {
		t.Errorf("there is no room after one has left: %v", err)
	}
	if _, err := enter(); err == nil {
		t.Error("one that left twice made room for two")
	}
}
