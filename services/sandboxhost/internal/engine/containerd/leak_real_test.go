package containerd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/vishvananda/netlink"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/logs"
	"staddle.internal/services/sandboxhost/internal/testruntime"
)

// inventory lists all that a node has on its machine and at its runtime.
func (n *node) inventory(t *testing.T) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	c := n.Client(t)
	var all []string
	add := func(kind string, names ...string) {
		for _, name := range names {
			all = append(all, kind+" "+name)
		}
	}
	containers, err := c.ContainerService().List(ctx)
	for _, r := range containers {
		add("container", r.ID)
	}
	records, recordErr := c.SandboxStore().List(ctx)
	for _, r := range records {
		add("record", r.ID)
	}
	walkErr := c.SnapshotService(snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindCommitted {
			add("snapshot", info.Name)
		}
		return nil
	})
	links, linkErr := netlink.LinkList()
	for _, l := range links {
		if b, err := netlink.LinkByName(n.cfg.Network.Bridge); err == nil && l.Attrs().MasterIndex == b.Attrs().Index {
			add("interface", l.Attrs().Name)
		}
	}
	if err := errors.Join(err, recordErr, walkErr, linkErr); err != nil {
		t.Fatal(err)
	}
	for range n.Shims(t) {
		add("shim", "of this node")
	}
	add("mount", testruntime.Mounts(t, n.Dir)...)
	for _, pattern := range []string{"n/run/sandboxhost/*", "n/var/sandboxhost/logs/*", "state/io.containerd.runtime.v2.task/*/[^.]*"} {
		// Hidden folders are containerd's own: it is killed while it removes one, and
		// never comes back to it.
		found, err := filepath.Glob(filepath.Join(n.Dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		add("folder", found...)
	}
	groups, err := n.engine.cgroups.Children("/" + n.cfg.CgroupParent)
	if err != nil {
		t.Fatal(err)
	}
	add("group", groups...)
	runc, err := os.ReadDir("/run/containerd/runc/" + n.cfg.Namespace)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, r := range runc {
		if uid, ok := sandboxOf(r.Name()); ok && n.mine[uid] {
			add("runc", r.Name())
		}
	}
	slices.Sort(all)
	return all
}

// noLeak waits until the inventory is what it was: a shim takes a moment to go.
func (n *node) noLeak(t *testing.T, before []string) {
	t.Helper()
	limit := time.NewTimer(waitLimit)
	defer limit.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		after := n.inventory(t)
		if slices.Equal(before, after) {
			return
		}
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("leaked; before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
		}
	}
}

// TestEngine_LIF2_LeaksNothingWhenKilled is field case LIF-2: containerd or the engine
// ends at a random moment of creating and removing.
func TestEngine_LIF2_LeaksNothingWhenKilled(t *testing.T) {
	n := newNode(t)
	ref := pushed(t)
	first := attempt(t, ref, prog("exit", "0"))
	n.mine[uidOf(first)] = true
	n.run(t, first)
	n.clear(t, uidOf(first))
	before := n.inventory(t)
	const rounds = 16
	for round := range rounds {
		a := attempt(t, ref, prog("sleep"), prog("print", "100"))
		n.mine[uidOf(a)] = true
		done := make(chan struct{})
		go func() {
			defer close(done)
			n.tryLife(t.Context(), a)
		}()
		<-time.After(time.Duration(rand.IntN(600)) * time.Millisecond)
		if round%2 == 0 {
			n.Kill(t)
			n.Up(t)
		} else {
			n.end()
			n.begin(t)
		}
		<-done
		n.settle(t, a)
		n.clear(t, uidOf(a))
	}
	n.noLeak(t, before)
}

