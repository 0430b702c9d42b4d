package schedule

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/coordinator/internal/record"
)

// node is one that takes work; change makes it another.
func node(name string, change func(*record.Resource)) Candidate {
	r := &record.Resource{
		Meta: &resourcev1.Metadata{Kind: record.Node, Name: name, Uid: "uid-" + name, Labels: map[string]string{"zone": "a"}},
		Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{
			Spec:      &resourcev1.NodeSpec{},
			Placement: &resourcev1.NodePlacement{SessionId: 7, RegisteredAt: timestamppb.Now()},
			Status: &resourcev1.NodeStatus{
				Seq:        3,
				Conditions: []*resourcev1.Condition{{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_TRUE}},
				Capacity:   &resourcev1.NodeCapacity{MemoryBytes: 1 << 30, Sandboxes: 4},
			},
		}},
	}
	if change != nil {
		change(r)
	}
	return Candidate{Record: r}
}

// pressed makes a node run short of something.
func pressed(kind string) func(*record.Resource) {
	return func(r *record.Resource) {
		s := r.GetNode().GetStatus()
		s.Conditions = append(s.Conditions, &resourcev1.Condition{Type: kind, State: resourcev1.ConditionState_CONDITION_STATE_TRUE})
	}
}

func loaded(c Candidate, sandboxes, memory int64) Candidate {
	c.Load = Load{MemoryBytes: memory, Sandboxes: sandboxes}
	return c
}

func spec(memory int64) *resourcev1.SandboxSpec {
	c := &resourcev1.ContainerSpec{Name: "main", Image: "example.test/app:1"}
	if memory > 0 {
		c.Limits = &resourcev1.ResourceLimits{MemoryLimitBytes: proto.Int64(memory)}
	}
	return &resourcev1.SandboxSpec{Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING, Containers: []*resourcev1.ContainerSpec{c}}
}

