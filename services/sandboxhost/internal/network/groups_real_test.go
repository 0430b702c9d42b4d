package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/hostport"
)

// member attaches a sandbox of a group that answers on two ports of tcp and one of udp.
func (n *node) member(t *testing.T, group string, ports ...Port) (id.Sandbox, netip.Addr) {
	t.Helper()
	uid, addr, err := n.attachAs(t, Wanted{Group: group, Ports: ports})
	if err != nil {
		t.Fatal(err)
	}
	tellSource(t, n, uid, openPort)
	tellSource(t, n, uid, otherPort)
	if err := n.inNet(uid, func() error { echoUDP(t, fmt.Sprintf(":%d", openPort)); return nil }); err != nil {
		t.Fatal(err)
	}
	return uid, addr
}

// Ports of members.
const openPort, otherPort = 7000, 7001

// reach checks what a sandbox reaches of a member of a group: tcp, udp and ping.
func reach(t *testing.T, n *node, what string, from id.Sandbox, to netip.Addr, want bool) {
	t.Helper()
	tries(t, n, from, what, netip.AddrPortFrom(to, openPort).String(), want)
	if _, err := asks(n, from, netip.AddrPortFrom(to, openPort).String()); (err == nil) != want || !want && !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("%s, udp: got %v, want it reached: %t", what, err, want)
	}
	if err := ping(n, from, to.String()); (err == nil) != want {
		t.Errorf("%s, ping: got %v, want it reached: %t", what, err, want)
	}
}

// withFilterOfBridges runs a test with and without br_netfilter, which leads what passes a
// bridge through the rules of IPv4.
func withFilterOfBridges(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	const file = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	before, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		t.Log("the kernel has no br_netfilter: run without it alone")
		f(t)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.WriteFile(file, before, 0); err != nil {
			t.Error(err)
		}
	}()
	for _, on := range []string{"0", "1"} {
		if err := os.WriteFile(file, []byte(on), 0); err != nil {
			t.Fatal(err)
		}
		t.Run("br_netfilter "+on, f)
	}
}

// Sandboxes of one group reach each other; those of two do not, neither at their address nor
// by a port of the node that leads to them.
func TestNetwork_GroupsAreApart(t *testing.T) {
	withFilterOfBridges(t, func(t *testing.T) {
		n := newNode(t, "10.202.60.0/24")
		published := Port{Protocol: hostport.TCP, Host: freeHostPort(t), Inside: openPort}
		web, webAt := n.member(t, "web")
		_, web2At := n.member(t, "web")
		db, dbAt := n.member(t, "db-1", published)
		plain, plainAt := n.member(t, "")
		_, plain2At := n.member(t, DefaultGroup)
		at := fmt.Sprintf("%s:%d", n.gateway(), published.Host)
		tries(t, n, web, "a published port of another group", at, false)
		reach(t, n, "one of its group", web, web2At, true)
		reach(t, n, "one of the default group", plain, plain2At, true)
		tries(t, n, web, "itself", netip.AddrPortFrom(webAt, openPort).String(), true)
		for name, pair := range map[string]struct {
			from id.Sandbox
			to   netip.Addr
		}{"web to db": {web, dbAt}, "db to web": {db, webAt}, "db to default": {db, plainAt}, "default to db": {plain, dbAt}} {
			reach(t, n, name, pair.from, pair.to, false)
		}
		tries(t, n, db, "its own published port", at, true)
		tries(t, n, "", "a published port, for the node", at, true)
		tries(t, n, "", "the node itself", netip.AddrPortFrom(dbAt, openPort).String(), true)
		if got := refused(t, n, chainApart); got == 0 {
			t.Error("nothing was counted")
		}
		// The groups are known again without ledger and table.
		if err := errors.Join(n.Close(), os.Remove(n.cfg.Ledger), n.removeRules()); err != nil {
			t.Fatal(err)
		}
		n.open(t)
		reach(t, n, "web to db after a start", web, dbAt, false)
		reach(t, n, "one of its group after a start", web, web2At, true)
	})
}

// Rules open ports, or everything, in one direction.
func TestNetwork_GroupRules(t *testing.T) {
	n := newNode(t, "10.202.61.0/24")
	web, webAt := n.member(t, "web")
	db, dbAt := n.member(t, "db")
	watch, _ := n.member(t, "watch")
	plain, plainAt := n.member(t, "")
	other := netip.AddrPortFrom(dbAt, otherPort).String()
	n.with(t, Policy{Groups: []GroupRule{
		{From: "web", To: "db", Ports: []PortRange{{hostport.TCP, otherPort, otherPort}}},
		{From: "watch", To: AnyGroup},
		{From: AnyGroup, To: DefaultGroup},
	}})
	tries(t, n, web, "a port that is open", other, true)
	reach(t, n, "other ports of the same", web, dbAt, false)
	reach(t, n, "the other way", db, webAt, false)
	tries(t, n, plain, "a port that is open to another group", other, false)
	reach(t, n, "all for watch: db", watch, dbAt, true)
	reach(t, n, "all for watch: web", watch, webAt, true)
	reach(t, n, "default for all", db, plainAt, true)
	n.with(t, Policy{})
	tries(t, n, web, "a port that was open", other, false)
}

