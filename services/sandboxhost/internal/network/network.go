// Package network owns the sandbox network of one node: the bridge, one address
// and one pair of virtual interfaces per sandbox, and the rules that let
// sandboxes out, keep strangers from them and them from the node.
//
// Addresses are noted in a ledger by the sandbox's uid, and are released by uid
// only. After a start the ledger is compared with what the pinned namespaces
// really use, so that no address is given out twice even if the ledger was lost.
// All rules lie in tables of nftables that are named after the bridge: one for what is
// routed, another where there is IPv6, and one for what comes over the wires of the sandboxes. What others have set up is
// never changed.
//
// It must never decide which sandbox should have a network, and never touch an
// interface or a table that it did not name. In the trail it is the step
// attach-network.
package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/logging"
)

// The ledger's own kind and version.
const (
	ledgerKind    = "sandbox-network"
	ledgerVersion = 1
	bucket        = "addresses"
)

// Config says which network a node has.
type Config struct {
	// Bridge is the name of the bridge.
	Bridge string
	// Subnet of the sandboxes; its first address is the bridge's.
	Subnet netip.Prefix
	// Subnet6 is their IPv6 network, at least as large; its first address is the bridge's.
	// The zero Prefix means that they have no IPv6.
	Subnet6 netip.Prefix
	// Routable are the IPv4 networks that know the way to the sandboxes: what is sent there
	// keeps its source.
	Routable []netip.Prefix
	// NoLocalNet means that nothing is published at loopback addresses of the node.
	NoLocalNet bool
	// Ledger is the file of addresses.
	Ledger string
	// Policy says what of the node, and of each other, they reach.
	Policy Policy
}

// Deps are what the network works with.
type Deps struct {
	// Log gets what was repaired.
	Log *slog.Logger
	// Namespaces finds the pinned namespaces.
	Namespaces Namespaces
	// Now is the time since boot. Nil means boottime.Now.
	Now func() time.Duration
}

// Namespaces finds the pinned network namespaces of sandboxes.
type Namespaces interface {
	// OpenNet opens the network namespace of a sandbox; fault.NotFound if there
	// is none.
	OpenNet(uid id.Sandbox) (*os.File, error)
	// Sandboxes lists those that may have one.
	Sandboxes() ([]id.Sandbox, error)
}

// Network is the sandbox network of one node.
type Network struct {
	cfg  Config
	log  *slog.Logger
	pins Namespaces
	now  func() time.Duration
	boot string // id of the running kernel

	writing sync.Mutex // held while the rules in the kernel are changed or compared

	mu     sync.Mutex // guards what follows
	ledger *journal.Journal
	byUID  map[id.Sandbox]netip.Addr
	byAddr map[netip.Addr]id.Sandbox
	ports  map[id.Sandbox][]Port
	// services have ports of the node, too, by their names.
	services map[string][]Port
	// mirrored are those that reach themselves by an address that is not their own.
	mirrored map[id.Sandbox]bool
	last     netip.Addr                   // given out last; the next one is looked for behind it
	freed    map[netip.Addr]time.Duration // since boot: not long ago, or not looked at since
	mtu      int
	bridge   int // index of the bridge
	// forwards6 says that this node began to pass IPv6 on.
	forwards6 bool
	ipv6Off   bool // on the bridge; false where it could not be switched off
	// noRedirects is false where sending them could not be switched off.
	noRedirects bool
	// localNet is what the bridge was told of loopback addresses; "" where it could not be.
	localNet string
	// joined are the sandboxes that may send, each with its group.
	joined map[id.Sandbox]string
	// made are the chains of our tables, as they were made.
	made   map[nftables.TableFamily]map[string]string
	noWire string // why there is no table of the bridge; "" if there is

	wireFamily nftables.TableFamily // of bridges
}

// New returns the network. It opens nothing.
func New(cfg Config, deps Deps) *Network {
	if deps.Now == nil {
		deps.Now = boottime.Now
	}
	return &Network{
		cfg: cfg, log: deps.Log, pins: deps.Namespaces, now: deps.Now, boot: bootID(),
		byUID: map[id.Sandbox]netip.Addr{}, byAddr: map[netip.Addr]id.Sandbox{}, freed: map[netip.Addr]time.Duration{},
		ports: map[id.Sandbox][]Port{}, services: map[string][]Port{}, mirrored: map[id.Sandbox]bool{}, joined: map[id.Sandbox]string{},
		wireFamily: nftables.TableFamilyBridge,
	}
}

// gateway is the address of the bridge.
func (n *Network) gateway() netip.Addr { return n.gatewayOf(layer4) }

// Open makes bridge and rules as they should be, and takes over every address in
// use. Safe to repeat; it must return before anything is attached.
func (n *Network) Open(ctx context.Context) error {
	if err := n.Load(); err != nil {
		return err
	}
	kernel, err := n.listPublished() // before the rules are made anew
	if err != nil {
		return err
	}
	if err := n.ready(); err != nil { // the rules in force stay until it is known of whom they are
		return err
	}
	return n.adopt(ctx, kernel)
}

// Close closes the ledger. Interfaces, addresses and rules stay.
func (n *Network) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ledger == nil {
		return nil
	}
	err := n.ledger.Close()
	n.ledger = nil
	return err
}

// While returns a context that ends with ctx, or when the ledger cannot be read any
// more. The caller calls stop.
func (n *Network) While(ctx context.Context) (inside context.Context, stop context.CancelFunc) {
	n.mu.Lock()
	ledger := n.ledger
	n.mu.Unlock()
	if ledger == nil { // a node without a network of its own
		return context.WithCancel(ctx)
	}
	return ledger.While(ctx)
}

