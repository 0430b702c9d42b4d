package dns

import (
	"context"
	"net/netip"
	"strings"
	"sync"

	"staddle.internal/kit/id"
	"staddle.internal/kit/watch"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// managerCluster made the sandboxes whose names count before those of people on the node.
const managerCluster = "cluster"

// entry is what is known of one sandbox.
type entry struct {
	name    string // lower case
	cluster bool
	// addresses at which it can be reached now; none while it does not run.
	addresses []netip.Addr
}

// entryOf reads a state: only what runs has an address that is worth telling.
func entryOf(s *sandboxhostv1.SandboxState) entry {
	e := entry{name: strings.ToLower(s.GetName()), cluster: s.GetManager() == managerCluster}
	if s.GetStatus().GetPhase() != resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING {
		return e
	}
	for _, text := range s.GetStatus().GetAddresses() {
		if addr, err := netip.ParseAddr(text); err == nil {
			e.addresses = append(e.addresses, addr)
		}
	}
	return e
}

// Names is what the sandboxes of this node are called, and where they are. One
// goroutine writes it, Follow; everybody reads.
type Names struct {
	known chan struct{} // closed by Adopted
	once  sync.Once

	mu     sync.RWMutex // guards what follows
	byUID  map[id.Sandbox]entry
	byName map[string]map[id.Sandbox]bool
	byAddr map[netip.Addr]id.Sandbox
}

// NewNames returns names of which nothing is known yet.
func NewNames() *Names {
	return &Names{
		known: make(chan struct{}),
		byUID: map[id.Sandbox]entry{}, byName: map[string]map[id.Sandbox]bool{}, byAddr: map[netip.Addr]id.Sandbox{},
	}
}

// Adopted says that from now on what is not known is not there.
func (n *Names) Adopted() { n.once.Do(func() { close(n.known) }) }

// wait returns true when it is known what there is, and false if ctx ends before.
func (n *Names) wait(ctx context.Context) bool {
	select {
	case <-n.known:
		return true
	default:
	}
	select {
	case <-n.known:
		return true
	case <-ctx.Done():
		return false
	}
}

// Follow writes what the keepers say, until ctx ends.
func (n *Names) Follow(ctx context.Context, states *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]) {
	for ctx.Err() == nil { // a reader that was too far behind begins anew
		seen := map[id.Sandbox]bool{}
		for ev := range states.Subscribe(ctx) {
			switch ev.Kind {
			case watch.Snapshot:
				seen[ev.Key] = true
				n.set(ev.Key, entryOf(ev.Value))
			case watch.Set:
				n.set(ev.Key, entryOf(ev.Value))
			case watch.Deleted:
				n.drop(ev.Key)
			case watch.Synced:
				n.keep(seen)
				seen = nil
			}
		}
	}
}

func (n *Names) set(uid id.Sandbox, e entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dropLocked(uid)
	n.byUID[uid] = e
	if n.byName[e.name] == nil {
		n.byName[e.name] = map[id.Sandbox]bool{}
	}
	n.byName[e.name][uid] = true
	for _, addr := range e.addresses {
		n.byAddr[addr] = uid
	}
}

func (n *Names) drop(uid id.Sandbox) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dropLocked(uid)
}

// keep drops all but those that were seen.
func (n *Names) keep(seen map[id.Sandbox]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid := range n.byUID {
		if !seen[uid] {
			n.dropLocked(uid)
		}
	}
}

func (n *Names) dropLocked(uid id.Sandbox) {
	e, ok := n.byUID[uid]
	if !ok {
		return
	}
	delete(n.byUID, uid)
	delete(n.byName[e.name], uid)
	if len(n.byName[e.name]) == 0 {
		delete(n.byName, e.name)
	}
	for _, addr := range e.addresses {
		if n.byAddr[addr] == uid {
			delete(n.byAddr, addr)
		}
	}
}

// addresses of the sandboxes of a name, and whether there is any. One of the cluster
// hides those that people made on the node.
func (n *Names) addresses(name string) (all []netip.Addr, known bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	uids := n.byName[name]
	cluster := false
	for uid := range uids {
		cluster = cluster || n.byUID[uid].cluster
	}
	for uid := range uids {
		if e := n.byUID[uid]; e.cluster == cluster {
			all = append(all, e.addresses...)
		}
	}
	return all, len(uids) > 0
}

// nameOf is the name of the sandbox that runs with an address, "" if none does.
func (n *Names) nameOf(addr netip.Addr) string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	uid, ok := n.byAddr[addr]
	if !ok {
		return ""
	}
	return n.byUID[uid].name
}