// Nothing is written anew for a sandbox more or less, but for the first and last of a group;
// and a group without members leaves nothing.
func TestNetwork_GroupsChangeElements(t *testing.T) {
	n := newNode(t, "10.202.62.0/24")
	n.member(t, "web")
	before := handles(t, n)
	uid, _ := n.attach(t)
	second, _, err := n.attachAs(t, Wanted{Group: "web"})
	if err != nil {
		t.Fatal(err)
	}
	n.leave(t, uid)
	n.leave(t, second)
	if after := handles(t, n); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("rules were %v, are %v", before, after)
	}
	rules, err := n.listRules(n.table())
	if err != nil {
		t.Fatal(err)
	}
	last, _, err := n.attachAs(t, Wanted{Group: "once"})
	if err != nil {
		t.Fatal(err)
	}
	n.leave(t, last)
	checkMended(t, n, rules)
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	sets, err := c.GetSets(n.table())
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range sets {
		if set.Name == ofGroup(prefixMembers, "once") {
			t.Errorf("set %s is left", set.Name)
		}
	}
}

// A sandbox that sends with the address of another is not heard, whether its frames go to the
// gateway or past it; and no neighbour believes that it has that address.
func TestNetwork_NobodySendsAsAnother(t *testing.T) {
	n := newNode(t, "10.202.63.0/24")
	forger, own := n.member(t, "web")
	victim, victimAt := n.member(t, "db")
	target, targetAt := n.member(t, "db")
	gateway, everybody := hardwareAddress(n.cfg.Bridge), net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	heard := hear(t, n, target)
	send := func(from id.Sandbox, ethernet uint16, frame []byte) {
		t.Helper()
		if err := n.inNet(from, func() error { return sendFrame(ethernet, frame) }); err != nil {
			t.Fatal(err)
		}
	}
	for _, as := range []struct {
		name     string
		from, to net.HardwareAddr
		source   netip.Addr
	}{
		{"its address, by the gateway", hardwareOf(own), gateway, victimAt},
		{"both its addresses, by the gateway", hardwareOf(victimAt), gateway, victimAt},
		{"its own, past the gateway", hardwareOf(own), hardwareOf(targetAt), own},
		{"both, past the gateway", hardwareOf(victimAt), hardwareOf(targetAt), victimAt},
		{"its own, to everybody", hardwareOf(own), everybody, own},
	} {
		send(forger, unix.ETH_P_IP, datagram(as.from, as.to, netip.AddrPortFrom(as.source, 9), netip.AddrPortFrom(targetAt, heardPort), as.name))
	}
	for _, to := range []net.HardwareAddr{everybody, hardwareOf(targetAt), gateway} { // "victimAt is at my address"
		send(forger, unix.ETH_P_ARP, arpReply(hardwareOf(own), to, victimAt, n.gateway()))
	}
	// What is sent last is heard last.
	send(victim, unix.ETH_P_IP, datagram(hardwareOf(victimAt), gateway, netip.AddrPortFrom(victimAt, 9), netip.AddrPortFrom(targetAt, heardPort), "end"))
	first(t, heard, "end")
	if err := talk(n, target, victim, victimAt); err != nil {
		t.Errorf("the one whose address was taken: %v", err)
	}
	for _, where := range []id.Sandbox{"", target} {
		err := n.inNet(where, func() error {
			neighbours, err := netlink.NeighList(0, netlink.FAMILY_V4)
			for _, found := range neighbours {
				if found.IP.Equal(victimAt.AsSlice()) && found.HardwareAddr.String() == hardwareOf(own).String() {
					return fmt.Errorf("in %q: %s", where, found.String())
				}
			}
			return err
		})
		if err != nil {
			t.Errorf("a neighbour believes the forger: %v", err)
		}
	}
}

// A kernel that cannot look at what passes a bridge keeps nobody apart: who asks for it is
// told so, and others have a network.
func TestNetwork_SaysWhereGroupsCannotBeApart(t *testing.T) {
	n := newNode(t, "10.202.64.0/24")
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	wire := n.wireTable()
	n.Network = New(n.cfg, n.deps(t))
	n.wireFamily = 99 // as one that this kernel does not know
	if err := n.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeTable(wire); err != nil {
			t.Error(err)
		}
	})
	n.member(t, "")
	uid, _, err := n.attachAs(t, Wanted{Group: "web"})
	if !errors.Is(err, fault.Denied) || fault.Reason(err) != reasonNoGroups {
		t.Errorf("got %v, want it denied with %s", err, reasonNoGroups)
	}
	if n.Holds(uid) {
		t.Error("it has an address")
	}
}
