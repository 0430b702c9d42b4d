package mem

import (
	"context"
	"slices"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/inventory"
)

var _ engine.Audit = (*Engine)(nil)

// Inventory implements engine.Audit.
func (e *Engine) Inventory(context.Context) ([]inventory.Object, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.deaf != nil {
		return nil, e.deaf
	}
	all := slices.Clone(e.litter)
	for uid, s := range e.sandboxes {
		all = append(all, s.inventory(uid)...)
	}
	return all, nil
}

func (s *sandbox) inventory(uid id.Sandbox) []inventory.Object {
	var all []inventory.Object
	add := func(there bool, kind inventory.Kind, name, container string) {
		if there {
			all = append(all, inventory.Object{Kind: kind, Name: name, UID: uid, Container: container})
		}
	}
	add(s.pinned, inventory.Namespace, uid.Lower(), "")
	add(s.remains, inventory.Folder, uid.Lower(), "")
	add(s.address.IsValid(), inventory.Interface, uid.Lower(), "")
	add(s.logs, inventory.Output, uid.Lower(), "")
	for key, c := range s.containers {
		add(true, inventory.Container, key, key)
		add(c.State == engine.Running, inventory.Task, key, key)
	}
	return all
}

// Parts implements engine.Audit.
func (e *Engine) Parts(s inventory.Stock) []inventory.Object {
	whole := &sandbox{pinned: true, remains: true}
	parts := whole.inventory(s.UID)
	if !s.HostNetwork {
		parts = append(parts, inventory.Object{Kind: inventory.Interface, Name: s.UID.Lower(), UID: s.UID})
	}
	for _, key := range s.Running {
		parts = append(parts,
			inventory.Object{Kind: inventory.Container, Name: key, UID: s.UID, Container: key},
			inventory.Object{Kind: inventory.Task, Name: key, UID: s.UID, Container: key})
	}
	return parts
}

// Reclaim implements engine.Audit.
func (e *Engine) Reclaim(_ context.Context, o inventory.Object) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.litter = slices.DeleteFunc(e.litter, func(l inventory.Object) bool { return l.Kind == o.Kind && l.Name == o.Name })
	return nil
}

// Mend implements engine.Audit.
func (e *Engine) Mend(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.litter = slices.DeleteFunc(e.litter, func(l inventory.Object) bool { return l.Kind == inventory.Network })
	return nil
}

// Version implements engine.Audit.
func (e *Engine) Version(context.Context) (string, error) { return "mem", nil }

// Litter leaves an object on the node that no step removes.
func (e *Engine) Litter(o inventory.Object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.litter = append(e.litter, o)
}
