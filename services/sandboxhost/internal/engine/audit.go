package engine

import (
	"context"

	"staddle.internal/services/sandboxhost/internal/inventory"
)

// Audit is the part of an engine by which somebody finds out whether anything is
// missing or left over. What it says is compared with the notes by
// inventory.Compare.
type Audit interface {
	// Inventory lists every object on the node that carries our names, labels or
	// folders, of sandboxes that are known and of others. Objects of others are not
	// among them. What is shared by all sandboxes is listed only if something is
	// wrong with it. A part that cannot be listed is an error of the whole.
	Inventory(ctx context.Context) ([]inventory.Object, error)

	// Parts names what there must be of a sandbox whose containers run, as
	// Inventory lists it. It asks nobody.
	Parts(s inventory.Stock) []inventory.Object

	// Reclaim removes one object that is left over, so far as no Action does: what
	// Observe shows as part of a sandbox is left for the steps that remove it. Before
	// that it makes sure that no container needs it. Safe to repeat. It is called
	// as Do is: for one sandbox one at a time.
	Reclaim(ctx context.Context, o inventory.Object) error

	// Mend makes what all sandboxes share as it should be. Safe to repeat.
	Mend(ctx context.Context) error

	// Version of the runtime, for people.
	Version(ctx context.Context) (string, error)
}
