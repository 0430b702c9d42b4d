package host

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

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

// maxSpec bounds a spec as the coordinator does: it is kept with every container, and
// has to fit into the messages that show it.
const maxSpec = 256 << 10

// allowed checks what the node's configuration says about a wish, and how large it is.
func (h *Host) allowed(wish *sandboxhostv1.Wish) error {
	switch {
	case proto.Size(wish.GetSpec()) > maxSpec:
		return fault.New(fault.Invalid, "sandbox %s: its spec has %d bytes, at most %d are taken",
			wish.GetUid(), proto.Size(wish.GetSpec()), maxSpec)
	case wish.GetManager() == ManagerLocal && mountsDisks(wish):
		return fault.WithReason(fault.New(fault.Invalid,
			"sandbox %s: mounts a disk, which only the cluster can grant; create it at the coordinator", wish.GetUid()),
			"DISKS_NEED_CLUSTER")
	case wish.GetManager() == ManagerLocal && refersToSecrets(wish.GetSpec()):
		return fault.WithReason(fault.New(fault.Invalid,
			"sandbox %s: refers to a secret, which only the cluster has; create it at the coordinator", wish.GetUid()),
			"SECRETS_NEED_CLUSTER")
	}
	return h.cfg.Rules.Check(wish.GetUid(), wish.GetSpec())
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
	if err := h.deps.Refusal(); err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", uid, err)
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

// drop takes a keeper that ends, and what was shown of it, out of the maps at once, and
// leaves its tombstone there: who comes next under the same uid is not mistaken for it.
func (h *Host) drop(k *keeper, tomb *sandboxhostv1.Tombstone) {
	h.freeName(k)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.keepers, k.uid)
	if tomb != nil {
		h.tombs[k.uid] = tomb
	}
	if k.rec != nil {
		h.hub.Delete(k.uid, k.state())
	}
}
