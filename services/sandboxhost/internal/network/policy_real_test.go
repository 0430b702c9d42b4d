package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/hostport"
)

// with opens the network anew with another policy.
func (n *node) with(t *testing.T, p Policy) {
	t.Helper()
	n.again(t, func(c *Config) { c.Policy = p })
}

// atOnce is when a refusal was seen at the latest: long before a connection gives up.
const atOnce = 2 * time.Second

// tries says whether a sandbox reaches an address by TCP. One that does not must be told so
// at once.
func tries(t *testing.T, n *node, from id.Sandbox, what, to string, want bool) {
	t.Helper()
	began := time.Now()
	got, err := source(n, from, to)
	switch took := time.Since(began); {
	case (err == nil) != want:
		t.Errorf("%s, at %s: got %q, %v, want it reached: %t", what, to, got, err, want)
	case !want && (!errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EHOSTUNREACH) || took > atOnce):
		t.Errorf("%s, at %s: got %v after %s, want a refusal at once", what, to, err, took)
	}
}

// asks sends packets of udp from a sandbox until something comes back: the kernel refuses
// one a second to each, after the first six (icmp_ratelimit).
func asks(n *node, from id.Sandbox, to string) (answer string, err error) {
	err = n.inNet(from, func() error {
		c, err := net.Dial("udp4", to)
		if err != nil {
			return err
		}
		defer c.Close()
		buffer := make([]byte, 64)
		for range 30 {
			if err := c.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				return err
			}
			if _, err := c.Write([]byte("?")); err != nil {
				return err
			}
			read, err := c.Read(buffer)
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				answer = string(buffer[:read])
				return err
			}
		}
		return os.ErrDeadlineExceeded
	})
	return answer, err
}

// echoUDP answers each packet to a port of the node with itself.
func echoUDP(t *testing.T, at string) uint16 {
	t.Helper()
	server, err := net.ListenPacket("udp4", at)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // ends with the socket; waited for in the cleanup
		defer close(ended)
		buffer := make([]byte, 64)
		for {
			read, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(buffer[:read], from)
		}
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return uint16(server.LocalAddr().(*net.UDPAddr).Port)
}

// ping sends an echo request from a sandbox and waits for the reply.
func ping(n *node, from id.Sandbox, to string) error {
	return n.inNet(from, func() error {
		c, err := net.ListenPacket("ip4:icmp", "0.0.0.0")
		if err != nil {
			return err
		}
		defer c.Close()
		ip := &net.IPAddr{IP: net.ParseIP(to)}
		if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return err
		}
		if _, err := c.WriteTo([]byte{layer4.echo, 0, 0xf7, 0xff, 0, 0, 0, 0}, ip); err != nil { // with its sum
			return err
		}
		buffer := make([]byte, 128)
		read, _, err := c.ReadFrom(buffer)
		if err == nil && (read == 0 || buffer[0] != 0) {
			return fmt.Errorf("got message %v, want a reply", buffer[:read])
		}
		return err
	})
}

// Programs of the node are not reached by sandboxes, but on ports that are allowed; the
// resolver, a ping to the gateway and answers pass.
func TestNetwork_SCY3_PortsOfTheNodeAreRefused(t *testing.T) {
	n := newNode(t, "10.202.40.0/24")
	peer := lan(t, n)
	closed, allowed := freeHostPort(t), freeHostPort(t)
	tellSource(t, n, "", closed)
	tellSource(t, n, "", allowed)
	gateway := n.gateway().String()
	udp := echoUDP(t, gateway+":0")
	echoUDP(t, fmt.Sprintf("%s:%d", lanNode, udp)) // the answer has to come from where the question went
	echoUDP(t, gateway+":53")
	echoUDP(t, lanNode+":53")
	uid, addr := n.attach(t)
	at := func(host string, port uint16) string { return fmt.Sprintf("%s:%d", host, port) }
	for _, tt := range []struct {
		name                string
		policy              Policy
		allowed, udp, names bool
	}{
		{"by default", Policy{}, false, false, false},
		{"allowed", Policy{Ports: []PortRange{{hostport.TCP, allowed, allowed}, {hostport.UDP, udp, udp}}}, true, true, false},
		{"a node without a resolver", Policy{AnyResolver: true}, false, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n.with(t, tt.policy)
			for _, host := range []string{gateway, lanNode} {
				tries(t, n, uid, "a port of the node", at(host, closed), false)
				tries(t, n, uid, "a port that may be allowed", at(host, allowed), tt.allowed)
				if _, err := asks(n, uid, at(host, udp)); (err == nil) != tt.udp || !tt.udp && !errors.Is(err, unix.EHOSTUNREACH) {
					t.Errorf("udp at %s: got %v, want it reached: %t", host, err, tt.udp)
				}
			}
			if _, err := asks(n, uid, gateway+":53"); err != nil {
				t.Errorf("the resolver: %v", err)
			}
			if _, err := asks(n, uid, lanNode+":53"); (err == nil) != tt.names {
				t.Errorf("another name server: got %v, want it reached: %t", err, tt.names)
			}
			if err := ping(n, uid, gateway); err != nil {
				t.Errorf("a ping to the gateway: %v", err)
			}
			if err := ping(n, uid, lanNode); err == nil {
				t.Error("another address of the node answers a ping")
			}
			if err := talk(n, uid, uid, addr); err != nil {
				t.Errorf("the answer to the node: %v", err)
			}
			tries(t, n, peer, "another machine", at(lanNode, closed), true)
		})
	}
}

