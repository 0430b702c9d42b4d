package agent

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// withStatus is a record as it is reported: who it is, and its status.
func withStatus(record *resourcev1.Resource, status *resourcev1.SandboxStatus) *resourcev1.Resource {
	meta := record.GetMeta()
	return &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: meta.GetKind(), Name: meta.GetName(), Uid: meta.GetUid()},
		Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{Status: status}},
	}
}

// refusedStatus is the status of a sandbox that the host does not take, made from
// the one in its record; nil if the record says so already. While the host holds
// nothing of a sandbox nobody else makes statuses of it.
func refusedStatus(record *resourcev1.Resource, node string, refusal error, now time.Time) *resourcev1.SandboxStatus {
	phase := refusedPhase(refusal)
	if phase == resourcev1.SandboxPhase_SANDBOX_PHASE_UNSPECIFIED {
		return nil
	}
	old := record.GetSandbox().GetStatus()
	reason := fault.Reason(refusal)
	if reason == "" {
		reason = "REFUSED_BY_HOST"
	}
	status := &resourcev1.SandboxStatus{
		ObservedGeneration: record.GetMeta().GetGeneration(),
		Seq:                old.GetSeq() + 1,
		Attempt:            max(old.GetAttempt(), 1),
		Phase:              phase,
		Reason:             reason,
		Message:            clip(refusal.Error(), 4096),
		PhaseAt:            timestamppb.New(now),
		Node:               node,
	}
	if same(old, status) {
		return nil
	}
	return status
}

// refusedPhase says what a refusal means for the sandbox: it failed, or it waits
// for something that may change by itself. An unanswered question means nothing,
// and neither does a refusal of the caller instead of the wish.
func refusedPhase(refusal error) resourcev1.SandboxPhase {
	kind, reason := fault.KindOf(refusal), fault.Reason(refusal)
	switch {
	case kind == fault.Invalid,
		kind == fault.Denied && reason != "",
		kind == fault.Conflict && (reason == "TOMBSTONE" || reason == "SPEC_CHANGED"):
		return resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
	case kind == fault.Exhausted,
		kind == fault.Conflict && reason == "NAME_TAKEN":
		return resourcev1.SandboxPhase_SANDBOX_PHASE_PENDING
	}
	return resourcev1.SandboxPhase_SANDBOX_PHASE_UNSPECIFIED
}

// buriedStatus is the last status of a sandbox of which this node holds nothing.
func buriedStatus(record *resourcev1.Resource, node string, now time.Time) *resourcev1.SandboxStatus {
	status := proto.CloneOf(record.GetSandbox().GetStatus())
	if status == nil {
		status = &resourcev1.SandboxStatus{Attempt: 1}
	}
	status.Seq++
	status.ObservedGeneration = record.GetMeta().GetGeneration()
	status.Node = node
	status.TornDownAt = timestamppb.New(now)
	if status.GetPhase() < resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED {
		status.Phase, status.PhaseAt = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED, status.GetTornDownAt()
	}
	status.Addresses, status.NextAt = nil, nil
	return status
}

// same compares what a status says, without when it was said.
func same(a, b *resourcev1.SandboxStatus) bool {
	if a == nil || b == nil {
		return a == b
	}
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.Seq, b.Seq = 0, 0
	a.PhaseAt, b.PhaseAt = nil, nil
	return proto.Equal(a, b)
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && s[most]&0xC0 == 0x80 { // not inside a character
		most--
	}
	return s[:most]
}
