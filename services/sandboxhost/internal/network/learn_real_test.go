package network

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"staddle.internal/kit/id"
)

func TestGoesOn_OnlyWhoWouldLearn(t *testing.T) {
	for _, tt := range []struct {
		attrs    netlink.LinkAttrs
		acceptRA string
		want     bool
	}{
		{netlink.LinkAttrs{Name: "eth1"}, "1", true},
		{netlink.LinkAttrs{Name: "eth1"}, "0", false},
		{netlink.LinkAttrs{Name: "eth1"}, "2", false},
		{netlink.LinkAttrs{Name: "eth1", MasterIndex: 7}, "1", false},
		{netlink.LinkAttrs{Name: "lo", Flags: net.FlagLoopback}, "1", false},
		{netlink.LinkAttrs{Name: hostInterface(id.NewSandbox())}, "1", false},
	} {
		if got := goesOn(&tt.attrs, tt.acceptRA); got != tt.want {
			t.Errorf("%s with %s: got %t", tt.attrs.Name, tt.acceptRA, got)
		}
	}
}

// A network card that is there, and one that comes, goes on learning its routers when the node
// passes IPv6 on; one that learns none does not begin. Where somebody else has it passed on, all
// stays as it is.
func TestNetwork_InterfacesGoOnLearning(t *testing.T) {
	n := newNode(t, "10.202.73.0/24")
	for path, text := range map[string]string{setting6("all", "forwarding"): "0", setting6("default", "accept_ra"): "1"} {
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, path, text)
		t.Cleanup(func() { mustWrite(t, path, string(before)) })
	}
	card(t, "sdr0", "1")
	card(t, "sdr1", "0")
	n.cfg.Subnet6 = subnet6
	reopen(t, n)
	awaitLearns(t, "sdr0", "2")
	awaitLearns(t, "sdr1", "0")

	for _, when := range []string{"at first", "after a restart"} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // waited for below
			defer close(ended)
			n.KeepLearning(ctx)
		}()
		card(t, "sdr2", "") // as the kernel makes it
		awaitLearns(t, "sdr2", "2")
		uid, _ := n.attach(t)
		mustWrite(t, setting6(hostInterface(uid), "accept_ra"), "1")
		card(t, "sdr3", "") // it is told after those before it
		awaitLearns(t, "sdr3", "2")
		if got := learns(t, hostInterface(uid)); got != "1" {
			t.Errorf("%s: an interface of a sandbox has %s", when, got)
		}
		cancel()
		<-ended
		remove(t, "sdr2", "sdr3")
		reopen(t, n)
	}

	// Somebody else has it passed on: a boot in which this node did not begin.
	n.boot = "another"
	card(t, "sdr4", "1")
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := n.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n.began6() || learns(t, "sdr4") != "1" {
		t.Errorf("it is passed on by another: began %t, and the card has %s", n.began6(), learns(t, "sdr4"))
	}
}

func reopen(t *testing.T, n *node) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
}

// card makes a pair of interfaces that learns its routers as told.
func card(t *testing.T, name, acceptRA string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "p"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, name) })
	if acceptRA != "" {
		mustWrite(t, setting6(name, "accept_ra"), acceptRA)
	}
}

func remove(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkDel(l)
		}
		if err != nil && !isGone(err) {
			t.Error(err)
		}
	}
}

func learns(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(setting6(name, "accept_ra"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

func awaitLearns(t *testing.T, name, want string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(5 * time.Second)
	for learns(t, name) != want {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: accept_ra is %s, want %s", name, learns(t, name), want)
		}
	}
}

func mustWrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.TrimSpace(text)), 0); err != nil {
		t.Fatal(err)
	}
}