// tryLife goes through a whole life; what fails on the way is the point.
func (n *node) tryLife(ctx context.Context, a engine.Attempt) {
	e := n.engine
	actions := []engine.Action{{Step: engine.StepImages}, {Step: engine.StepNamespaces}, {Step: engine.StepNetwork}}
	for _, c := range a.Wish.GetSpec().GetContainers() {
		actions = append(actions,
			engine.Action{Step: engine.StepCreate, Container: c.GetName()},
			engine.Action{Step: engine.StepStart, Container: c.GetName()})
	}
	for _, action := range actions {
		if err := e.Do(ctx, a, action); err != nil {
			return
		}
	}
	for _, c := range a.Wish.GetSpec().GetContainers() {
		key := engine.ContainerID(uidOf(a), c.GetName(), a.Number)
		if errors.Join(e.signal(ctx, key, 9), e.remove(ctx, key)) != nil {
			return
		}
	}
	if e.release(uidOf(a)) == nil {
		_ = e.logs.Remove(uidOf(a), logs.Name{})
	}
}

// settle demands that a sandbox that was cut off can still be made to run.
func (n *node) settle(t *testing.T, a engine.Attempt) {
	t.Helper()
	n.await(t, uidOf(a), "answered", func(engine.Observed) bool { return true })
	limit := time.Now().Add(waitLimit)
	for {
		err := n.resume(t.Context(), a)
		if err == nil {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("cannot be made to run: %v", err)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// resume does what is missing, as a keeper would.
func (n *node) resume(ctx context.Context, a engine.Attempt) error {
	for _, step := range []engine.Step{engine.StepImages, engine.StepNamespaces, engine.StepNetwork} {
		if err := n.engine.Do(ctx, a, engine.Action{Step: step}); err != nil {
			return err
		}
	}
	o, err := n.engine.Observe(ctx, uidOf(a))
	if err != nil {
		return err
	}
	for _, c := range a.Wish.GetSpec().GetContainers() {
		key := engine.ContainerID(uidOf(a), c.GetName(), a.Number)
		i := slices.IndexFunc(o.Containers, func(c engine.Container) bool { return c.ID == key })
		if i >= 0 && o.Containers[i].State != engine.Created {
			continue // it was started
		}
		if err := n.engine.Do(ctx, a, engine.Action{Step: engine.StepCreate, Container: c.GetName()}); err != nil {
			return err
		}
		if err := n.engine.Do(ctx, a, engine.Action{Step: engine.StepStart, Container: c.GetName()}); err != nil {
			return err
		}
	}
	return nil
}

// TestEngine_FailuresLeaveNothing is field case LIF-4 below the keeper: what
// cannot start says why, and can be removed.
func TestEngine_FailuresLeaveNothing(t *testing.T) {
	n := newNode(t)
	ref := pushed(t)
	first := attempt(t, ref, prog("exit", "0"))
	n.run(t, first)
	n.clear(t, uidOf(first))
	before := n.inventory(t)
	memory := int64(6 << 20)
	bad := map[string]struct {
		spec *resourcev1.ContainerSpec
		kind fault.Kind
	}{
		"no such program":  {&resourcev1.ContainerSpec{Command: []string{"/none"}}, fault.NotFound},
		"a folder":         {&resourcev1.ContainerSpec{Command: []string{"/etc"}}, fault.Invalid},
		"no such user":     {&resourcev1.ContainerSpec{User: "nobody"}, fault.Invalid},
		"disk not granted": {&resourcev1.ContainerSpec{Disks: []*resourcev1.DiskMount{{Disk: "data", Path: "/data"}}}, fault.Unavailable},
		"folder of another": {&resourcev1.ContainerSpec{WorkingDir: "/proc/self/fd/7",
			Limits: &resourcev1.ResourceLimits{MemoryLimitBytes: &memory}}, fault.Invalid},
	}
	for name, tt := range bad {
		a := attempt(t, ref, tt.spec)
		var err error
		for _, action := range []engine.Action{
			{Step: engine.StepImages}, {Step: engine.StepNamespaces}, {Step: engine.StepNetwork},
			{Step: engine.StepCreate, Container: "a"}, {Step: engine.StepStart, Container: "a"},
		} {
			if err = n.engine.Do(t.Context(), a, action); err != nil {
				break
			}
		}
		if !errors.Is(err, tt.kind) {
			t.Errorf("%s: got %v of kind %v, want %v", name, err, fault.KindOf(err), tt.kind)
		}
		n.clear(t, uidOf(a))
	}
	n.noLeak(t, before)
	if held := n.engine.network.Sandboxes(); len(held) != 0 {
		t.Errorf("addresses held: %v", fmt.Sprint(held))
	}
}
