package network

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// pose gives the interface of a sandbox another address, as who may change his network can.
func (n *node) pose(t *testing.T, uid id.Sandbox, was, as netip.Addr) {
	t.Helper()
	ns, err := n.pins.OpenNet(uid)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	link, err := h.LinkByName(inside)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		h.AddrDel(link, &netlink.Addr{IPNet: ipNet(was, n.cfg.Subnet.Bits())}), // first: it would take the other along
		h.AddrAdd(link, &netlink.Addr{IPNet: ipNet(as, n.cfg.Subnet.Bits())}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if within, ok, err := n.addressWithin(uid); err != nil || !ok || within != as {
		t.Fatalf("it uses %s, %t, %v, want %s", within, ok, err, as)
	}
}

// lose takes the ledger away.
func (n *node) lose(t *testing.T) {
	t.Helper()
	if err := errors.Join(n.Close(), os.Remove(n.cfg.Ledger)); err != nil {
		t.Fatal(err)
	}
}

func (n *node) uses(t *testing.T, who string, uid id.Sandbox, want netip.Addr) {
	t.Helper()
	addr, whole, err := n.Address(uid)
	within, ok, errWithin := n.addressWithin(uid)
	if err := errors.Join(err, errWithin); err != nil || !whole || !ok || addr != want || within != want {
		t.Errorf("%s: has %s (whole %t) and uses %s (%t), %v, want %s", who, addr, whole, within, ok, err, want)
	}
}

// NET-2: the ledger is gone, and one has taken the address of another: what the bridge was told
// says whose it is, and who was first makes no difference.
func TestNetwork_NET2_TheBridgeKnowsWhoseAnAddressIs(t *testing.T) {
	n := newNode(t, "10.202.37.0/24")
	thief, own := n.attach(t)
	victim, addr := n.attach(t)
	other, third := n.attach(t)
	n.pose(t, thief, own, addr)
	n.lose(t)
	n.open(t)
	n.uses(t, "whose address was taken", victim, addr)
	n.uses(t, "a third", other, third)
	if got, _, err := n.Address(thief); err != nil || got != own {
		t.Errorf("who has taken it is noted with %s, %v, want its own %s", got, err, own)
	}
	if off, err := n.unattached(); err != nil || len(off) > 0 {
		t.Errorf("not attached: %v, %v", off, err)
	}
}

// NET-2: ledger and bridge are gone, and two use one address: the node starts, all others keep
// theirs, the later one loses its interface and is attached with an address of its own.
func TestNetwork_NET2_TwoWithOneAddressHoldUpNobody(t *testing.T) {
	n := newNode(t, "10.202.38.0/24")
	first, addr := n.attach(t)
	later, was := n.attach(t)
	other, third := n.attach(t)
	n.pose(t, later, was, addr)
	if err := netlink.LinkDel(mustLink(t, n.cfg.Bridge)); err != nil {
		t.Fatal(err)
	}
	n.lose(t)
	n.open(t)
	for who, uid := range map[string]id.Sandbox{"the first": first, "a third": other} {
		if _, err := n.Attach(t.Context(), uid, Wanted{}); err != nil { // it lacks its bridge
			t.Errorf("%s: %v", who, err)
		}
	}
	n.uses(t, "the first", first, addr)
	n.uses(t, "a third", other, third)
	if n.Holds(later) {
		t.Error("the later one has an address")
	}
	if _, whole, err := n.Address(later); err != nil || whole {
		t.Errorf("the later one is attached: %t, %v", whole, err)
	}
	fresh, err := n.Attach(t.Context(), later, Wanted{})
	if err != nil || fresh == addr || fresh == third {
		t.Fatalf("the later one was given %s, %v", fresh, err)
	}
	n.uses(t, "the later one", later, fresh)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	n.uses(t, "the later one, after another start", later, fresh)
}

// One note without sense, of whatever kind, holds up no node.
func TestNetwork_NotesWithoutSenseAreSkipped(t *testing.T) {
	n := newNode(t, "10.202.39.0/24")
	port := Port{Protocol: "tcp", Host: freeHostPort(t), Inside: 80}
	uid, addr, err := n.attachWith(t, port)
	if err != nil {
		t.Fatal(err)
	}
	other, theirs := n.attach(t)
	err = n.ledger.Update(func(tx journal.Tx) error {
		var errs []error
		for _, bucket := range []string{bucket, bucketPorts, bucketFreed} {
			errs = append(errs, tx.Put(bucket, "nobody", []byte("nothing")))
		}
		for _, bucket := range []string{bucket, bucketPorts} {
			errs = append(errs, tx.Put(bucket, string(uid), []byte("nothing")))
		}
		return errors.Join(append(errs, tx.Put(bucketFreed, "10.202.39.77", []byte(n.boot+" soon")))...)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	n.uses(t, "whose notes make no sense", uid, addr)
	n.uses(t, "another", other, theirs)
	if got := n.published(); len(got) != 1 || got[0] != (element{port: port, to: addr}) {
		t.Errorf("published are %v, want %v to %s", got, port, addr)
	}
}

// One namespace that cannot be looked into holds up no node: its note counts.
func TestNetwork_ANamespaceThatIsNoneHoldsUpNobody(t *testing.T) {
	n := newNode(t, "10.202.40.0/24")
	broken, addr := n.attach(t)
	other, theirs := n.attach(t)
	path := n.pins.Path(broken, namespace.Net)
	if err := unix.Mount(n.pins.Path(broken, namespace.UTS), path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.addressWithin(broken); err == nil {
		t.Fatal("it can be looked into")
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	n.uses(t, "another", other, theirs)
	if got, whole, err := n.Address(broken); err != nil || !whole || got != addr {
		t.Errorf("it has %s, whole %t, %v, want %s", got, whole, err, addr)
	}
}