// What a cloud tells the machine about itself is refused, whether it comes from elsewhere
// or is led to a program of the node, until it is allowed.
func TestNetwork_SCY3_MetadataIsRefused(t *testing.T) {
	n := newNode(t, "10.202.41.0/24")
	const metadata = "169.254.169.254"
	peer := lan(t, n)
	here := func(text string) *netlink.Addr { return &netlink.Addr{IPNet: ipNet(netip.MustParseAddr(text), 32)} }
	err := n.inNet(peer, func() error {
		link, err := netlink.LinkByName("lan0")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, here(metadata))
	})
	if err != nil {
		t.Fatal(err)
	}
	route := &netlink.Route{Dst: here(metadata).IPNet, Gw: net.ParseIP(lanPeer)}
	if err := netlink.RouteAdd(route); err != nil { // goes with the interface
		t.Fatal(err)
	}
	tellSource(t, n, peer, 80)
	uid, _ := n.attach(t)
	tries(t, n, uid, "metadata", metadata+":80", false)
	tries(t, n, "", "metadata from the node", metadata+":80", true)
	local := freeHostPort(t)
	tellSource(t, n, "", local)
	leadAway(t, n, local)
	tries(t, n, uid, "metadata that is led to the node", metadata+":80", false)
	rules, err := n.listRules(n.table())
	if err != nil {
		t.Fatal(err)
	}
	if got := refused(t, n, "metadata"); got < 2 {
		t.Errorf("%d were counted, want 2 or more", got)
	}
	checkMended(t, n, rules) // counting is no change
	n.with(t, Policy{Metadata: true, Ports: []PortRange{{hostport.TCP, local, local}}})
	tries(t, n, uid, "metadata when it is allowed", metadata+":80", true)
}

// leadAway leads what is for port 80 to a port of the node, as agents of clouds do with
// metadata.
func leadAway(t *testing.T, n *node, port uint16) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Name: n.cfg.Bridge, Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{
		Name: "led", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-101),
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: join(protocol(unix.IPPROTO_TCP), ports(80, 80), []expr.Any{
		&expr.Immediate{Register: 1, Data: bigEndian(port)}, &expr.Redir{RegisterProtoMin: 1},
	})})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.DelTable(table)
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
	})
}

// refused is how many packets a chain has refused.
func refused(t *testing.T, n *node, chain string) (packets uint64) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	rules, err := c.GetRules(n.table(), &nftables.Chain{Name: chain, Table: n.table()})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		for _, e := range r.Exprs {
			if counter, ok := e.(*expr.Counter); ok {
				packets += counter.Packets
			}
		}
	}
	return packets
}

// A machine that is a container itself may have read-only settings: the network is made all
// the same, what it could not do is not tried again and again, and is done once it can be.
func TestNetwork_WorksWhereSettingsAreReadOnly(t *testing.T) {
	n := newNode(t, "10.202.42.0/24")
	if err := os.WriteFile(n.ipv6File(), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	err := readOnly("/proc/sys", func() error {
		if err := os.WriteFile(n.ipv6File(), []byte("1"), 0); !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("want that settings cannot be written, got %w", err)
		}
		return n.substrate()
	})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := n.listRules(n.table())
	if err != nil {
		t.Fatal(err)
	}
	checkMended(t, n, rules)
	n.with(t, Policy{})
	if off, err := n.ipv6IsOff(); err != nil || !off {
		t.Errorf("IPv6 of the bridge is off: %t, %v", off, err)
	}
}

// readOnly runs fn on a thread that sees a folder read-only.
func readOnly(path string, fn func() error) error {
	done := make(chan error, 1)
	go func() { // waited for below
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if err == nil {
			err = unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// Rules are as few as the policy is short, and the last ones refuse.
func TestPolicy_RefusesWhatIsLeft(t *testing.T) {
	n := New(Config{Bridge: "b", Subnet: netip.MustParsePrefix("10.0.0.0/24"), Policy: Policy{
		Metadata: true, Ports: []PortRange{{hostport.TCP, 80, 90}},
	}}, Deps{})
	rules := n.nodeRules(layer4)
	if len(n.metadataRules(layer4)) != 0 || len(rules) != 7 {
		t.Errorf("got %d and %d rules, want 0 and 7", len(n.metadataRules(layer4)), len(rules))
	}
	last := rules[len(rules)-1]
	if _, ok := last[len(last)-1].(*expr.Reject); !ok || !strings.Contains(fmt.Sprintf("%T", last[0]), "Meta") {
		t.Errorf("the last rule is %v, want that it refuses what comes over the bridge", last)
	}
}
