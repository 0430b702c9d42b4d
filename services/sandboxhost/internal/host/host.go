// Package host keeps every accepted sandbox of this node as its spec says: it
// owns the wishes, the attempts and the exits, in its journal and in memory.
//
// A Host is a map of keepers. One keeper is one goroutine that owns one sandbox:
// it writes the wish down, observes, lets Next decide, lets the engine act, and
// observes again. Who asks for something hands the keeper a letter.
//
// It must never decide which sandboxes belong on this node, never touch a
// container but through the engine, and never take a failed question for an
// answer. In the trail it comes after internal/api and before internal/engine.
//
// Not yet: a container that is restarted alone inside a running sandbox. While
// clusteraccess, which keeps the node's authority, has not told it after a start of
// the host, disconnect policies count from that start.
package host

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Managers of wishes.
const (
	ManagerCluster = "cluster"
	ManagerLocal   = "local"
)

const (
	// DefaultLimit is how many sandboxes a node takes.
	DefaultLimit = 500
	// tombstoneLife is how long a removed uid is refused.
	tombstoneLife = 7 * 24 * time.Hour
	// localMemory is how long the last status of a removed sandbox of manager
	// local is kept for people who do not forget it themselves.
	localMemory = 10 * time.Minute
	// sweepPeriod is how often old notes are looked for.
	sweepPeriod = time.Minute
)

// Config is what a Host is told about its node.
type Config struct {
	// Node is its name.
	Node string
	// BootID is that of the running kernel.
	BootID string
	// HostNetwork allows sandboxes the node's own network.
	HostNetwork bool
	// SandboxNetwork is true when there is a network for sandboxes.
	SandboxNetwork bool
	// BootHold is how long sandboxes of the cluster wait after a reboot.
	BootHold time.Duration
	// Limit is how many sandboxes are taken. 0 means DefaultLimit.
	Limit int
	// Restart is the back-off between attempts. Zero means from 500 ms to 5
	// minutes, and from the start after a stable minute.
	Restart backoff.Policy
}

// notes is where facts are kept; a *journal.Journal.
type notes interface {
	Update(fn func(tx journal.Tx) error) error
	View(fn func(tx journal.Tx) error) error
}

// Deps is what a Host works with.
type Deps struct {
	// Engine makes the containers.
	Engine engine.Engine
	// Journal keeps the facts.
	Journal notes
	// Log gets one line per phase.
	Log *slog.Logger
	// Now is the time since boot, boottime.Now. It is a function since the kernel's
	// clock does not follow the fake time of a test.
	Now func() time.Duration
	// Disks returns the host paths of the disks granted to a sandbox, by name.
	// Nil means that none ever are. Whoever grants calls Look.
	Disks func(uid id.Sandbox) map[string]string
	// NotReady is told, until Run is ready, what it waits for.
	NotReady func(reason string)
}

// Host keeps the sandboxes of one node.
type Host struct {
	cfg  Config
	deps Deps
	hub  *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]

	// births hands new keepers to Run, which owns their goroutines. It has room
	// for more than the limit of sandboxes.
	births chan *keeper

	seqBase uint64        // of every status since this start; written before any keeper runs
	started time.Duration // when Run began, on the boot clock; written before any keeper runs
	renewed atomic.Int64  // boot time of the node's last authority; 0 is none in this boot

	mu      sync.Mutex // guards all below
	open    bool       // adoption is done and Run goes on
	keepers map[id.Sandbox]*keeper
	names   map[string]id.Sandbox // by manager/name, until torn down
	tombs   map[id.Sandbox]*sandboxhostv1.Tombstone
}

// New returns a host that does nothing before Run.
func New(cfg Config, deps Deps) *Host {
	if cfg.Limit == 0 {
		cfg.Limit = DefaultLimit
	}
	if cfg.Restart == (backoff.Policy{}) {
		cfg.Restart = backoff.Policy{Initial: 500 * time.Millisecond, Cap: 5 * time.Minute, Stable: time.Minute}
	}
	if deps.NotReady == nil {
		deps.NotReady = func(string) {}
	}
	return &Host{
		cfg:     cfg,
		deps:    deps,
		hub:     watch.New[id.Sandbox, *sandboxhostv1.SandboxState](),
		births:  make(chan *keeper, 4*cfg.Limit),
		keepers: make(map[id.Sandbox]*keeper),
		names:   make(map[string]id.Sandbox),
		tombs:   make(map[id.Sandbox]*sandboxhostv1.Tombstone),
	}
}

