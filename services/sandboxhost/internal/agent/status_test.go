package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

func TestRefusedStatus(t *testing.T) {
	const (
		nothing = resourcev1.SandboxPhase_SANDBOX_PHASE_UNSPECIFIED
		pending = resourcev1.SandboxPhase_SANDBOX_PHASE_PENDING
		failed  = resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
	)
	with := func(k fault.Kind, reason string) error { return fault.WithReason(fault.New(k, "no"), reason) }
	for _, c := range []struct {
		name   string
		err    error
		phase  resourcev1.SandboxPhase
		reason string
	}{
		{"a bad spec fails", fault.New(fault.Invalid, "no"), failed, "REFUSED_BY_HOST"},
		{"what the node does not allow fails", with(fault.Denied, "HOST_NETWORK_NOT_ALLOWED"), failed, "HOST_NETWORK_NOT_ALLOWED"},
		{"a refused caller says nothing about the sandbox", fault.New(fault.Denied, "no role"), nothing, ""},
		{"a full node is waited for", with(fault.Exhausted, "NODE_FULL"), pending, "NODE_FULL"},
		{"a taken name is waited for", with(fault.Conflict, "NAME_TAKEN"), pending, "NAME_TAKEN"},
		{"a removed uid fails", with(fault.Conflict, "TOMBSTONE"), failed, "TOMBSTONE"},
		{"a stale generation is read again", with(fault.Conflict, "STALE_GENERATION"), nothing, ""},
		{"an unanswered question says nothing", fault.New(fault.Unavailable, "no"), nothing, ""},
		{"a bug says nothing", errors.New("no"), nothing, ""},
	} {
		r := record(id.NewSandbox(), shows(4))
		got := refusedStatus(r, "node1", c.err, time.Now())
		if got.GetPhase() != c.phase || got.GetReason() != c.reason {
			t.Errorf("%s: got %v %q, want %v %q", c.name, got.GetPhase(), got.GetReason(), c.phase, c.reason)
		}
		if got == nil {
			continue
		}
		if got.GetSeq() != 5 || got.GetObservedGeneration() != 2 {
			t.Errorf("%s: seq %d and generation %d, want 5 and 2", c.name, got.GetSeq(), got.GetObservedGeneration())
		}
		r.GetSandbox().Status = got
		if again := refusedStatus(r, "node1", c.err, time.Now().Add(time.Hour)); again != nil {
			t.Errorf("%s: a status that the record shows is made again: %v", c.name, again)
		}
	}
}

func TestBuriedStatus_KeepsWhatTheSandboxWas(t *testing.T) {
	r := record(id.NewSandbox())
	r.GetSandbox().Status = &resourcev1.SandboxStatus{
		Seq: 8, Attempt: 3, Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING, Addresses: []string{"10.0.0.2"}, NextAt: timestamppb.Now(),
		Exits: []*resourcev1.ContainerExit{{Container: "c", Code: 4}},
	}
	got := buriedStatus(r, "node1", time.Now())
	if got.GetSeq() != 9 || got.GetAttempt() != 3 || got.GetTornDownAt() == nil || len(got.GetExits()) != 1 ||
		got.GetPhase() != resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED || got.GetAddresses() != nil || got.GetNextAt() != nil {
		t.Errorf("buried as %v", got)
	}
	if r.GetSandbox().GetStatus().GetSeq() != 8 {
		t.Error("the record was changed")
	}
}

func TestClip_NeverCutsACharacter(t *testing.T) {
	for most := range 12 {
		if got := clip("aäöü€x", most); !strings.HasPrefix("aäöü€x", got) || len(got) > most || strings.ToValidUTF8(got, "") != got {
			t.Errorf("clip to %d is %q", most, got)
		}
	}
}

// The contract leaves the spec out of a report: it may be a thousand times as large.
func TestWithStatus_SaysNothingElse(t *testing.T) {
	said := withStatus(record(""), &resourcev1.SandboxStatus{Seq: 3})
	if s := said.GetSandbox(); s.GetSpec() != nil || s.GetPlacement() != nil || s.GetStatus().GetSeq() != 3 || said.GetMeta().GetName() != "web" {
		t.Errorf("got %v, want name and status alone", said)
	}
}
