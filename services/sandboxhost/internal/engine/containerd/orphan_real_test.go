package containerd

import (
	"slices"
	"testing"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/inventory"
)

// objectsOf lists what an inventory shows of one sandbox.
func (n *node) objectsOf(t *testing.T, uid id.Sandbox) []inventory.Object {
	t.Helper()
	all, err := n.engine.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(o inventory.Object) bool { return o.UID != uid })
}

// A sandbox whose container's record was taken away while the engine was: its task
// and shim live, its root filesystem is mounted, and nobody knows of it. All of it is
// found and can be removed, and the sandbox beside it goes on.
func TestEngine_LIF2_OrphanTaskIsReclaimed(t *testing.T) {
	n := newNode(t)
	beside, orphan := attempt(t, pushed(t), prog("sleep")), attempt(t, pushed(t), prog("sleep"))
	n.run(t, beside)
	n.run(t, orphan)
	uid := uidOf(orphan)
	before := n.await(t, uidOf(beside), "running", func(o engine.Observed) bool { return o.Containers[0].PID != 0 })
	shims := len(n.Shims(t))
	n.end()
	containerID := engine.ContainerID(uid, orphan.Wish.GetSpec().GetContainers()[0].GetName(), orphan.Number)
	if err := n.Client(t).ContainerService().Delete(t.Context(), containerID); err != nil {
		t.Fatal(err)
	}
	n.begin(t)
	found := n.objectsOf(t, uid)
	for _, kind := range []inventory.Kind{
		inventory.Task, inventory.Shim, inventory.StartRecord, inventory.Mount, inventory.TaskFolder, inventory.Cgroup, inventory.Namespace, inventory.Interface,
	} {
		if !slices.ContainsFunc(found, func(o inventory.Object) bool { return o.Kind == kind }) {
			t.Errorf("no %s among %v", kind, found)
		}
	}
	for range 3 { // as a fix does: what one round leaves another may remove
		for _, o := range n.objectsOf(t, uid) {
			if err := n.engine.Reclaim(t.Context(), o); err != nil {
				t.Logf("reclaim %s %s: %v", o.Kind, o.Name, err)
			}
		}
	}
	for _, step := range []engine.Step{engine.StepRelease, engine.StepLogs} {
		if err := n.engine.Do(t.Context(), orphan, engine.Action{Step: step}); err != nil {
			t.Errorf("%s: %v", step, err)
		}
	}
	if left := n.objectsOf(t, uid); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if got := len(n.Shims(t)); got != shims-1 {
		t.Errorf("%d shims, want %d", got, shims-1)
	}
	after := n.await(t, uidOf(beside), "running", func(o engine.Observed) bool { return len(o.Containers) == 1 })
	if after.Containers[0].PID != before.Containers[0].PID || after.Containers[0].State != engine.Running {
		t.Errorf("the one beside it: %+v, want %+v", after.Containers[0], before.Containers[0])
	}
	n.clear(t, uidOf(beside))
}
