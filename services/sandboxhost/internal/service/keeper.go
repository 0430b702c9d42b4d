// Package service keeps the services of this node: it owns their wishes, in the journal
// and in memory, gives each its virtual address, and has the kernel lead to the sandboxes
// that are ready at any moment.
//
// Which sandboxes these are, and what leads where, are pure functions (plan). It must never
// act before the sandboxes of the node are adopted: what is not known yet would look like
// nobody. In the trail it stands beside package host, between its states and package balance.
package service

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/balance"
	"staddle.internal/services/sandboxhost/internal/network"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// bucket of the journal has a wish per uid.
	bucket = "services"
	// limit is how many services a node takes: as many as ports that a thousand services
	// of a cluster have, twice.
	limit = 2000
	// mendPeriod is how often the kernel is compared with what should be there.
	mendPeriod = 10 * time.Second
	// retryPeriod is the wait after the kernel could not be told.
	retryPeriod = time.Second
)

// Config says what services a node has.
type Config struct {
	// Prefixes are the networks of virtual addresses. None means no services.
	Prefixes []netip.Prefix
	// Subnet of the sandboxes: others are behind no service.
	Subnet netip.Prefix
}

// Deps are what services are made with.
type Deps struct {
	// Journal keeps the wishes.
	Journal notes
	// States are the sandboxes of the node.
	States *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]
	// Balancer leads to them.
	Balancer balancer
	// Reflect lets a sandbox reach itself.
	Reflect func(id.Sandbox) error
	// Ports is where ports of the node are claimed; a *network.Network.
	Ports ports
	// Log gets what changes and what fails.
	Log *slog.Logger
}

type notes interface {
	Update(fn func(tx journal.Tx) error) error
	View(fn func(tx journal.Tx) error) error
}

type balancer interface {
	Set(want map[balance.Front]balance.Service) error
	Mend() (string, error)
}

type ports interface {
	ClaimForService(name string, ports []network.Port) error
	HoldForService(name string, ports []network.Port)
}

// Keeper keeps the services.
type Keeper struct {
	cfg  Config
	deps Deps

	mu       sync.Mutex // guards what follows, and is held while the kernel is told
	open     bool
	wishes   map[string]*sandboxhostv1.ServiceWish // by uid
	members  map[id.Sandbox]member                 // all that run
	mirrored map[id.Sandbox]bool
	trouble  error // the kernel could not be told

	troubled chan struct{} // to mend: there is trouble
}

// New returns a keeper that refuses until Run.
func New(cfg Config, deps Deps) *Keeper {
	return &Keeper{
		cfg: cfg, deps: deps,
		wishes: map[string]*sandboxhostv1.ServiceWish{}, members: map[id.Sandbox]member{}, mirrored: map[id.Sandbox]bool{},
		troubled: make(chan struct{}, 1),
	}
}

// Load reads the wishes, so that names are known from then on, takes their ports of the
// node before a sandbox does, and waits until ctx ends.
func (k *Keeper) Load(ctx context.Context, ready func()) error {
	if err := k.load(); err != nil {
		return fmt.Errorf("read wishes for services: %w", err)
	}
	ready()
	<-ctx.Done()
	return context.Cause(ctx)
}

// Run follows the sandboxes until ctx ends. The wishes must be loaded, and the sandboxes
// adopted. What leads to them stays in the kernel.
func (k *Keeper) Run(ctx context.Context, ready func()) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { k.mend(ctx) }) // ends with ctx
	for ctx.Err() == nil {        // a reader that was too far behind begins anew
		k.follow(ctx, ready)
	}
	return context.Cause(ctx)
}

func (k *Keeper) load() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.deps.Journal.View(func(tx journal.Tx) error {
		return journal.ForEachProto(tx, bucket, func(uid string, w *sandboxhostv1.ServiceWish) error {
			k.wishes[uid] = w
			k.deps.Ports.HoldForService(w.GetName(), nodePorts(w))
			return nil
		})
	})
}

// follow takes over what the keepers of sandboxes say.
func (k *Keeper) follow(ctx context.Context, ready func()) {
	seen := map[id.Sandbox]member{}
	for ev := range k.deps.States.Subscribe(ctx) {
		switch ev.Kind {
		case watch.Snapshot:
			seen[ev.Key] = k.memberOf(ev.Value)
		case watch.Synced:
			k.change(func() bool {
				k.members, k.open = seen, true
				return true
			})
			ready()
		case watch.Set:
			m := k.memberOf(ev.Value)
			k.change(func() bool {
				was := k.members[ev.Key]
				k.members[ev.Key] = m
				return !was.equal(m)
			})
		case watch.Deleted:
			k.change(func() bool {
				_, was := k.members[ev.Key]
				delete(k.members, ev.Key)
				delete(k.mirrored, ev.Key)
				return was
			})
		}
	}
}

// change tells the kernel if something has changed that it is about.
func (k *Keeper) change(what func() bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if what() {
		k.tell()
	}
}

