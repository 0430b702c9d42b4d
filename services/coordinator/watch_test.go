package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
)

// watch collects what one watch sends.
type watch struct {
	t      *testing.T
	stream coordinatorv1.ResourceService_WatchResourcesClient
}

func (c client) watch(t *testing.T, req *coordinatorv1.WatchResourcesRequest) *watch {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	req.Instance = c.machine
	stream, err := c.WatchResources(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return &watch{t, stream}
}

// next is the next message in words.
func (w *watch) next() (text string, revision uint64) {
	w.t.Helper()
	msg, err := w.stream.Recv()
	if err != nil {
		w.t.Fatal(err)
	}
	switch e := msg.GetEvent().(type) {
	case *coordinatorv1.WatchResourcesResponse_Changed:
		return "changed " + e.Changed.GetMeta().GetName(), msg.GetRevision()
	case *coordinatorv1.WatchResourcesResponse_Deleted:
		return "deleted " + e.Deleted.GetMeta().GetName(), msg.GetRevision()
	case *coordinatorv1.WatchResourcesResponse_Synced:
		if e.Synced.GetIncarnation() == "" {
			w.t.Error("the marker names no incarnation")
		}
		return "synced", msg.GetRevision()
	}
	w.t.Fatalf("got %v, want an event", msg)
	return "", 0
}

// refused waits for the end of the watch, for that reason.
func (w *watch) refused(reason string) {
	w.t.Helper()
	for {
		msg, err := w.stream.Recv()
		if err == nil && msg.GetChanged().GetSandbox() == nil {
			continue // its own node may still be shown
		}
		if fault.Reason(err) != reason {
			w.t.Fatalf("got %v and %v, want an end with reason %s", msg, err, reason)
		}
		return
	}
}

func (w *watch) expect(want string) uint64 {
	w.t.Helper()
	got, revision := w.next()
	if got != want {
		w.t.Fatalf("got %q, want %q", got, want)
	}
	return revision
}

// ETC-3: a watcher that was cut off misses nothing, and is told where it would.
func TestWatch_ResumesWhereItWas(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin := r.operator()
	admin.create(t, disk("d1"))
	w := admin.watch(t, &coordinatorv1.WatchResourcesRequest{Kinds: []resourcev1.Kind{kindDisk}})
	if rev := w.expect("changed d1"); rev != 0 {
		t.Errorf("before the marker: got position %d, want 0", rev)
	}
	synced := w.expect("synced")
	admin.create(t, disk("d2"))
	seen := w.expect("changed d2")
	if seen <= synced {
		t.Errorf("got position %d after %d", seen, synced)
	}
	remove(t, admin, kindDisk, "d2")
	admin.create(t, disk("d3"))
	w.expect("deleted d2")
	w.expect("changed d3")
	again := admin.watch(t, &coordinatorv1.WatchResourcesRequest{Kinds: []resourcev1.Kind{kindDisk}, ResumeAfterRevision: seen})
	again.expect("deleted d2")
	again.expect("changed d3")
	caughtUp := again.expect("synced")
	if caughtUp <= seen {
		t.Errorf("marker of a resumed watch: got position %d, want more than %d", caughtUp, seen)
	}
	idle := admin.watch(t, &coordinatorv1.WatchResourcesRequest{Kinds: []resourcev1.Kind{kindDisk}, ResumeAfterRevision: caughtUp})
	idle.expect("synced")

	future := admin.watch(t, &coordinatorv1.WatchResourcesRequest{ResumeAfterRevision: 1 << 40})
	if _, err := future.stream.Recv(); !errors.Is(err, fault.Conflict) || fault.Reason(err) != "COMPACTED" {
		t.Errorf("revision of another history: got %v, want Conflict with reason COMPACTED", err)
	}
	r.kill()
	r.start()
	old := r.operator().watch(t, &coordinatorv1.WatchResourcesRequest{ResumeAfterRevision: synced})
	if _, err := old.stream.Recv(); !errors.Is(err, fault.Conflict) || fault.Reason(err) != "COMPACTED" {
		t.Errorf("older than a restarted coordinator: got %v, want Conflict with reason COMPACTED", err)
	}
}

func TestWatch_EndsWithUnavailableWhenTheCoordinatorStops(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.operator().watch(t, &coordinatorv1.WatchResourcesRequest{})
	w.expect("synced")
	if err := r.stop(); err != nil {
		t.Errorf("stop: got %v, want exit code 0", err)
	}
	if _, err := w.stream.Recv(); !errors.Is(err, fault.Unavailable) {
		t.Errorf("got %v, want Unavailable", err)
	}
}

func TestWatch_NodeSeesASandboxOnceItIsPlaced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin, n1, n2 := r.operator(), r.node1(), r.node2()
	join(t, n1, "n1")
	mine := n1.watch(t, &coordinatorv1.WatchResourcesRequest{Kinds: []resourcev1.Kind{kindSandbox}})
	mine.expect("synced")
	theirs := n2.watch(t, &coordinatorv1.WatchResourcesRequest{})
	theirs.expect("synced")
	made := admin.create(t, sandbox("web"))
	mine.expect("changed web")
	remove(t, admin, kindSandbox, "web")
	mine.expect("changed web")
	report(t, n1, sandboxStatus(made, 1, true))
	mine.expect("changed web")
	mine.expect("deleted web")
	join(t, n2, "n2") // the first that n2 sees is its own
	theirs.expect("changed n2")
}