// Run adopts what is there, says ready, and keeps the sandboxes until ctx ends. It
// leaves all containers as they are.
func (h *Host) Run(ctx context.Context, ready func()) error {
	var keepers sync.WaitGroup
	defer keepers.Wait()
	defer h.close()
	if err := h.adopt(ctx); err != nil {
		return err
	}
	ready()
	sweep := time.NewTicker(sweepPeriod)
	defer sweep.Stop()
	for {
		select {
		case k := <-h.births:
			keepers.Go(func() { k.run(ctx) })
		case uid := <-h.deps.Engine.Changes():
			h.Look(uid)
		case <-sweep.C:
			h.sweep(time.Now())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (h *Host) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = false
}

// States is where the state of every sandbox can be read and watched.
func (h *Host) States() *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState] { return h.hub }

// Look makes the keeper of a sandbox observe again; an empty uid means all.
func (h *Host) Look(uid id.Sandbox) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k := h.keepers[uid]; k != nil {
		k.hint()
		return
	}
	if uid != "" {
		return
	}
	for _, k := range h.keepers {
		k.hint()
	}
}

// SetAuthority tells when the node's session was renewed last, as time since boot.
// It never goes back.
func (h *Host) SetAuthority(renewedAt time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.renewed.Load()
	if int64(renewedAt) <= before {
		return
	}
	h.renewed.Store(int64(renewedAt))
	for _, k := range h.keepers {
		// The first word may be older than the start, from which was counted
		// until now. Later ones matter only to those that were stopped.
		if before == 0 || k.cut.Load() {
			k.hint()
		}
	}
}

// Ensure accepts a wish. All rules of SandboxHostService.EnsureSandbox hold.
func (h *Host) Ensure(ctx context.Context, wish *sandboxhostv1.Wish) (*sandboxhostv1.SandboxState, error) {
	uid := id.Sandbox(wish.GetUid())
	if err := h.allowed(wish); err != nil {
		return nil, err
	}
	hash, err := engine.SpecHash(wish.GetSpec())
	if err != nil {
		return nil, err
	}
	k, err := h.keeperFor(uid, wish)
	if err != nil {
		return nil, err
	}
	return k.ask(ctx, letter{wish: wish, hash: hash})
}

// Remove ends a wish. All rules of SandboxHostService.RemoveSandbox hold.
func (h *Host) Remove(ctx context.Context, uid id.Sandbox, manager string) error {
	k, err := h.find(uid)
	switch {
	case err != nil:
		return err
	case k == nil:
		return h.bury(uid, manager)
	}
	_, err = k.ask(ctx, letter{remove: true, manager: manager})
	return err
}

// Forget drops a removed sandbox. All rules of SandboxHostService.ForgetSandbox
// hold.
func (h *Host) Forget(ctx context.Context, uid id.Sandbox, manager string) error {
	k, err := h.find(uid)
	if err != nil || k == nil {
		return err
	}
	_, err = k.ask(ctx, letter{forget: true, manager: manager})
	return err
}

// Get returns one sandbox, or fault.NotFound.
func (h *Host) Get(uid id.Sandbox) (*sandboxhostv1.SandboxState, error) {
	if _, err := h.find(uid); err != nil {
		return nil, err
	}
	state, ok := h.hub.Get(uid)
	if !ok {
		return nil, fault.New(fault.NotFound, "sandbox %s: is not on this node", uid)
	}
	return state, nil
}

// List returns all sandboxes, in no order.
func (h *Host) List() (map[id.Sandbox]*sandboxhostv1.SandboxState, error) {
	if _, err := h.find(""); err != nil {
		return nil, err
	}
	return h.hub.Snapshot(), nil
}

