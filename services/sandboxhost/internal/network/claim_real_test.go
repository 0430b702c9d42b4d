package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/hostport"
)

// NET-9: services and sandboxes have a port of the node once between them, and a program
// keeps its own; who is refused keeps what it had, and what is given back is free.
func TestNetwork_NET9_ServicesHavePortsOnce(t *testing.T) {
	n := newNode(t, "10.202.36.0/24")
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tcp := func(port uint16) Port { return Port{Protocol: hostport.TCP, Host: port, Inside: 80} }
	used, one, two := tcp(uint16(l.Addr().(*net.TCPAddr).Port)), tcp(freeHostPort(t)), tcp(freeHostPort(t))
	refused := func(what string, err error, reason, owner string) {
		t.Helper()
		if !errors.Is(err, fault.Conflict) || fault.Reason(err) != reason || !strings.Contains(err.Error(), owner) {
			t.Errorf("%s: got %v with reason %q, want %s with %s", what, err, fault.Reason(err), reason, owner)
		}
	}
	if err := n.ClaimForService("web", []Port{one}); err != nil {
		t.Fatal(err)
	}
	refused("a program's", n.ClaimForService("web", []Port{one, used}), reasonPortInUse, fmt.Sprintf("process %d", os.Getpid()))
	refused("another service's", n.ClaimForService("db", []Port{two, one}), reasonPortTaken, "service web")
	at := one
	at.Address = netip.MustParseAddr("127.0.0.1")
	refused("at one address, beside all", n.ClaimForService("db", []Port{at}), reasonPortTaken, "service web")
	nowhere := two
	nowhere.Address = netip.MustParseAddr("203.0.113.9")
	refused("of no address", n.ClaimForService("db", []Port{nowhere}), reasonAddressMissing, "no such address")
	uid, _, err := n.attachWith(t, one)
	refused("a sandbox's", err, reasonPortTaken, "service web")
	if err := n.ClaimForService("web", []Port{one}); err != nil {
		t.Errorf("its own again: %v", err)
	}
	n.HoldForService("web", nil)
	if _, err := n.Attach(t.Context(), uid, Wanted{Ports: []Port{one}}); err != nil {
		t.Errorf("it was given back: %v", err)
	}
	refused("of a sandbox", n.ClaimForService("web", []Port{one}), reasonPortTaken, "sandbox "+string(uid))
	n.leave(t, uid)
	if err := n.ClaimForService("web", []Port{one}); err != nil {
		t.Errorf("the sandbox is gone: %v", err)
	}
}