// tell makes the kernel lead to who is ready now.
func (k *Keeper) tell() {
	fronts, behind := plan(k.wishes, k.members)
	for uid := range behind {
		if k.mirrored[uid] {
			continue
		}
		if err := k.deps.Reflect(uid); err != nil {
			k.deps.Log.Warn("sandbox does not reach itself by its services", uid.Attr(), logging.Err(err))
			continue
		}
		k.mirrored[uid] = true
	}
	err := k.deps.Balancer.Set(fronts)
	if err != nil && (k.trouble == nil || k.trouble.Error() != err.Error()) {
		k.deps.Log.Warn("services not brought up to date", logging.Err(err))
	}
	k.trouble = err
	if err != nil {
		select {
		case k.troubled <- struct{}{}:
		default: // it is known
		}
	}
}

// mend compares the kernel with what should be there, and tries again what failed.
func (k *Keeper) mend(ctx context.Context) {
	compare := time.NewTicker(mendPeriod)
	defer compare.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.troubled:
			if backoff.Wait(ctx, retryPeriod) != nil {
				return
			}
			k.change(func() bool { return k.trouble != nil })
		case <-compare.C:
			switch said, err := k.deps.Balancer.Mend(); {
			case err != nil:
				k.deps.Log.Warn("services not compared", logging.Err(err))
			case said != "":
				k.deps.Log.Warn("services mended", logging.Reason(said))
			}
		}
	}
}

var errNotOpen = fault.New(fault.Unavailable, "sandboxes of this node are not adopted yet")

// Ensure accepts a wish. All rules of ServiceHostService.EnsureService hold.
func (k *Keeper) Ensure(wish *sandboxhostv1.ServiceWish) (*sandboxhostv1.ServiceState, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.open {
		return nil, errNotOpen
	}
	wish = proto.CloneOf(wish)
	changed, err := judge(k.cfg, k.wishes, wish)
	if err != nil {
		return nil, err
	}
	if changed {
		if wish.AcceptedAt == nil {
			wish.AcceptedAt = timestamppb.Now()
		}
		if err := k.keep(wish); err != nil {
			return nil, err
		}
	}
	k.tell()
	if changed {
		k.deps.Ports.HoldForService(wish.GetName(), nodePorts(wish))
	}
	if k.trouble != nil {
		return nil, fault.New(fault.Unavailable, "service %s: is kept, and does not lead anywhere yet: %w", wish.GetName(), k.trouble)
	}
	return k.state(k.wishes[wish.GetUid()]), nil
}

// keep claims the ports of a wish and writes it down. Those that it had before are given
// back when nothing leads there any more.
func (k *Keeper) keep(wish *sandboxhostv1.ServiceWish) error {
	old := nodePorts(k.wishes[wish.GetUid()])
	if err := k.deps.Ports.ClaimForService(wish.GetName(), slices.Concat(old, nodePorts(wish))); err != nil {
		return err
	}
	err := k.deps.Journal.Update(func(tx journal.Tx) error { return journal.PutProto(tx, bucket, wish.GetUid(), wish) })
	if err != nil {
		k.deps.Ports.HoldForService(wish.GetName(), old)
		return fmt.Errorf("service %s: %w", wish.GetName(), err)
	}
	k.wishes[wish.GetUid()] = wish
	return nil
}

// Remove ends a wish. All rules of ServiceHostService.RemoveService hold.
func (k *Keeper) Remove(uid, manager string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.open {
		return errNotOpen
	}
	wish, ok := k.wishes[uid]
	if ok && wish.GetManager() != manager {
		return notYours(wish)
	}
	if ok {
		err := k.deps.Journal.Update(func(tx journal.Tx) error { return tx.Delete(bucket, uid) })
		if err != nil {
			return fmt.Errorf("remove service %s: %w", wish.GetName(), err)
		}
		delete(k.wishes, uid)
	}
	k.tell()
	if ok {
		k.deps.Ports.HoldForService(wish.GetName(), nil)
	}
	if k.trouble != nil {
		return fault.New(fault.Unavailable, "remove service %s: %w", uid, k.trouble)
	}
	return nil
}

// List returns all services, ordered by uid.
func (k *Keeper) List() ([]*sandboxhostv1.ServiceState, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.open {
		return nil, errNotOpen
	}
	all := make([]*sandboxhostv1.ServiceState, 0, len(k.wishes))
	for _, uid := range slices.Sorted(maps.Keys(k.wishes)) {
		all = append(all, k.state(k.wishes[uid]))
	}
	return all, nil
}

func (k *Keeper) state(wish *sandboxhostv1.ServiceWish) *sandboxhostv1.ServiceState {
	s := &sandboxhostv1.ServiceState{Wish: wish}
	if k.trouble != nil {
		s.Trouble = k.trouble.Error()
	}
	for uid, m := range behindOf(wish, k.members) {
		s.Endpoints = append(s.Endpoints, &sandboxhostv1.ServiceEndpoint{Uid: string(uid), Name: m.name, Address: m.addr.String()})
	}
	slices.SortFunc(s.Endpoints, func(a, b *sandboxhostv1.ServiceEndpoint) int {
		return netip.MustParseAddr(a.GetAddress()).Compare(netip.MustParseAddr(b.GetAddress()))
	})
	return s
}