func TestWatch_TellsWhatLeavesTheSelection(t *testing.T) {
	t.Parallel()
	admin := newRig(t).operator()
	d := disk("d1")
	d.Meta.Labels = map[string]string{"app": "a"}
	d = admin.create(t, d)
	w := admin.watch(t, &coordinatorv1.WatchResourcesRequest{LabelSelector: "app=a"})
	w.expect("changed d1")
	w.expect("synced")
	d.Meta.Labels = map[string]string{"app": "b"}
	if _, err := admin.UpdateResource(t.Context(), &coordinatorv1.UpdateResourceRequest{Resource: d}); err != nil {
		t.Fatal(err)
	}
	w.expect("deleted d1")
}

func renew(c client, id int64, instance string) (*coordinatorv1.RenewSessionResponse, error) {
	return c.RenewSession(context.Background(), &coordinatorv1.RenewSessionRequest{SessionId: id, Ttl: durationpb.New(5 * time.Second), Instance: instance})
}

// SEC-8: one node, one machine; and what is lost is told from what has left.
func TestSession_BelongsToOneMachine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin, n1 := r.operator(), r.node1()
	first, err := renew(n1, 0, "m1")
	if err != nil {
		t.Fatal(err)
	}
	for name, id := range map[string]int64{"its id": first.GetSessionId(), "no id": 0, "an older id": 12345} {
		again, err := renew(n1, id, "m1")
		if err != nil || again.GetSessionId() != first.GetSessionId() || again.GetNodeUid() != first.GetNodeUid() {
			t.Errorf("the same machine with %s: got %v and %v, want session %d", name, again, err, first.GetSessionId())
		}
	}
	if _, err := renew(n1, first.GetSessionId(), "m2"); !errors.Is(err, fault.Denied) || fault.Reason(err) != "DUPLICATE_NODE" {
		t.Errorf("another machine: got %v, want Denied with reason DUPLICATE_NODE", err)
	}
	if _, err := admin.DeleteResource(t.Context(), &coordinatorv1.DeleteResourceRequest{Kind: kindNode, Name: "n1"}); fault.Reason(err) != "IN_USE" {
		t.Errorf("delete of a connected node: got %v, want reason IN_USE", err)
	}
	before := admin.get(t, kindNode, "n1")
	if _, err := renew(n1, first.GetSessionId(), "m1"); err != nil {
		t.Fatal(err)
	}
	if after := admin.get(t, kindNode, "n1"); after.GetMeta().GetRevision() != before.GetMeta().GetRevision() {
		t.Error("a renewal wrote the node's record")
	}
	for range 2 {
		if _, err := n1.EndSession(t.Context(), &coordinatorv1.EndSessionRequest{SessionId: first.GetSessionId(), WorkloadsKept: true}); err != nil {
			t.Fatal(err)
		}
	}
	left := admin.get(t, kindNode, "n1").GetNode().GetPlacement()
	if left.GetSessionId() != 0 || left.GetLeftAt() == nil || !left.GetWorkloadsKept() || left.GetLostSince() != nil {
		t.Errorf("got %v, want left with its workloads kept, not lost", left)
	}
	second, err := renew(n1, first.GetSessionId(), "m2")
	if err != nil || second.GetSessionId() == first.GetSessionId() || second.GetNodeUid() != first.GetNodeUid() {
		t.Errorf("after leaving: got %v and %v, want another session of the same node", second, err)
	}
}

// A copy of a node's identity gets no records and writes none while the node has
// its session, also if it was there first.
func TestSession_ACopyOfTheNodeSeesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin, n1 := r.operator(), r.node1()
	impostor := n1.on("another-machine")
	early := impostor.watch(t, &coordinatorv1.WatchResourcesRequest{})
	early.expect("synced")
	join(t, n1, "n1")
	early.refused("DUPLICATE_NODE")
	impostor.watch(t, &coordinatorv1.WatchResourcesRequest{}).refused("DUPLICATE_NODE")
	web := admin.create(t, sandbox("web"))
	placed(t, admin, "web")
	_, err := impostor.UpdateResourceStatus(t.Context(), &coordinatorv1.UpdateResourceStatusRequest{
		Instance: impostor.machine, Resource: sandboxStatus(web, 1, false),
	})
	if fault.Reason(err) != "DUPLICATE_NODE" {
		t.Errorf("status from a copy: got %v, want reason DUPLICATE_NODE", err)
	}
	report(t, n1, sandboxStatus(web, 1, false))
	n1.watch(t, &coordinatorv1.WatchResourcesRequest{Kinds: []resourcev1.Kind{kindSandbox}}).expect("changed web")
}

