package agent

import (
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// record returns the record of a sandbox on node1, changed by each of with.
func record(uid id.Sandbox, with ...func(*resourcev1.Resource)) *resourcev1.Resource {
	r := &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_SANDBOX, Name: "web", Uid: string(uid), Generation: 2},
		Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{
			Spec:      &resourcev1.SandboxSpec{Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING},
			Placement: &resourcev1.SandboxPlacement{Node: "node1"},
		}},
	}
	for _, w := range with {
		w(r)
	}
	return r
}

func deletingNow(r *resourcev1.Resource) { r.Meta.DeletingAt = timestamppb.Now() }

func on(node string) func(*resourcev1.Resource) {
	return func(r *resourcev1.Resource) { r.GetSandbox().Placement.Node = node }
}

func shows(seq uint64) func(*resourcev1.Resource) {
	return func(r *resourcev1.Resource) { r.GetSandbox().Status = &resourcev1.SandboxStatus{Seq: seq} }
}

func tornDown(r *resourcev1.Resource) {
	r.GetSandbox().Status = &resourcev1.SandboxStatus{Seq: 1, TornDownAt: timestamppb.Now()}
}

func held(generation, seq uint64) *sandboxhostv1.SandboxState {
	return &sandboxhostv1.SandboxState{
		Generation: generation, Status: &resourcev1.SandboxStatus{Seq: seq}, Position: &resourcev1.Position{Term: "t", Revision: 1},
	}
}

func lost(s *sandboxhostv1.SandboxState) *sandboxhostv1.SandboxState {
	s.Position = nil
	return s
}

func removing(gone bool) *sandboxhostv1.SandboxState {
	s := held(2, 9)
	s.Removing = true
	if gone {
		s.Status.TornDownAt = timestamppb.Now()
	}
	return s
}

func waiting() *sandboxhostv1.SandboxState {
	s := held(2, 9)
	s.Status.Phase, s.Status.Reason = resourcev1.SandboxPhase_SANDBOX_PHASE_PENDING, "WAITING_FOR_CLUSTER"
	return s
}

