package target

import (
	"context"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/sandbox"
)

const kindSandbox = resourcev1.Kind_KIND_SANDBOX

// List returns all sandboxes of the cluster.
func (c *Cluster) List(ctx context.Context) ([]sandbox.Sandbox, error) {
	records, err := c.Records(ctx, kindSandbox, "")
	if err != nil {
		return nil, err
	}
	out := make([]sandbox.Sandbox, len(records))
	for i, r := range records {
		out[i] = sandbox.FromRecord(r)
	}
	return out, nil
}

// Find returns the sandbox that ref names.
func (c *Cluster) Find(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	r, err := c.Lookup(ctx, kindSandbox, ref)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return sandbox.FromRecord(r), nil
}

// Get returns a sandbox by its uid.
func (c *Cluster) Get(ctx context.Context, uid string) (sandbox.Sandbox, error) {
	r, err := c.ByUID(ctx, kindSandbox, uid)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return sandbox.FromRecord(r), nil
}

// Create writes a record for a new sandbox.
func (c *Cluster) Create(ctx context.Context, name string, labels map[string]string, spec *resourcev1.SandboxSpec) (sandbox.Sandbox, error) {
	r, err := c.CreateRecord(ctx, &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: kindSandbox, Name: name, Labels: labels},
		Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{Spec: spec}},
	})
	if err != nil {
		return sandbox.Sandbox{}, exit.Try(err, "staddle ps")
	}
	return sandbox.FromRecord(r), nil
}

// Update changes the spec of a sandbox by change, which is called again on the
// newest spec when somebody else was faster.
func (c *Cluster) Update(ctx context.Context, uid string, change func(*resourcev1.SandboxSpec)) (sandbox.Sandbox, error) {
	r, err := c.ByUID(ctx, kindSandbox, uid)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	r, err = c.UpdateRecord(ctx, r, func(r *resourcev1.Resource) error {
		change(r.GetSandbox().GetSpec())
		return nil
	})
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return sandbox.FromRecord(r), nil
}

// Remove marks the sandbox as being deleted. It does not wait for it to be gone.
func (c *Cluster) Remove(ctx context.Context, s sandbox.Sandbox, lost bool) error {
	if lost {
		return exit.BadUsage("remove sandbox %s: its record is here; --lost is for a node alone, with --node-socket", s.Name)
	}
	return c.DeleteRecord(ctx, s.Record.(*resourcev1.Resource)) //nolint:forcetypeassert // FromRecord put it there
}

// Forget does nothing: in a cluster the owner of the record does the last step.
func (c *Cluster) Forget(context.Context, sandbox.Sandbox, bool) error { return nil }

// Watch sends every sandbox, the mark, and changes until emit fails or the
// stream ends. An empty uid means all.
func (c *Cluster) Watch(ctx context.Context, uid string, emit func(sandbox.Event) error) error {
	return c.WatchRecords(ctx, kindSandbox, "", func(ch Change) error {
		if ch.Record == nil {
			return emit(sandbox.Event{})
		}
		if uid != "" && ch.Record.GetMeta().GetUid() != uid {
			return nil
		}
		s := sandbox.FromRecord(ch.Record)
		return emit(sandbox.Event{Sandbox: &s, Gone: ch.Gone})
	})
}