// allowed checks what the node's configuration says about a wish.
func (h *Host) allowed(wish *sandboxhostv1.Wish) error {
	onHost := hostNetwork(&sandboxhostv1.SandboxRecord{Wish: wish})
	switch {
	case wish.GetManager() == ManagerLocal && mountsDisks(wish):
		return fault.WithReason(fault.New(fault.Invalid,
			"sandbox %s: mounts a disk, which only the cluster can grant; create it at the coordinator", wish.GetUid()),
			"DISKS_NEED_CLUSTER")
	case onHost && !h.cfg.HostNetwork:
		return fault.WithReason(fault.New(fault.Denied,
			"sandbox %s: asks for the node's network, set allow_host_network in node.yaml to allow it", wish.GetUid()),
			"HOST_NETWORK_NOT_ALLOWED")
	case !onHost && !h.cfg.SandboxNetwork:
		return fault.WithReason(fault.New(fault.Denied,
			"sandbox %s: asks for a network of its own, node.yaml has network.disable set", wish.GetUid()),
			"SANDBOX_NETWORK_DISABLED")
	}
	return nil
}

func mountsDisks(wish *sandboxhostv1.Wish) bool {
	return slices.ContainsFunc(wish.GetSpec().GetContainers(), func(c *resourcev1.ContainerSpec) bool { return len(c.GetDisks()) > 0 })
}

var errNotOpen = fault.New(fault.Unavailable, "sandboxes of this node are not adopted yet, or it stops")

// find returns the keeper of a sandbox, or nil.
func (h *Host) find(uid id.Sandbox) (*keeper, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.open {
		return nil, errNotOpen
	}
	return h.keepers[uid], nil
}

// keeperFor returns the keeper of a sandbox, a new one if it may come.
func (h *Host) keeperFor(uid id.Sandbox, wish *sandboxhostv1.Wish) (*keeper, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.open {
		return nil, errNotOpen
	}
	if k := h.keepers[uid]; k != nil {
		return k, nil
	}
	if t := h.tombs[uid]; t != nil && time.Since(t.GetRemovedAt().AsTime()) < tombstoneLife {
		return nil, conflict("TOMBSTONE", "sandbox %s: was removed, its uid is not used again", uid)
	}
	if other, taken := h.names[fullName(wish)]; taken {
		return nil, conflict("NAME_TAKEN", "sandbox %s: the name %s belongs to sandbox %s", uid, wish.GetName(), other)
	}
	if len(h.names) >= h.cfg.Limit {
		return nil, fault.WithReason(fault.New(fault.Exhausted,
			"sandbox %s: this node has %d sandboxes and takes no more", uid, h.cfg.Limit), "NODE_FULL")
	}
	k := newKeeper(h, uid, fullName(wish))
	select {
	case h.births <- k:
	default:
		return nil, fault.New(fault.Unavailable, "sandbox %s: too many come at once", uid)
	}
	h.keepers[uid] = k
	h.names[k.name] = uid
	return k, nil
}

func fullName(wish *sandboxhostv1.Wish) string { return wish.GetManager() + "/" + wish.GetName() }

// freeName lets another sandbox have the name.
func (h *Host) freeName(k *keeper) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.names[k.name] == k.uid {
		delete(h.names, k.name)
	}
}

// drop takes a keeper that ends out of the map, and leaves its tombstone there.
func (h *Host) drop(k *keeper, tomb *sandboxhostv1.Tombstone) {
	h.freeName(k)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.keepers, k.uid)
	if tomb != nil {
		h.tombs[k.uid] = tomb
	}
}

// authority is when the node's session was renewed last, or when the host began
// while that is not known.
func (h *Host) authority() time.Duration {
	if renewed := h.renewed.Load(); renewed != 0 {
		return time.Duration(renewed)
	}
	return h.started
}

// quietSince is since when the cluster has had the time to name a sandbox and
// has not been in contact.
func (h *Host) quietSince() time.Duration { return max(h.started, h.authority()) }

func (h *Host) now() moment { return moment{Wall: time.Now(), Boot: h.deps.Now()} }

func (h *Host) log() *slog.Logger { return h.deps.Log }