func TestDecide(t *testing.T) {
	uid := id.NewSandbox()
	live := Input{Node: "node1", Live: true, HostKnown: true, Position: &resourcev1.Position{Term: "t", Revision: 9}}
	in := func(base Input, r *resourcev1.Resource, h *sandboxhostv1.SandboxState) Input {
		base.Record, base.Host = r, h
		return base
	}
	cut, other, nowhere, deaf := live, live, live, live
	cut.Live, other.Foreign, nowhere.Position, deaf.HostKnown = false, true, nil, false

	for _, c := range []struct {
		name string
		in   Input
		want Decision
	}{
		{"a new record is handed to the host", in(live, record(uid), nil), Decision{Step: StepEnsure}},
		{"a kept wish is left alone", in(live, record(uid), held(2, 0)), Decision{}},
		{"a changed spec is handed to the host", in(live, record(uid), held(1, 0)), Decision{Step: StepEnsure}},
		{"a record older than the wish changes nothing", in(live, record(uid), held(3, 0)), Decision{}},
		{"a wish that waits for the cluster after a reboot is confirmed", in(live, record(uid, shows(9)), waiting()), Decision{Step: StepEnsure}},
		{"nothing starts on a mirror that is not live", in(cut, record(uid), nil), Decision{}},
		{"a waiting wish goes on waiting on a mirror that is not live", in(cut, record(uid, shows(9)), waiting()), Decision{}},
		{"nothing is done while the host was not heard", in(deaf, record(uid), nil), Decision{}},
		{"nothing is removed while the host was not heard", in(deaf, nil, nil), Decision{}},
		{"another node's record is not ours", in(live, record(uid, on("node2")), nil), Decision{}},
		{"another node's record removes nothing here", in(live, record(uid, on("node2"), deletingNow), held(2, 5)), Decision{}},
		{"a record without a place is nobody's", in(live, record(uid, on("")), nil), Decision{}},

		{"a new status is reported", in(live, record(uid, shows(4)), held(2, 5)), Decision{Report: true}},
		{"a status that is shown is not reported", in(live, record(uid, shows(5)), held(2, 5)), Decision{}},
		{"a new status is handed over while the link is cut", in(cut, record(uid, shows(4)), held(2, 5)), Decision{Report: true}},

		{"a deleted record ends the wish", in(live, record(uid, deletingNow, shows(9)), held(2, 9)), Decision{Step: StepRemove}},
		{"a removal under way is waited for", in(live, record(uid, deletingNow, shows(9)), removing(false)), Decision{}},
		{"a finished removal is reported", in(live, record(uid, deletingNow, shows(8)), removing(true)), Decision{Report: true}},
		{"a removal is never taken back", in(live, record(uid, shows(9)), removing(false)), Decision{}},
		{"a deleted record of which the host holds nothing is buried", in(live, record(uid, deletingNow), nil), Decision{Step: StepBury}},
		{"a buried record is left alone", in(live, record(uid, deletingNow, tornDown), nil), Decision{}},
		{"a deleted record removes nothing on a cut link", in(cut, record(uid, deletingNow, shows(9)), held(2, 9)), Decision{}},
		{"a deleted record is believed in every history", in(other, record(uid, deletingNow, shows(9)), held(2, 9)), Decision{Step: StepRemove}},

		{"a missing record is asked about", in(live, nil, held(2, 5)), Decision{Step: StepConfirmRemove}},
		{"a missing record on a cut link means nothing", in(cut, nil, held(2, 5)), Decision{}},
		{"a missing record in another history means nothing", in(other, nil, held(2, 5)), Decision{}},
		{"a removal without record is waited for", in(live, nil, removing(false)), Decision{}},
		{"a finished removal without record is asked about and forgotten", in(live, nil, removing(true)), Decision{Step: StepConfirmForget}},
		{"a finished removal is kept on a cut link", in(cut, nil, removing(true)), Decision{}},
		{"a finished removal is kept in another history", in(other, nil, removing(true)), Decision{}},
		{"work is taken without a position", in(nowhere, record(uid), nil), Decision{Step: StepEnsure}},
		{"a wish without a position gets one", in(live, record(uid, shows(9)), lost(held(2, 9))), Decision{Step: StepEnsure}},
		{"a wish without a position stays so while there is none", in(nowhere, record(uid, shows(9)), lost(held(2, 9))), Decision{}},
		{"a newer wish gets no position from an older record", in(live, record(uid, shows(9)), lost(held(3, 9))), Decision{}},
	} {
		if got := Decide(c.in); got != c.want {
			t.Errorf("%s: got %v, report %v; want %v, report %v", c.name, got.Step, got.Report, c.want.Step, c.want.Report)
		}
	}
}

// Whatever is known, what takes a sandbox away needs a live mirror and a host that
// was heard; and what is missing takes nothing away in a history that does not know it.
func TestDecide_NeverRemovesOnDoubt(t *testing.T) {
	uid := id.NewSandbox()
	records := []*resourcev1.Resource{nil, record(uid), record(uid, deletingNow), record(uid, on("node2")), record(uid, on("node2"), deletingNow), record(uid, deletingNow, tornDown)}
	hosts := []*sandboxhostv1.SandboxState{nil, held(1, 1), held(2, 9), held(3, 9), removing(false), removing(true), waiting()}
	for _, r := range records {
		for _, h := range hosts {
			for bits := range 8 {
				in := Input{Node: "node1", Record: r, Host: h, Foreign: bits&4 > 0, Live: bits&1 > 0, HostKnown: bits&2 > 0}
				got := Decide(in)
				sure := in.Live && in.HostKnown && (r == nil && !in.Foreign || r.GetSandbox().GetPlacement().GetNode() == "node1")
				if takesAway := got.Step != StepNone && got.Step != StepEnsure; takesAway && !sure {
					t.Errorf("%+v: %v", in, got.Step)
				}
				if got.Step == StepEnsure && (!in.Live || !in.HostKnown || r == nil) {
					t.Errorf("%+v: %v", in, got.Step)
				}
			}
		}
	}
}
