package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"staddle.internal/e2e/bed"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// pinned is where the network namespace of a sandbox is pinned.
func pinned(b *bed.Bed, uid string) string {
	return filepath.Join(b.Paths.Run(), "sandboxhost", strings.ToLower(uid), "net")
}

// ipWithin runs ip in the network namespace of a sandbox.
func ipWithin(t *testing.T, b *bed.Bed, uid string, args ...string) string {
	t.Helper()
	return tool(t, "nsenter", append([]string{"--net=" + pinned(b, uid), "--", "ip"}, args...)...)
}

// NET-2: the ledger of addresses is lost while the runner is down, and ten come at
// once when it is back: no address is given out twice.
func TestNode_NET2_NoAddressTwiceAfterTheLedgerIsLost(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	s := settle(t, b, 5)
	b.KillRunner(supervisor, false)
	if err := os.Remove(filepath.Join(b.Paths.Var("sandboxhost"), "network.db")); err != nil {
		t.Fatal(err)
	}
	b.Start()
	b.WaitReady()
	uids := make([]string, 10)
	var wg sync.WaitGroup
	for i := range uids {
		wg.Go(func() { uids[i] = ensure(t, b, fmt.Sprintf("late%d", i), spec(always, probe("c", "sleep"))) }) // waited for below
	}
	wg.Wait()
	owner := map[string]string{}
	for _, uid := range append(uids, s.uids...) {
		address := await(t, b, uid, "running", running).GetAddresses()[0]
		if !strings.Contains(ipWithin(t, b, uid, "-br", "addr", "show", "eth0"), " "+address+"/") {
			t.Errorf("sandbox %s says that it has %s, and has not", uid, address)
		}
		if other, taken := owner[address]; taken {
			t.Errorf("sandboxes %s and %s both have %s", uid, other, address)
		}
		owner[address] = uid
	}
	s.others = uids
	s.same(t, b, "after the loss of the ledger")
}

// NET-2: ledger and bridge are lost while the runner is down, and one sandbox has taken the
// address of another: the node starts all the same, and every sandbox has an address that is
// its own and its name's.
func TestNode_NET2_TwoWithOneAddressHoldUpNobody(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	s := settle(t, b, 3)
	addressOf := func(uid string) string { return await(t, b, uid, "running", running).GetAddresses()[0] }
	keeps, thief := s.uids[0], s.uids[1]
	taken, third := addressOf(keeps), addressOf(s.uids[2])
	b.KillRunner(supervisor, false)
	ipWithin(t, b, thief, "addr", "flush", "dev", "eth0")
	ipWithin(t, b, thief, "addr", "add", taken+"/16", "dev", "eth0")
	tool(t, "ip", "-n", b.NS, "link", "del", "staddle0")
	if err := os.Remove(filepath.Join(b.Paths.Var("sandboxhost"), "network.db")); err != nil {
		t.Fatal(err)
	}
	b.Start()
	b.WaitReady()
	attached := func(s *resourcev1.SandboxStatus) bool { return running(s) && len(s.GetAddresses()) > 0 }
	for uid, want := range map[string]string{keeps: taken, s.uids[2]: third} {
		if got := await(t, b, uid, "attached", attached).GetAddresses()[0]; got != want {
			t.Errorf("sandbox %s has %s, had %s", uid, got, want)
		}
	}
	fresh := await(t, b, thief, "attached", attached).GetAddresses()[0]
	if fresh == taken || fresh == third || !strings.Contains(ipWithin(t, b, thief, "-br", "addr", "show", "eth0"), " "+fresh+"/") {
		t.Errorf("who took %s was given %s", taken, fresh)
	}
	names, err := os.ReadFile(filepath.Join(filepath.Dir(pinned(b, thief)), "etc", "hosts"))
	if err != nil || !strings.Contains(string(names), "\n"+fresh+"\t") || strings.Contains(string(names), taken) {
		t.Errorf("its names are %q, %v, want its own at %s", names, err, fresh)
	}
	if events := b.OK("events", "-o", "json"); !strings.Contains(events, "ADDRESS_LOST") {
		t.Errorf("no event tells of it: %s", events)
	}
	s.same(t, b, "after the loss of ledger and bridge")
}

