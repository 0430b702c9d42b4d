package enginetest

import (
	"slices"
	"testing"

	"staddle.internal/services/sandboxhost/internal/inventory"
)

// testInventory demands that all parts of a sandbox that runs are listed, and none of
// one that was removed.
func testInventory(t *testing.T, b *bench) {
	a := b.attempt(b.f.Sleep, b.f.Sleep)
	b.run(a)
	stock := inventory.Stock{
		UID: uidOf(a), Quiet: true, Stands: true, Runs: true, HostNetwork: !b.f.Network, Written: true,
		Containers: []string{containerID(a, "a"), containerID(a, "b")}, Running: []string{containerID(a, "a"), containerID(a, "b")},
	}
	found := b.inventory()
	for _, part := range b.e.Parts(stock) {
		if !slices.ContainsFunc(found, func(o inventory.Object) bool { return o.Kind == part.Kind && o.Name == part.Name }) {
			t.Errorf("%s %s is not listed", part.Kind, part.Name)
		}
	}
	for _, o := range found {
		if o.UID == "" {
			t.Errorf("%s %s is listed as of nobody", o.Kind, o.Name)
		}
	}
	b.clear(a)
	for _, o := range b.inventory() {
		t.Errorf("listed after the removal: %s %s", o.Kind, o.Name)
	}
}

func (b *bench) inventory() []inventory.Object {
	b.t.Helper()
	found, err := b.e.Inventory(b.ctx)
	if err != nil {
		b.t.Fatalf("take inventory: %v", err)
	}
	return found
}
