package collect

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/coordinator/internal/mirror"
	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

func node(name string, session int64) *record.Resource {
	return &record.Resource{
		Meta: &resourcev1.Metadata{Kind: record.Node, Name: name, Uid: "uid-" + name},
		Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{Placement: &resourcev1.NodePlacement{SessionId: session}}},
	}
}

func sandbox(name, home string, deleting, tornDown bool) *record.Resource {
	s := &resourcev1.Sandbox{Status: &resourcev1.SandboxStatus{}}
	if home != "" {
		s.Placement = &resourcev1.SandboxPlacement{Node: home, NodeUid: "uid-" + home}
	}
	if tornDown {
		s.Status.TornDownAt = timestamppb.Now()
	}
	return deletingIf(deleting, &record.Resource{
		Meta: &resourcev1.Metadata{Kind: record.Sandbox, Name: name, Uid: "uid-" + name},
		Kind: &resourcev1.Resource_Sandbox{Sandbox: s},
	})
}

func disk(name, home, holder, lease string, deleting bool) *record.Resource {
	return deletingIf(deleting, &record.Resource{
		Meta: &resourcev1.Metadata{Kind: record.Disk, Name: name, Uid: "uid-" + name},
		Kind: &resourcev1.Resource_Disk{Disk: &resourcev1.Disk{Placement: &resourcev1.DiskPlacement{Node: home, Holder: holder, LeaseUid: lease, Epoch: 3}}},
	})
}

func lease(name, home string, phase resourcev1.DiskLeasePhase, deleting bool) *record.Resource {
	return deletingIf(deleting, &record.Resource{
		Meta: &resourcev1.Metadata{Kind: record.DiskLease, Name: name, Uid: "uid-" + name},
		Kind: &resourcev1.Resource_DiskLease{DiskLease: &resourcev1.DiskLease{
			Spec:   &resourcev1.DiskLeaseSpec{DiskUid: "uid-d", SandboxUid: "uid-s", Node: home},
			Status: &resourcev1.DiskLeaseStatus{Phase: phase},
		}},
	})
}

func deletingIf(yes bool, r *record.Resource) *record.Resource {
	if yes {
		r.Meta.DeletingAt = timestamppb.Now()
	}
	return r
}

func view(sessions map[string]store.Session, records ...*record.Resource) mirror.View {
	v := mirror.View{Records: map[record.Kind]map[string]*record.Resource{}, Sessions: sessions}
	for _, k := range record.Kinds() {
		v.Records[k] = map[string]*record.Resource{}
	}
	for _, r := range records {
		v.Records[record.Body(r)][r.GetMeta().GetName()] = r
	}
	return v
}

const (
	bound    = resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_BOUND
	released = resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_RELEASED
)

func TestPlan(t *testing.T) {
	open := map[string]store.Session{"n": {ID: 7}}
	for _, c := range []struct {
		name string
		view mirror.View
		want []string
	}{
		{"nothing to do", view(open, node("n", 7), sandbox("s", "n", false, false)), nil},
		{"a session that ended", view(nil, node("n", 7)), []string{"node lost"}},
		{"a session that was replaced", view(map[string]store.Session{"n": {ID: 8}}, node("n", 7)), []string{"node lost"}},
		{"a node without session", view(nil, node("n", 0)), nil},
		{"a deletion whose node is at work", view(open, node("n", 7), sandbox("s", "n", true, false)), nil},
		{"a deletion whose node is done", view(open, node("n", 7), sandbox("s", "n", true, true)), []string{"sandbox removed"}},
		{"a deletion of what nobody has", view(open, sandbox("s", "", true, false)), []string{"sandbox removed"}},
		{"a sandbox of a removed node", view(open, sandbox("s", "n", false, false)), []string{"sandbox orphaned"}},
		{"a deletion on a removed node", view(open, sandbox("s", "n", true, false)), []string{"sandbox removed"}},
		{"torn down without deletion", view(open, node("n", 7), sandbox("s", "n", false, true)), nil},
		{"a disk of a removed node", view(open, disk("d", "n", "", "", false)), nil},
		{"a deletion of a disk of a removed node", view(open, disk("d", "n", "", "", true)), []string{"disk removed"}},
		{"a deletion of a disk that is held", view(open, disk("d", "n", "uid-s", "uid-l", true)), nil},
		{"a lease in use", view(open, node("n", 7), sandbox("s", "n", false, false), lease("l", "n", bound, false)), nil},
		{"a lease of a gone sandbox", view(open, node("n", 7), lease("l", "n", bound, false)), []string{"disk lease revoked"}},
		{"a revoked lease in use, however long", view(open, node("n", 7), lease("l", "n", bound, true)), nil},
		{"a lease given back after its sandbox", view(open, node("n", 7), lease("l", "n", released, true)), []string{"disk released"}},
		{"a lease given back before its sandbox is gone", view(open, node("n", 7), sandbox("s", "n", true, false), lease("l", "n", released, false)), []string{"disk released"}},
		{"a lease given back by a sandbox that stays", view(open, node("n", 7), sandbox("s", "n", false, false), lease("l", "n", released, false)), nil},
		{"a lease of a lost node", view(nil, node("n", 0), lease("l", "n", bound, true)), nil},
		{"a lease of a removed node", view(nil, lease("l", "n", bound, true)), []string{"disk released"}},
	} {
		var got []string
		for _, s := range Plan(c.view, timestamppb.Now()) {
			got = append(got, s.What)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestPlan_FreesTheDiskInTheSameWrite(t *testing.T) {
	v := view(nil, node("n", 0), disk("d", "n", "uid-s", "uid-l", false), lease("l", "n", released, true))
	change := Plan(v, timestamppb.Now())[0].Change
	p := change.Replace[0].GetDisk().GetPlacement()
	if p.GetHolder() != "" || p.GetLeaseUid() != "" || p.GetEpoch() != 3 || p.GetNode() != "n" || len(change.Remove) != 1 {
		t.Errorf("got %v and %d removed, want no holder, the epoch and node kept, and the lease removed", p, len(change.Remove))
	}
}

func TestPlan_NeverFreesADiskForAnotherLease(t *testing.T) {
	v := view(nil, node("n", 0), disk("d", "n", "uid-t", "uid-m", false), lease("l", "n", released, true))
	if change := Plan(v, timestamppb.Now())[0].Change; len(change.Replace) != 0 {
		t.Errorf("got %v, want the disk left to its new holder", change.Replace)
	}
}

func TestOverdue(t *testing.T) {
	now := time.Now()
	lost := node("a", 0)
	lost.GetNode().GetPlacement().LostSince = timestamppb.New(now.Add(-time.Minute))
	fresh := node("b", 0)
	fresh.GetNode().GetPlacement().LostSince = timestamppb.New(now.Add(-10 * time.Second))
	nodes, next := Overdue(view(nil, lost, fresh, node("c", 0)), 30*time.Second, now)
	if len(nodes) != 1 || nodes[0].GetMeta().GetName() != "a" || next != 20*time.Second {
		t.Errorf("got %d nodes, next in %s, want a alone and 20s", len(nodes), next)
	}
}