// ETC-2, from the coordinator's side: only the end of the lease is loss.
func TestSession_IsLostWithItsLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n1 := r.node1()
	joined := join(t, n1, "n1")
	r.kill() // a restart of the coordinator is no loss
	r.start()
	admin := r.operator()
	n1 = r.node1()
	again, err := renew(n1, joined.GetSessionId(), "machine-n1")
	if err != nil || again.GetSessionId() != joined.GetSessionId() {
		t.Errorf("after a restart of the coordinator: got %v and %v, want session %d", again, err, joined.GetSessionId())
	}
	lost := eventually(t, "n1 is lost", func() *resourcev1.NodePlacement { return admin.get(t, kindNode, "n1").GetNode().GetPlacement() },
		func(p *resourcev1.NodePlacement) bool { return p.GetLostSince() != nil })
	if lost.GetSessionId() != 0 || lost.GetLeftAt() != nil || lost.GetRegisteredAt() == nil {
		t.Errorf("got %v, want lost, and registered as before", lost)
	}
	fresh, err := renew(n1, joined.GetSessionId(), "machine-n1")
	if err != nil || fresh.GetSessionId() == joined.GetSessionId() {
		t.Errorf("after the loss: got %v and %v, want another session", fresh, err)
	}
	if p := admin.get(t, kindNode, "n1").GetNode().GetPlacement(); p.GetLostSince() != nil || p.GetSessionId() != fresh.GetSessionId() {
		t.Errorf("got %v, want the new session and nothing lost", p)
	}
	// Until it has said so in this session it is not ready.
	admin.create(t, sandbox("web"))
	eventually(t, "web waits", func() *resourcev1.SandboxPlacement {
		return admin.get(t, kindSandbox, "web").GetSandbox().GetPlacement()
	},
		func(p *resourcev1.SandboxPlacement) bool { return strings.Contains(p.GetReason(), "1 not ready") })
	status := admin.get(t, kindNode, "n1")
	status.GetNode().GetStatus().Seq++
	report(t, n1, status)
	placed(t, admin, "web")
}

// SEC-8: a removed node is cut off at once, inherits nothing, and can be let in.
func TestSession_RemovedNodeIsCutOff(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin, n1 := r.operator(), r.node1()
	joined := join(t, n1, "n1")
	admin.create(t, sandbox("web"))
	placed(t, admin, "web")
	w := n1.watch(t, &coordinatorv1.WatchResourcesRequest{Kinds: []resourcev1.Kind{kindNode}})
	w.expect("changed n1")
	w.expect("synced")
	if _, err := n1.EndSession(t.Context(), &coordinatorv1.EndSessionRequest{SessionId: joined.GetSessionId()}); err != nil {
		t.Fatal(err)
	}
	w.expect("changed n1")
	remove(t, admin, kindNode, "n1")
	for {
		if _, err := w.stream.Recv(); err != nil {
			if !errors.Is(err, fault.Denied) {
				t.Errorf("its watch: got %v, want Denied", err)
			}
			break
		}
	}
	gone(t, admin, kindSandbox, "web")
	if _, err := renew(n1, 0, "m1"); !errors.Is(err, fault.Denied) || fault.Reason(err) != "NODE_REMOVED" {
		t.Errorf("its session: got %v, want Denied with reason NODE_REMOVED", err)
	}
	if err := n1.exists(t, kindNode, "n1"); !errors.Is(err, fault.Denied) {
		t.Errorf("its reads: got %v, want Denied", err)
	}
	admitted := admin.create(t, &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: kindNode, Name: "n1"}, Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{}},
	})
	back, err := renew(n1, 0, "m1")
	if err != nil || back.GetNodeUid() != admitted.GetMeta().GetUid() || back.GetNodeUid() == joined.GetNodeUid() {
		t.Errorf("after it was admitted: got %v and %v, want the uid %s", back, err, admitted.GetMeta().GetUid())
	}
}

// A burst is placed without overfilling anybody, and evenly.
func TestScheduler_PlacesABurstEvenly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin, n1, n2 := r.operator(), r.node1(), r.node2()
	join(t, n1, "n1")
	join(t, n2, "n2")
	for i := range 40 {
		admin.create(t, sandbox(fmt.Sprintf("s%02d", i)))
	}
	counts := map[string]int{}
	for i := range 40 {
		counts[placed(t, admin, fmt.Sprintf("s%02d", i)).GetSandbox().GetPlacement().GetNode()]++
	}
	if counts["n1"] != 20 || counts["n2"] != 20 {
		t.Errorf("got %v, want 20 each", counts)
	}
}