// Load reads the ledger, for who wants nothing but to know or to take down. Open
// does it too.
func (n *Network) Load() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ledger != nil {
		return nil
	}
	j, _, err := journal.Open(journal.Options{Path: n.cfg.Ledger, Kind: ledgerKind, Version: ledgerVersion, Log: n.log})
	if err != nil {
		return fmt.Errorf("open ledger of addresses: %w", err)
	}
	err = j.View(func(tx journal.Tx) (err error) {
		if n.freed, err = loadFreed(tx, n.log, n.boot, n.now()); err != nil {
			return err
		}
		if n.forwards6, err = loadForwards6(tx, n.boot); err != nil {
			return err
		}
		if n.ports, err = loadPorts(tx, n.log); err != nil {
			return err
		}
		return tx.ForEach(bucket, func(key string, v []byte) error {
			uid, err := id.ParseSandbox(key)
			addr, addrErr := netip.ParseAddr(string(v))
			if err := errors.Join(err, addrErr); err != nil {
				skipped(n.log, bucket, key, err)
				return nil
			}
			n.byUID[uid], n.byAddr[addr] = addr, uid
			return nil
		})
	})
	if err != nil {
		return errors.Join(err, j.Close())
	}
	n.ledger = j
	return nil
}

// skipped tells of a note that makes no sense. It is as if it was not there: one note holds up
// no node, and what really is in use is looked for in any case.
func skipped(log *slog.Logger, bucket, key string, err error) {
	log.Warn("note in the ledger of addresses skipped", logging.Component(bucket+"/"+key), logging.Err(err))
}

// Wanted is what a sandbox is attached with.
type Wanted struct {
	// Group is the name of its network group; empty is DefaultGroup.
	Group string
	// Ports of the node lead to it.
	Ports []Port
}

// Attach gives a sandbox its address, and its interface in the pinned network
// namespace. Safe to repeat: an attachment that is whole is left alone, one that
// is not is made anew with the same address. It returns fault.Exhausted if no
// address is free, fault.Conflict if one of the ports of the node, of which each
// leads to it from then on, cannot be had, and fault.Denied
// (NETWORK_GROUPS_UNSUPPORTED) for a group on a node that cannot keep it apart.
func (n *Network) Attach(ctx context.Context, uid id.Sandbox, want Wanted) (netip.Addr, error) {
	if err := context.Cause(ctx); err != nil {
		return netip.Addr{}, err
	}
	group := cmp.Or(want.Group, DefaultGroup)
	if err := n.mayJoin(uid, group); err != nil {
		return netip.Addr{}, err
	}
	addr, err := n.claim(uid)
	if err != nil {
		return netip.Addr{}, err
	}
	whole, err := n.attached(uid)
	if err != nil || whole {
		return addr, err
	}
	if err := n.claimPorts(uid, want.Ports); err != nil {
		return netip.Addr{}, err
	}
	if err := n.publish(uid); err != nil {
		return netip.Addr{}, err
	}
	if err := n.join(uid, group); err != nil {
		return netip.Addr{}, err
	}
	if err := n.connect(uid, addr, group); err != nil {
		return netip.Addr{}, fmt.Errorf("attach sandbox %s to the network: %w", uid, err)
	}
	return addr, nil
}

// Address returns the address of a sandbox whose attachment is whole, and false
// if it has none, or only in part.
func (n *Network) Address(uid id.Sandbox) (netip.Addr, bool, error) {
	n.mu.Lock()
	addr, ok := n.byUID[uid]
	n.mu.Unlock()
	if !ok {
		return netip.Addr{}, false, nil
	}
	whole, err := n.attached(uid)
	return addr, whole, err
}

// AddressesOf are those of a sandbox whose attachment is whole: that of IPv4 and, where there is IPv6,
// the one that belongs to it. None if it has none, or only in part.
func (n *Network) AddressesOf(uid id.Sandbox) ([]netip.Addr, error) {
	addr, whole, err := n.Address(uid)
	if err != nil || !whole {
		return nil, err
	}
	if six := n.six(addr); six.IsValid() {
		return []netip.Addr{addr, six}, nil
	}
	return []netip.Addr{addr}, nil
}

// Holds says whether the ledger has an address for a sandbox.
func (n *Network) Holds(uid id.Sandbox) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.byUID[uid]
	return ok
}

// Sandboxes lists those that the ledger has an address for.
func (n *Network) Sandboxes() []id.Sandbox {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]id.Sandbox, 0, len(n.byUID))
	for uid := range n.byUID {
		all = append(all, uid)
	}
	return all
}

// Detach ends what leads to a sandbox, removes its interface and then frees its address
// and its ports. Its processes must be gone. Safe to repeat.
func (n *Network) Detach(uid id.Sandbox) error {
	if err := n.unpublish(uid); err != nil {
		return err
	}
	link, err := netlink.LinkByName(hostInterface(uid))
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !isGone(err) {
		return fmt.Errorf("remove interface of sandbox %s: %w", uid, err)
	}
	if err := n.leave(uid); err != nil { // nothing of it can be sent any more
		return err
	}
	n.mu.Lock()
	addr := n.byUID[uid]
	n.mu.Unlock()
	if err := n.part(addr); err != nil {
		return err
	}
	return n.free(uid)
}