func TestChoose(t *testing.T) {
	selecting := spec(0)
	selecting.NodeSelector = map[string]string{"zone": "b"}
	zoneB := func(r *record.Resource) { r.Meta.Labels["zone"] = "b" }
	for _, c := range []struct {
		name   string
		spec   *resourcev1.SandboxSpec
		pin    string
		nodes  []Candidate
		want   string
		reason string
	}{
		{"no node at all", spec(0), "", nil, "", "there is no node"},
		{"the first by name of equals", spec(0), "", []Candidate{node("b", nil), node("a", nil)}, "a", ""},
		{"the one with the smaller share", spec(0), "", []Candidate{loaded(node("a", nil), 2, 0), loaded(node("b", func(r *record.Resource) {
			r.GetNode().GetStatus().GetCapacity().Sandboxes = 40
		}), 10, 0)}, "b", ""},
		{"a node without session", spec(0), "", []Candidate{node("a", func(r *record.Resource) {
			r.GetNode().GetPlacement().SessionId = 0
		})}, "", "no node of 1 takes it: 1 not connected"},
		{"a node that is not ready", spec(0), "", []Candidate{node("a", func(r *record.Resource) {
			r.GetNode().GetStatus().GetConditions()[0].State = resourcev1.ConditionState_CONDITION_STATE_FALSE
		})}, "", "1 not ready"},
		{"a node whose readiness nobody knows", spec(0), "", []Candidate{node("a", func(r *record.Resource) {
			r.GetNode().GetStatus().GetConditions()[0].State = resourcev1.ConditionState_CONDITION_STATE_UNKNOWN
		})}, "", "1 not ready"},
		{"a node that never was ready", spec(0), "", []Candidate{node("a", func(r *record.Resource) {
			r.GetNode().GetPlacement().RegisteredAt = nil
		})}, "", "1 not ready"},
		{"a node that was ready before its session", spec(0), "", []Candidate{node("a", func(r *record.Resource) {
			r.GetNode().GetPlacement().StatusSeq = 3
		})}, "", "1 not ready"},
		{"a cordoned node beside a free one", spec(0), "", []Candidate{node("a", func(r *record.Resource) {
			r.GetNode().GetSpec().Cordoned = true
		}), node("b", nil)}, "b", ""},
		{"a node that was cordoned on itself", spec(0), "", []Candidate{node("a", func(r *record.Resource) {
			r.GetNode().GetStatus().Cordoned = true
		})}, "", "no node of 1 takes it: 1 cordoned"},
		{"a node that was uncordoned and keeps sandboxes stopped still", spec(0), "", []Candidate{node("a", func(r *record.Resource) {
			r.GetNode().GetStatus().Holding = true
		})}, "", "no node of 1 takes it: 1 keeping sandboxes stopped"},
		{"a cordoned node that is not ready", spec(0), "", []Candidate{node("a", func(r *record.Resource) {
			r.GetNode().GetStatus().Cordoned = true
			r.GetNode().GetStatus().GetConditions()[0].State = resourcev1.ConditionState_CONDITION_STATE_FALSE
		})}, "", "1 cordoned"},
		{"a node that runs short of memory beside a free one", spec(0), "", []Candidate{node("a", pressed("MemoryPressure")), node("b", nil)}, "b", ""},
		{"nodes that run short", spec(0), "", []Candidate{node("a", pressed("DiskPressure")), node("b", pressed("PIDPressure")), node("c", pressed("DiskPressure"))},
			"", "no node of 3 takes it: 1 under PIDPressure, 2 under DiskPressure"},
		{"a node that does not run short, and does not know", spec(0), "", []Candidate{node("a", func(r *record.Resource) {
			pressed("DiskPressure")(r)
			pressed("MemoryPressure")(r)
			r.GetNode().GetStatus().GetConditions()[1].State = resourcev1.ConditionState_CONDITION_STATE_FALSE
			r.GetNode().GetStatus().GetConditions()[2].State = resourcev1.ConditionState_CONDITION_STATE_UNKNOWN
		})}, "a", ""},
		{"labels wanted", selecting, "", []Candidate{node("a", nil), node("b", zoneB)}, "b", ""},
		{"labels nobody has", selecting, "", []Candidate{node("a", nil)}, "", "1 without the wanted labels"},
		{"as many sandboxes as fit", spec(0), "", []Candidate{loaded(node("a", nil), 3, 0)}, "a", ""},
		{"one sandbox more", spec(0), "", []Candidate{loaded(node("a", nil), 4, 0)}, "", "1 full"},
		{"memory to the byte", spec(512 << 20), "", []Candidate{loaded(node("a", nil), 1, 512<<20)}, "a", ""},
		{"a byte too much", spec(512<<20 + 1), "", []Candidate{loaded(node("a", nil), 1, 512<<20)}, "", "1 without enough memory"},
		{"capacity 0 means 0", spec(0), "", []Candidate{node("a", func(r *record.Resource) {
			r.GetNode().GetStatus().GetCapacity().Sandboxes = 0
		})}, "", "1 full"},
		{"no status yet", spec(0), "", []Candidate{node("a", func(r *record.Resource) { r.GetNode().Status = nil })}, "", "1 not ready"},
		{"tied to its disks", spec(0), "b", []Candidate{node("a", nil), node("b", nil)}, "b", ""},
		{"tied to a node that is gone", spec(0), "c", []Candidate{node("a", nil)}, "", "its disks are on node c, which is not there"},
		{"several causes", spec(0), "", []Candidate{loaded(node("a", nil), 4, 0), loaded(node("b", nil), 4, 0), node("c", func(r *record.Resource) {
			r.GetNode().GetSpec().Cordoned = true
		})}, "", "no node of 3 takes it: 1 cordoned, 2 full"},
	} {
		got, reason := Choose(c.spec, c.pin, c.nodes)
		if got.GetMeta().GetName() != c.want || !strings.Contains(reason, c.reason) || (reason == "") != (c.reason == "") {
			t.Errorf("%s: got %q because %q, want %q because %q", c.name, got.GetMeta().GetName(), reason, c.want, c.reason)
		}
	}
}

func sandbox(disks ...string) *record.Resource {
	s := spec(0)
	for _, d := range disks {
		s.Containers[0].Disks = append(s.Containers[0].Disks, &resourcev1.DiskMount{Disk: d, Path: "/" + d})
	}
	return &record.Resource{
		Meta: &resourcev1.Metadata{Kind: record.Sandbox, Name: "s1", Uid: "uid-s1", Revision: 5, Generation: 1},
		Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{Spec: s}},
	}
}

func disk(name, home, holder string, epoch uint64) *record.Resource {
	return &record.Resource{
		Meta: &resourcev1.Metadata{Kind: record.Disk, Name: name, Uid: "uid-" + name, Revision: 3},
		Kind: &resourcev1.Resource_Disk{Disk: &resourcev1.Disk{
			Spec:      &resourcev1.DiskSpec{},
			Placement: &resourcev1.DiskPlacement{Node: home, Holder: holder, Epoch: epoch},
		}},
	}
}

