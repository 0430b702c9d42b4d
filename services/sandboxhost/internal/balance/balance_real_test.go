package balance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/hostport"
	"staddle.internal/services/sandboxhost/internal/namespace"
	"staddle.internal/services/sandboxhost/internal/network"
	"staddle.internal/services/sandboxhost/internal/nft"
)

// node is a network with sandboxes, and a balancer.
type node struct {
	*Balancer

	net  *network.Network
	pins *namespace.Pins
}

// sandbox is one of them, which answers everybody with its address.
type sandbox struct {
	uid  id.Sandbox
	addr netip.Addr
}

func newNode(t testing.TB, subnet, prefix string) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "sdb")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	n := &node{pins: namespace.New(filepath.Join(dir, "run"))}
	bridge, sub := fmt.Sprintf("sdb%d", os.Getpid()%1_000_000), netip.MustParsePrefix(subnet)
	n.net = network.New(network.Config{Bridge: bridge, Subnet: sub, Ledger: filepath.Join(dir, "network.db")}, network.Deps{Log: log, Namespaces: n.pins})
	if err := errors.Join(n.pins.Open(), n.net.Open(t.Context())); err != nil {
		t.Fatal(err)
	}
	n.Balancer = New(Config{Bridge: bridge, Gateway: sub.Addr().Next(), Prefixes: []netip.Prefix{netip.MustParsePrefix(prefix)}}, log)
	t.Cleanup(func() {
		uids, err := n.pins.Sandboxes()
		for _, uid := range uids {
			err = errors.Join(err, n.net.Detach(uid), n.pins.Release(uid))
		}
		err = errors.Join(err, n.Remove(), n.net.Teardown(context.WithoutCancel(t.Context())), n.net.Close(), n.pins.Close(), os.RemoveAll(dir))
		if err != nil {
			t.Error(err)
		}
	})
	return n
}

