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
	"sync"
	"sync/atomic"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/permit"

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
	// Folder of the host's durable data, where MarkTakenDown leaves its note. Empty
	// means that nobody does.
	Folder string
	// Rules say what sandboxes may ask of the node.
	Rules permit.Rules
	// BootHold is how long sandboxes of the cluster wait after a reboot.
	BootHold time.Duration
	// TidyPeriod is how often somebody looks for what is left over. 0 means
	// DefaultTidyPeriod.
	TidyPeriod time.Duration
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
	// Refusal says why no new sandbox is taken now, fault.Exhausted; nil while they are.
	// What was accepted goes on. A nil function refuses none.
	Refusal func() error
	// Secrets fetches values of secrets. Nil means that there are none to be had, and
	// what refers to some is left to the engine.
	Secrets Secrets
	// Note is told what happened to sandboxes, for people. Nil means that nobody is.
	Note func(events ...*sandboxhostv1.Event)
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
	owed    atomic.Uint64 // number of this start, while the journal does not have it
	started time.Duration // when Run began, on the boot clock; written before any keeper runs
	renewed atomic.Int64  // boot time of the node's last authority; 0 is none in this boot

	holds    atomic.Pointer[holds] // never nil; what is in it is not changed
	holdings sync.Mutex            // held over the change of holds, in the journal too
	told     *watch.Hub[struct{}, []*sandboxhostv1.Hold]

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
	if cfg.TidyPeriod == 0 {
		cfg.TidyPeriod = DefaultTidyPeriod
	}
	if cfg.Restart == (backoff.Policy{}) {
		cfg.Restart = backoff.Policy{Initial: 500 * time.Millisecond, Cap: 5 * time.Minute, Stable: time.Minute}
	}
	if deps.NotReady == nil {
		deps.NotReady = func(string) {}
	}
	if deps.Note == nil {
		deps.Note = func(...*sandboxhostv1.Event) {}
	}
	if deps.Refusal == nil {
		deps.Refusal = func() error { return nil }
	}
	h := &Host{
		cfg:     cfg,
		deps:    deps,
		hub:     watch.New[id.Sandbox, *sandboxhostv1.SandboxState](),
		births:  make(chan *keeper, 4*cfg.Limit),
		keepers: make(map[id.Sandbox]*keeper),
		names:   make(map[string]id.Sandbox),
		tombs:   make(map[id.Sandbox]*sandboxhostv1.Tombstone),
		told:    watch.New[struct{}, []*sandboxhostv1.Hold](),
	}
	h.setHolds(&holds{})
	return h
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
	keepers.Go(func() { h.keepTidy(ctx) }) // waited for above
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