// What overflows is more than any node has, and stays so when it is added up.
func TestChoose_LargeLimitsNeverFit(t *testing.T) {
	huge := spec(math.MaxInt64)
	huge.Containers = append(huge.Containers, spec(math.MaxInt64).GetContainers()...)
	if got, why := Choose(huge, "", []Candidate{node("a", nil)}); got != nil || !strings.Contains(why, "without enough memory") {
		t.Errorf("got node %v and reason %q, want none for want of memory", got.GetMeta().GetName(), why)
	}
	full := loaded(node("a", nil), 1, math.MaxInt64)
	if got, why := Choose(spec(1<<20), "", []Candidate{full}); got != nil {
		t.Errorf("got node %v and reason %q, want none: its memory is promised", got.GetMeta().GetName(), why)
	}
}

func TestDecide_GrantsDisksWithThePlacement(t *testing.T) {
	disks := map[string]*record.Resource{"d1": disk("d1", "b", "", 4), "d2": disk("d2", "", "", 0)}
	c, where, reason := decide(sandbox("d1", "d2"), []Candidate{node("a", nil), node("b", nil)}, disks, timestamppb.Now())
	if where != "b" || reason != "" || len(c.Replace) != 3 || len(c.Create) != 2 {
		t.Fatalf("got %s (%s) with %d and %d records, want b with 3 and 2", where, reason, len(c.Replace), len(c.Create))
	}
	placed, d1, lease := c.Replace[0], c.Replace[1].GetDisk().GetPlacement(), c.Create[0]
	if placed.GetSandbox().GetPlacement().GetNodeUid() != "uid-b" || placed.GetMeta().GetGeneration() != 1 {
		t.Errorf("got %v, want placed on uid-b in generation 1", placed)
	}
	if d1.GetHolder() != "uid-s1" || d1.GetEpoch() != 5 || d1.GetNode() != "b" || d1.GetLeaseUid() != lease.GetMeta().GetUid() {
		t.Errorf("got %v, want holder uid-s1 in epoch 5 by the lease %s", d1, lease.GetMeta().GetUid())
	}
	if lease.GetMeta().GetOwner() != "uid-s1" || lease.GetDiskLease().GetSpec().GetEpoch() != 5 || lease.GetDiskLease().GetSpec().GetNode() != "b" {
		t.Errorf("got %v, want owned by uid-s1 in epoch 5 on b", lease)
	}
}

// A node that is cordoned between the decision and the write gets nothing: the write
// depends on the node as it was looked at.
func TestDecide_DependsOnTheNodeAsItWas(t *testing.T) {
	n := node("a", func(r *record.Resource) { r.Meta.Revision = 7 })
	c, name, _ := decide(sandbox(), []Candidate{n}, nil, nil)
	if name != "a" || len(c.Same) != 1 || c.Same[0].GetMeta().GetName() != "a" || c.Same[0].GetMeta().GetRevision() != 7 {
		t.Errorf("placed on %q if %v is unchanged, want a at revision 7", name, c.Same)
	}
}

func TestDecide_WaitsForDisks(t *testing.T) {
	nodes := []Candidate{node("a", nil), node("b", nil)}
	failed := disk("d1", "a", "", 1)
	failed.GetDisk().Status = &resourcev1.DiskStatus{Phase: resourcev1.DiskPhase_DISK_PHASE_FAILED}
	for _, c := range []struct {
		name  string
		disks map[string]*record.Resource
		want  string
	}{
		{"missing", nil, "disk d1 does not exist"},
		{"held", map[string]*record.Resource{"d1": disk("d1", "a", "uid-other", 2)}, "disk d1 is held by sandbox uid-other"},
		{"failed", map[string]*record.Resource{"d1": failed}, "disk d1 has failed"},
		{"apart", map[string]*record.Resource{"d1": disk("d1", "a", "", 1), "d2": disk("d2", "b", "", 1)}, "its disks are on different nodes: a and b"},
	} {
		change, where, reason := decide(sandbox("d1", "d2"), nodes, c.disks, timestamppb.Now())
		if where != "" || reason != c.want {
			t.Errorf("%s: got %q because %q, want to wait because %q", c.name, where, reason, c.want)
		}
		if len(change.Replace) != 1 || change.Replace[0].GetSandbox().GetPlacement().GetReason() != c.want {
			t.Errorf("%s: got %v, want the reason written", c.name, change.Replace)
		}
	}
}

// Nothing is written at rest: a reason that is there already is not written again.
func TestDecide_WritesAReasonOnce(t *testing.T) {
	first, _, _ := decide(sandbox(), nil, nil, timestamppb.Now())
	again, _, _ := decide(first.Replace[0], nil, nil, timestamppb.Now())
	if len(first.Replace) != 1 || len(again.Replace) != 0 {
		t.Errorf("got %d writes and then %d, want 1 and 0", len(first.Replace), len(again.Replace))
	}
}