// NET-8 and NET-3: new sandboxes follow the packet size of the underlay, also when it
// changes while the runner is up, and the largest packets and whole transfers pass it; the
// bridge keeps its hardware address.
func TestNode_NET8_PacketsFitTheUnderlay(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	show := func() string { return tool(t, "ip", "-n", b.NS, "-o", "link", "show", "staddle0") }
	hardware := func() string { return strings.Fields(show()[strings.Index(show(), "link/ether"):])[1] }
	want := hardware()
	tool(t, "ip", "-n", b.NS, "link", "add", "up0", "type", "veth", "peer", "name", "up1")
	neighbour := b.NS + "n"
	tool(t, "ip", "netns", "add", neighbour)
	t.Cleanup(func() { tool(t, "ip", "netns", "del", neighbour) })
	tool(t, "ip", "-n", b.NS, "link", "set", "up1", "netns", neighbour)
	tool(t, "ip", "-n", neighbour, "addr", "add", "192.0.2.1/24", "dev", "up1")
	tool(t, "ip", "-n", b.NS, "addr", "add", "192.0.2.10/24", "dev", "up0")
	for _, mtu := range []string{"1400", "9000", "1500"} {
		tool(t, "ip", "-n", b.NS, "link", "set", "up0", "mtu", mtu, "up")
		tool(t, "ip", "-n", neighbour, "link", "set", "up1", "mtu", mtu, "up")
		tool(t, "ip", "-n", b.NS, "route", "replace", "default", "via", "192.0.2.1")
		bed.Eventually(t, waitLong, "the bridge follows", func(context.Context) (bool, string) {
			now := show()
			return strings.Contains(now, " mtu "+mtu+" "), now
		})
		uid := ensure(t, b, "web"+mtu, spec(always, probe("c", "sleep")))
		await(t, b, uid, "running", running)
		if got := ipWithin(t, b, uid, "-o", "link", "show", "eth0"); !strings.Contains(got, " mtu "+mtu+" ") {
			t.Errorf("the underlay has %s, the sandbox %s", mtu, got)
		}
		passesWhole(t, pinned(b, uid), filepath.Join("/run/netns", neighbour), "192.0.2.1:7000", mtu)
		if got := hardware(); got != want {
			t.Errorf("the bridge has hardware address %s, had %s", got, want)
		}
		remove(t, b, uid)
	}
	tool(t, "ip", "-n", b.NS, "link", "del", "up0")
	settled(t, b)
}

// passesWhole sends from one network namespace to an address in another the largest packet of
// a size, which nobody may cut, and a long stream.
func passesWhole(t *testing.T, from, to, address, mtu string) {
	t.Helper()
	const headers = 20 + 8 // of IP and udp
	size, err := strconv.Atoi(mtu)
	must(t, err)
	stream := 20 << 20
	if os.Getenv("FULL_LENGTH") == "1" {
		stream = 200 << 20
	}
	var packets net.PacketConn
	var streams net.Listener
	must(t, bed.InNetwork(to, func() (err error) {
		if packets, err = net.ListenPacket("udp4", address); err == nil {
			streams, err = net.Listen("tcp4", address)
		}
		return err
	}))
	defer packets.Close()
	defer streams.Close()
	taken := make(chan int64, 1)
	go func() { // ends with the listener
		var n int64
		if c, err := streams.Accept(); err == nil {
			n, _ = io.Copy(io.Discard, c) // a part is seen by its size
			_ = c.Close()
		}
		taken <- n
	}()
	uncut := net.Dialer{Timeout: waitLong, Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO)
		}), err)
	}}
	must(t, bed.InNetwork(from, func() error {
		c, err := uncut.DialContext(t.Context(), "udp4", address)
		if err != nil {
			return err
		}
		_, err = c.Write(make([]byte, size-headers))
		_, tooLarge := c.Write(make([]byte, size-headers+1))
		if tooLarge == nil {
			err = errors.Join(err, fmt.Errorf("a packet of %d bytes is taken", size+1))
		}
		return errors.Join(err, c.Close())
	}))
	must(t, packets.SetReadDeadline(time.Now().Add(waitLong)))
	if n, _, err := packets.ReadFrom(make([]byte, 1<<16)); err != nil || n != size-headers {
		t.Errorf("underlay of %s: of the largest packet came %d bytes, %v", mtu, n, err)
	}
	must(t, bed.InNetwork(from, func() error {
		c, err := net.DialTimeout("tcp4", address, waitLong)
		if err != nil {
			return err
		}
		err = c.SetDeadline(time.Now().Add(waitLong))
		_, writeErr := c.Write(make([]byte, stream))
		return errors.Join(err, writeErr, c.Close())
	}))
	if n := <-taken; n != int64(stream) {
		t.Errorf("underlay of %s: %d of %d bytes came", mtu, n, stream)
	}
}

// NET-10: after a reboot every sandbox that is said to run has address, default route and
// loopback, and reaches the bridge and its neighbour.
func TestNode_NET10_WholeAfterAReboot(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	s := settle(t, b, 5)
	b.Reboot(supervisor, "00000000-0000-4000-8000-000000000002")
	b.Start()
	b.WaitReady()
	addresses := make([]string, len(s.uids))
	for i, uid := range s.uids {
		got := await(t, b, uid, "running again", func(s *resourcev1.SandboxStatus) bool {
			return running(s) && s.GetAttempt() == 2 && len(s.GetAddresses()) > 0
		})
		addresses[i] = got.GetAddresses()[0]
		if within := ipWithin(t, b, uid, "-br", "addr", "show"); !strings.Contains(within, " "+addresses[i]+"/") || !strings.Contains(within, " 127.0.0.1/") {
			t.Errorf("sandbox %s says that it has %s, and has %s", uid, addresses[i], within)
		}
		if routes := ipWithin(t, b, uid, "route"); !strings.Contains(routes, "default via 10.77.0.1 dev eth0") {
			t.Errorf("sandbox %s has the routes %s", uid, routes)
		}
	}
	for i, uid := range s.uids {
		bed.Eventually(t, waitLong, "it serves", outputIs(t, b, uid, "c", 2, "serving\n"))
		must(t, b.Connect(addresses[i]+":7000"))
	}
	for i, uid := range s.uids {
		next := addresses[(i+1)%len(addresses)]
		if err := b.ConnectsFrom(pinned(b, uid), "tcp", next+":7000"); err != nil {
			t.Errorf("sandbox %s reaches its neighbour %s: %v", uid, next, err)
		}
	}
	for _, uid := range s.uids {
		remove(t, b, uid)
	}
	settled(t, b)
}