// attach makes a sandbox that answers on port 80 of tcp and of udp.
func (n *node) attach(t *testing.T) sandbox {
	t.Helper()
	s := sandbox{uid: id.NewSandbox()}
	err := n.pins.Ensure(s.uid, namespace.Wanted{Network: true, Hostname: "web"})
	if err == nil {
		if s.addr, err = n.net.Attach(t.Context(), s.uid, network.Wanted{}); err == nil {
			err = n.net.Reflect(s.uid)
		}
	}
	var l net.Listener
	var p net.PacketConn
	if err == nil {
		err = n.inside(s.uid, func() (err error) {
			if l, err = net.Listen("tcp4", ":80"); err != nil {
				return err
			}
			p, err = net.ListenPacket("udp4", ":80")
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { // ends with the listener; waited for in the cleanup
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintln(c, s.addr)
			_ = c.Close()
		}
	})
	wg.Go(func() { // ends with the socket; waited for in the cleanup
		buffer := make([]byte, 16)
		for {
			_, from, err := p.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = p.WriteTo([]byte(s.addr.String()+"\n"), from)
		}
	})
	t.Cleanup(func() {
		_, _ = l.Close(), p.Close()
		wg.Wait()
	})
	return s
}

// inside runs f where a sandbox is, or in the node for no sandbox.
func (n *node) inside(uid id.Sandbox, f func() error) error {
	if uid == "" {
		return f()
	}
	return namespace.Inside(n.pins.Path(uid, namespace.Net), f)
}

// ask connects from a sandbox to a front and returns who answers.
func (n *node) ask(from id.Sandbox, to Front) (who string, err error) {
	err = n.inside(from, func() error {
		c, err := net.DialTimeout(to.Protocol+"4", netip.AddrPortFrom(to.Address, to.Port).String(), 3*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		who, err = talk(c)
		return err
	})
	return who, err
}

func talk(c net.Conn) (string, error) {
	if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// at is port 80 of sandboxes.
func at(all ...sandbox) []netip.AddrPort {
	backends := make([]netip.AddrPort, len(all))
	for i, s := range all {
		backends[i] = netip.AddrPortFrom(s.addr, 80)
	}
	return backends
}

func front(text, protocol string, port uint16) Front {
	return Front{Address: netip.MustParseAddr(text), Protocol: protocol, Port: port}
}

// met asks until each of the sandboxes has answered once, and nobody else.
func (n *node) met(t *testing.T, from id.Sandbox, to Front, all ...sandbox) {
	t.Helper()
	missing := map[string]bool{}
	for _, s := range all {
		missing[s.addr.String()] = true
	}
	known := len(missing)
	for tries := 0; len(missing) > 0 && tries < 60*known; tries++ { // by chance once in (1/2)^120 not
		who, err := n.ask(from, to)
		if err != nil {
			t.Fatalf("from %q to %s: %v", from, to, err)
		}
		delete(missing, who)
	}
	if len(missing) > 0 {
		t.Errorf("from %q to %s: nothing heard of %v", from, to, missing)
	}
}

func set(t testing.TB, n *node, want map[Front]Service) {
	t.Helper()
	if err := n.Set(want); err != nil {
		t.Fatal(err)
	}
}

// A service is reached by both protocols from a sandbox, from the node and from those
// behind it, also when there is only the one that asks; all of them take a share.
func TestBalance_ReachesEverySandboxFromEverywhere(t *testing.T) {
	n := newNode(t, "10.203.1.0/24", "10.203.128.0/20")
	one, two, client := n.attach(t), n.attach(t), n.attach(t)
	tcp, udp, own := front("10.203.128.1", hostport.TCP, 8080), front("10.203.128.1", hostport.UDP, 53), front("10.203.128.2", hostport.TCP, 80)
	set(t, n, map[Front]Service{tcp: {Backends: at(one, two)}, udp: {Backends: at(one, two)}, own: {Backends: at(one)}})
	for _, from := range []id.Sandbox{client.uid, one.uid, ""} {
		n.met(t, from, tcp, one, two)
		n.met(t, from, udp, one, two)
		n.met(t, from, own, one)
	}
}

// What has nobody behind it refuses at once, also a port that is none and an address that
// nobody has; and is reached again when somebody comes, by who was refused as well.
func TestBalance_RefusesAtOnceWithNobodyBehind(t *testing.T) {
	n := newNode(t, "10.203.2.0/24", "10.203.144.0/20")
	one, client := n.attach(t), n.attach(t)
	for _, protocol := range []string{hostport.TCP, hostport.UDP} {
		service := front("10.203.144.1", protocol, 80)
		other := front("10.203.144.9", hostport.TCP, 9)
		for range 2 {
			set(t, n, map[Front]Service{service: {}, other: {Backends: at(one)}})
			for _, from := range []id.Sandbox{client.uid, ""} {
				refused := []Front{service, front("10.203.144.1", protocol, 81), front("10.203.144.7", protocol, 80)}
				if protocol == hostport.UDP {
					refused = refused[:1] // the kernel tells a neighbour so only now and then (icmp_ratelimit)
				}
				for _, to := range refused {
					// The kernel says EPERM to its own programs when a rule refuses their udp.
					who, err := n.ask(from, to)
					if !errors.Is(err, syscall.ECONNREFUSED) && (from != "" || to.Protocol != hostport.UDP || !errors.Is(err, syscall.EPERM)) {
						t.Errorf("from %q to %s: got %q, %v, want it refused", from, to, who, err)
					}
				}
			}
			set(t, n, map[Front]Service{service: {Backends: at(one)}, other: {Backends: at(one)}})
			n.met(t, client.uid, service, one)
			n.met(t, "", service, one)
		}
	}
}

// A sandbox sees which other comes to it by a service, of tcp and of udp; only what it sends to
// itself comes from the gateway. Which of two it is makes no difference to the answer.
func TestBalancer_ASandboxSeesWhoComes(t *testing.T) {
	n := newNode(t, "10.203.9.0/24", "10.203.137.0/24")
	one, two := n.attach(t), n.attach(t)
	for _, protocol := range []string{hostport.TCP, hostport.UDP} {
		to := front("10.203.137.1", protocol, 90)
		l := n.tellSource(t, one.uid, protocol)
		set(t, n, map[Front]Service{to: {Backends: []netip.AddrPort{netip.AddrPortFrom(one.addr, l)}}})
		for from, want := range map[sandbox]string{two: two.addr.String(), one: "10.203.9.1"} {
			if got, err := n.ask(from.uid, to); err != nil || got != want {
				t.Errorf("%s from %s: it sees %q, %v, want %s", protocol, from.addr, got, err, want)
			}
		}
	}
}

// tellSource answers everybody at a port of a sandbox with where he comes from.
func (n *node) tellSource(t *testing.T, uid id.Sandbox, protocol string) (port uint16) {
	t.Helper()
	var l net.Listener
	var p net.PacketConn
	err := n.inside(uid, func() (err error) {
		if protocol == hostport.TCP {
			l, err = net.Listen("tcp4", ":0")
		} else {
			p, err = net.ListenPacket("udp4", ":0")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	if l != nil {
		t.Cleanup(func() { _ = l.Close() })
		wg.Go(func() { // ends with the listener; waited for in the cleanup
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				_, _ = fmt.Fprintln(c, hostOf(c.RemoteAddr()))
				_ = c.Close()
			}
		})
		return portOf(l.Addr())
	}
	t.Cleanup(func() { _ = p.Close() })
	wg.Go(func() { // ends with the socket; waited for in the cleanup
		buffer := make([]byte, 16)
		for _, from, err := p.ReadFrom(buffer); err == nil; _, from, err = p.ReadFrom(buffer) {
			_, _ = p.WriteTo([]byte(hostOf(from)+"\n"), from)
		}
	})
	return portOf(p.LocalAddr())
}

func hostOf(a net.Addr) string { return netip.MustParseAddrPort(a.String()).Addr().String() }
func portOf(a net.Addr) uint16 { return netip.MustParseAddrPort(a.String()).Port() }

// NET-6: a client of udp that never changes its port is answered by somebody else as soon
// as the one that it had is not behind the service any more, though that one runs on.
func TestBalance_NET6_UDPLeavesWhoIsNotReady(t *testing.T) {
	n := newNode(t, "10.203.3.0/24", "10.203.160.0/20")
	one, two, client := n.attach(t), n.attach(t), n.attach(t)
	service := front("10.203.160.1", hostport.UDP, 80)
	set(t, n, map[Front]Service{service: {Backends: at(one)}})
	var c net.Conn
	err := n.inside(client.uid, func() (err error) {
		c, err = net.Dial("udp4", netip.AddrPortFrom(service.Address, service.Port).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i, want := range []sandbox{one, two, one, two} {
		set(t, n, map[Front]Service{service: {Backends: at(want)}})
		if who, err := talk(c); err != nil || who != want.addr.String() {
			t.Errorf("change %d: got %q, %v, want %s", i, who, err, want.addr)
		}
	}
}

// With affinity a client has the same backend, over changes that do not concern that and
// over a start of the node's process, until that is gone.
func TestBalance_AffinityHoldsUntilTheBackendIsGone(t *testing.T) {
	n := newNode(t, "10.203.4.0/24", "10.203.176.0/20")
	one, two, three, client := n.attach(t), n.attach(t), n.attach(t), n.attach(t)
	service := front("10.203.176.1", hostport.TCP, 80)
	with := func(all ...sandbox) map[Front]Service {
		return map[Front]Service{service: {Affinity: time.Hour, Backends: at(all...)}}
	}
	always := func(want string) {
		t.Helper()
		for range 24 {
			if who, err := n.ask(client.uid, service); err != nil || who != want {
				t.Fatalf("got %q, %v, want %s", who, err, want)
			}
		}
	}
	set(t, n, with(one, two))
	first, err := n.ask(client.uid, service)
	if err != nil {
		t.Fatal(err)
	}
	always(first)
	set(t, n, with(one, two, three))
	always(first)
	n.Balancer = New(n.cfg, n.log)
	set(t, n, with(one, two, three))
	always(first)
	stays := one
	if first == one.addr.String() {
		stays = two
	}
	set(t, n, with(stays))
	always(stays.addr.String())
}

// NET-4: what others take away, change or add is as it should be after the next look, and
// a start or a look at what is whole writes nothing.
func TestBalance_NET4_MendsWhatOthersChange(t *testing.T) {
	n := newNode(t, "10.203.5.0/24", "10.203.192.0/20")
	one, two, client := n.attach(t), n.attach(t), n.attach(t)
	service, other := front("10.203.192.1", hostport.TCP, 80), front("10.203.192.2", hostport.TCP, 80)
	port := onNode("", hostport.TCP, 30087)
	want := map[Front]Service{service: {Backends: at(one, two)}, other: {Affinity: time.Minute, Backends: at(two)}, port: {Backends: at(one)}}
	set(t, n, want)
	places := prefixPlaces + service.name()
	for name, harm := range map[string]func(c *nftables.Conn) error{
		"nothing": nil,
		"flushed": func(c *nftables.Conn) error { c.DelTable(n.table()); return nil },
		"emptied": func(c *nftables.Conn) error { c.FlushSet(setOf(n.table(), places)); return nil },
		"led elsewhere": func(c *nftables.Conn) error {
			s := setOf(n.table(), places)
			value := netip.AddrPortFrom(n.cfg.Gateway, 22)
			return errors.Join(c.SetDeleteElements(s, []nftables.SetElement{{Key: []byte(placeKey(0))}}),
				c.SetAddElements(s, []nftables.SetElement{{Key: []byte(placeKey(0)), Val: []byte(backendValue(value))}}))
		},
		"a rule gone": func(c *nftables.Conn) error {
			c.FlushChain(&nftables.Chain{Table: n.table(), Name: prefixChain + service.name()})
			return nil
		},
		"a hook emptied": func(c *nftables.Conn) error {
			c.FlushChain(&nftables.Chain{Table: n.table(), Name: "forward"})
			return nil
		},
		"a node port gone": func(c *nftables.Conn) error { c.FlushSet(setOf(n.table(), mapNode)); return nil },
		"nothing held":     func(c *nftables.Conn) error { c.FlushSet(setOf(n.table(), setHeld)); return nil },
		"a stranger": func(c *nftables.Conn) error {
			return c.AddSet(setOf(n.table(), prefixPlaces+"tcp_192_0_2_1_80"), nil)
		},
		"routes gone": func(*nftables.Conn) error { return n.unroute() },
	} {
		if harm != nil {
			c, err := nft.Open()
			if err == nil {
				err = errors.Join(harm(c), c.Flush())
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if said, err := n.Mend(); err != nil || (said == "") != (harm == nil) {
			t.Errorf("%s: said %q, %v", name, said, err)
		}
		if said, err := n.Mend(); err != nil || said != "" {
			t.Errorf("%s: the second look said %q, %v, want nothing", name, said, err)
		}
		n.met(t, client.uid, service, one, two)
		n.met(t, "", other, two)
		n.met(t, "", toward("127.0.0.1", port), one)
	}
	again := New(n.cfg, n.log)
	kernel, err := read(n.table())
	if err != nil {
		t.Fatal(err)
	}
	again.parts = n.parts
	if d := diff(kernel, func() objects { o := render(n.parts); o.chains = kernel.chains; return o }()); !d.empty() {
		t.Errorf("a start finds differences: %s", d)
	}
	if err := again.Set(nil); err != nil {
		t.Fatal(err)
	}
	if kernel, err = read(n.table()); err != nil || len(kernel.chains) > 0 {
		t.Errorf("without services there are chains %v, %v", kernel.chains, err)
	}
}

// thousands are a thousand services, one of them, which is returned too, with a thousand
// backends in subnet and each other with those behind.
func thousands(t testing.TB, subnet, prefix string, behind ...sandbox) (want map[Front]Service, large Front) {
	t.Helper()
	const many = 1000
	want = map[Front]Service{}
	address := netip.MustParsePrefix(prefix).Addr().Next()
	large = Front{Address: address, Protocol: hostport.TCP, Port: 80}
	for range many {
		want[Front{Address: address, Protocol: hostport.TCP, Port: 80}] = Service{Backends: at(behind...)}
		address = address.Next()
	}
	backends := []netip.AddrPort{}
	for addr := netip.MustParsePrefix(subnet).Addr().Next(); len(backends) < many; addr = addr.Next() {
		backends = append(backends, netip.AddrPortFrom(addr, 80))
	}
	want[large] = Service{Backends: backends}
	return want, large
}

// A thousand services, one of them with a thousand backends, are written and changed in
// transactions that the kernel takes, and a change of one backend changes two elements.
func TestBalance_AThousandOfEach(t *testing.T) {
	n := newNode(t, "10.203.6.0/24", "10.203.208.0/20")
	one := n.attach(t)
	want, large := thousands(t, "10.204.0.0/16", "10.203.208.0/20", one)
	many := want[large].Backends
	set(t, n, want)
	if said, err := n.Mend(); err != nil || said != "" {
		t.Errorf("after it was written: %q, %v", said, err)
	}
	before := map[Front]Service{large: n.parts[large]}
	want[large] = Service{Backends: many[1:]}
	set(t, n, want)
	d := diff(render(before), render(map[Front]Service{large: n.parts[large]}))
	if size(d.add) > 1 || size(d.take) > 2 || len(d.newChains) != 1 {
		t.Errorf("one backend that goes changes %s: %v, %v", d, d.add, d.take)
	}
	if said, err := n.Mend(); err != nil || said != "" {
		t.Errorf("after the change: %q, %v", said, err)
	}
	last := front("10.203.211.232", hostport.TCP, 80)
	n.met(t, "", last, one)
}

// What one backend more or less costs among a thousand services and a thousand backends.
// The floor is what the kernel asks for a transaction that says again what is there.
func BenchmarkSet_OneBackendOfAThousand(b *testing.B) {
	n := newNode(b, "10.203.7.0/24", "10.203.224.0/20")
	want, large := thousands(b, "10.204.0.0/16", "10.203.224.0/20")
	many := want[large].Backends
	set(b, n, want)
	var ours, floor time.Duration
	rounds := 0
	for b.Loop() {
		want[large] = Service{Backends: many[rounds%2:]}
		began := time.Now()
		set(b, n, want)
		middle := time.Now()
		c, err := nft.Open()
		if err != nil {
			b.Fatal(err)
		}
		c.AddTable(n.table())
		if err := c.Flush(); err != nil {
			b.Fatal(err)
		}
		ours, floor, rounds = ours+middle.Sub(began), floor+time.Since(middle), rounds+1
	}
	b.ReportMetric(float64(ours.Microseconds())/float64(rounds)/1000, "ms/change")
	b.ReportMetric(float64(floor.Microseconds())/float64(rounds)/1000, "ms/floor")
	b.ReportMetric(float64(ours)/float64(floor), "ratio")
}
