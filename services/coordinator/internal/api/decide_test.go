package api

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
)

func sandbox(change func(*resourcev1.Resource)) *resourcev1.Resource {
	r := &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: record.Sandbox, Name: "web", Uid: "uid-1", Revision: 7, Generation: 3, Labels: map[string]string{"a": "1"}},
		Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{
			Spec: &resourcev1.SandboxSpec{
				Desired:    resourcev1.DesiredState_DESIRED_STATE_RUNNING,
				Containers: []*resourcev1.ContainerSpec{{Name: "main", Image: "i", Disks: []*resourcev1.DiskMount{{Disk: "d1", Path: "/d"}}}},
			},
			Placement: &resourcev1.SandboxPlacement{Node: "n1", NodeUid: "uid-n1"},
			Status:    &resourcev1.SandboxStatus{Seq: 4},
		}},
	}
	if change != nil {
		change(r)
	}
	return r
}

func TestUpdated(t *testing.T) {
	stop := func(r *resourcev1.Resource) {
		r.GetSandbox().GetSpec().Desired = resourcev1.DesiredState_DESIRED_STATE_STOPPED
	}
	for _, c := range []struct {
		name       string
		old, asked *resourcev1.Resource
		kind       fault.Kind
		reason     string
		generation uint64
	}{
		{"nothing new", sandbox(nil), sandbox(nil), 0, "", 3},
		{"nothing new, from an older revision", sandbox(nil), sandbox(func(r *resourcev1.Resource) { r.Meta.Revision = 5 }), 0, "", 3},
		{"a new spec", sandbox(nil), sandbox(stop), 0, "", 4},
		{"new labels alone", sandbox(nil), sandbox(func(r *resourcev1.Resource) { r.Meta.Labels = nil }), 0, "", 3},
		{"a new spec from an older revision", sandbox(nil), sandbox(func(r *resourcev1.Resource) { stop(r); r.Meta.Revision = 5 }), fault.Conflict, "REVISION", 0},
		{"a record on its way out", sandbox(func(r *resourcev1.Resource) { r.Meta.DeletingAt = timestamppb.Now() }), sandbox(stop), fault.Conflict, "BEING_DELETED", 0},
		{"another life of the name", sandbox(nil), sandbox(func(r *resourcev1.Resource) { r.Meta.Uid = "uid-0" }), fault.NotFound, "", 0},
		{"other disks", sandbox(nil), sandbox(func(r *resourcev1.Resource) { r.GetSandbox().GetSpec().GetContainers()[0].Disks = nil }), fault.Invalid, "", 0},
	} {
		before := proto.CloneOf(c.old)
		next, err := updated(c.old, c.asked)
		if fault.KindOf(err) != c.kind || fault.Reason(err) != c.reason {
			t.Errorf("%s: got %v, want kind %v and reason %q", c.name, err, c.kind, c.reason)
		}
		if err != nil {
			continue
		}
		if next.GetMeta().GetGeneration() != c.generation {
			t.Errorf("%s: got generation %d, want %d", c.name, next.GetMeta().GetGeneration(), c.generation)
		}
		if !proto.Equal(next.GetSandbox().GetPlacement(), before.GetSandbox().GetPlacement()) || !proto.Equal(next.GetSandbox().GetStatus(), before.GetSandbox().GetStatus()) {
			t.Errorf("%s: placement or status changed to %v", c.name, next)
		}
		if !proto.Equal(c.old, before) {
			t.Errorf("%s: the old record was changed in place", c.name)
		}
	}
}

func TestReported_RegistersOnlyInsideASession(t *testing.T) {
	said := &resourcev1.Resource{Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{Status: &resourcev1.NodeStatus{
		Seq: 1, Conditions: []*resourcev1.Condition{{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_TRUE}},
	}}}}
	for session, want := range map[int64]bool{0: false, 7: true} {
		old := &resourcev1.Resource{Meta: &resourcev1.Metadata{Kind: record.Node, Name: "n"}, Kind: &resourcev1.Resource_Node{
			Node: &resourcev1.Node{Placement: &resourcev1.NodePlacement{SessionId: session}},
		}}
		next, err := reported(old, said, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if got := next.GetNode().GetPlacement().GetRegisteredAt() != nil; got != want {
			t.Errorf("session %d: got registered %t, want %t", session, got, want)
		}
	}
}

func TestDeleted(t *testing.T) {
	diskOn := func(node, holder string) *resourcev1.Resource {
		return &resourcev1.Resource{Meta: &resourcev1.Metadata{Kind: record.Disk, Name: "d", Uid: "uid-d", Revision: 7}, Kind: &resourcev1.Resource_Disk{
			Disk: &resourcev1.Disk{Spec: &resourcev1.DiskSpec{}, Placement: &resourcev1.DiskPlacement{Node: node, Holder: holder}},
		}}
	}
	node := func(session int64) *resourcev1.Resource {
		return &resourcev1.Resource{Meta: &resourcev1.Metadata{Kind: record.Node, Name: "n"}, Kind: &resourcev1.Resource_Node{
			Node: &resourcev1.Node{Placement: &resourcev1.NodePlacement{SessionId: session}},
		}}
	}
	for _, c := range []struct {
		name   string
		old    *resourcev1.Resource
		req    *coordinatorv1.DeleteResourceRequest
		want   deletion
		reason string
	}{
		{"a placed sandbox", sandbox(nil), &coordinatorv1.DeleteResourceRequest{}, mark, ""},
		{"a sandbox nobody has", sandbox(func(r *resourcev1.Resource) { r.GetSandbox().Placement = nil }), &coordinatorv1.DeleteResourceRequest{}, removeNow, ""},
		{"a sandbox that waits for a node", sandbox(func(r *resourcev1.Resource) {
			r.GetSandbox().Placement = &resourcev1.SandboxPlacement{Reason: "there is no node"}
		}), &coordinatorv1.DeleteResourceRequest{}, removeNow, ""},
		{"marked before", sandbox(func(r *resourcev1.Resource) { r.Meta.DeletingAt = timestamppb.Now() }), &coordinatorv1.DeleteResourceRequest{Revision: 1}, keepMarked, ""},
		{"the right revision", sandbox(nil), &coordinatorv1.DeleteResourceRequest{Revision: 7, Uid: "uid-1"}, mark, ""},
		{"another revision", sandbox(nil), &coordinatorv1.DeleteResourceRequest{Revision: 6}, refused, "REVISION"},
		{"a held disk", diskOn("n1", "uid-s"), &coordinatorv1.DeleteResourceRequest{}, refused, "IN_USE"},
		{"a disk on a node", diskOn("n1", ""), &coordinatorv1.DeleteResourceRequest{}, mark, ""},
		{"a disk that was never made", diskOn("", ""), &coordinatorv1.DeleteResourceRequest{}, removeNow, ""},
		{"a connected node", node(3), &coordinatorv1.DeleteResourceRequest{}, refused, "IN_USE"},
		{"a node that is away", node(0), &coordinatorv1.DeleteResourceRequest{}, removeNow, ""},
	} {
		got, err := deleted(c.old, c.req)
		if got != c.want || fault.Reason(err) != c.reason || (err != nil) != (c.want == refused) {
			t.Errorf("%s: got %d and %v, want %d and reason %q", c.name, got, err, c.want, c.reason)
		}
	}
	if _, err := deleted(sandbox(nil), &coordinatorv1.DeleteResourceRequest{Uid: "uid-0"}); !errors.Is(err, fault.NotFound) {
		t.Errorf("another life of the name: got %v, want NotFound", err)
	}
}
