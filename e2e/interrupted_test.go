package e2e

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// TestNode_LIF8_InterruptedStatesLeadOn has the whole runner killed, and the machine
// rebooted, while sandboxes start, stop and are deleted; each comes to what its wish says,
// and can be started, stopped and deleted then. A drain that is cut off has tests of its own.
func TestNode_LIF8_InterruptedStatesLeadOn(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	for _, how := range []string{"killed", "rebooted"} {
		prepare := probe("first", "exit", "0", "4s")
		prepare.Init = true
		deaf := func(name string) *sandboxhostv1.EnsureSandboxRequest {
			s := spec(always, probe("c", "deaf"))
			s.TerminationGracePeriod = seconds(5)
			return &sandboxhostv1.EnsureSandboxRequest{Uid: newUID(), Name: name, Generation: 1, Manager: "local", Spec: s}
		}
		starts := &sandboxhostv1.EnsureSandboxRequest{Uid: newUID(), Name: "starts", Generation: 1, Manager: "local", Spec: spec(always, prepare, probe("c", "sleep"))}
		stops, goes := deaf("stops"), deaf("goes")
		wish := func(r *sandboxhostv1.EnsureSandboxRequest) {
			t.Helper()
			_, err := b.Host().EnsureSandbox(t.Context(), r)
			must(t, err)
		}
		desire := func(r *sandboxhostv1.EnsureSandboxRequest, state resourcev1.DesiredState) {
			t.Helper()
			r.Spec, r.Generation = proto.CloneOf(r.GetSpec()), r.GetGeneration()+1
			r.Spec.Desired = state
			wish(r)
		}
		wish(stops)
		wish(goes)
		for _, r := range []*sandboxhostv1.EnsureSandboxRequest{stops, goes} {
			await(t, b, r.GetUid(), "running", running)
			bed.Eventually(t, waitLong, "it ignores the signal", outputIs(t, b, r.GetUid(), "c", 1, "deaf\n"))
		}
		wish(starts)
		await(t, b, starts.GetUid(), "starting", inPhase(resourcev1.SandboxPhase_SANDBOX_PHASE_STARTING))
		desire(stops, resourcev1.DesiredState_DESIRED_STATE_STOPPED)
		_, err := b.Host().RemoveSandbox(t.Context(), &sandboxhostv1.RemoveSandboxRequest{Uid: goes.GetUid(), Manager: "local"})
		must(t, err)
		for _, r := range []*sandboxhostv1.EnsureSandboxRequest{stops, goes} {
			await(t, b, r.GetUid(), "stopping", inPhase(resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING))
		}
		if how == "killed" {
			b.KillRunner(supervisor, true)
		} else {
			b.Reboot(supervisor, "00000000-0000-4000-8000-000000000002")
		}
		supervisor = b.Start()
		b.WaitReady()
		await(t, b, starts.GetUid(), "running, "+how, running)
		await(t, b, stops.GetUid(), "ended, "+how, ended)
		await(t, b, goes.GetUid(), "torn down, "+how, func(s *resourcev1.SandboxStatus) bool { return s.GetTornDownAt() != nil })
		for _, r := range []*sandboxhostv1.EnsureSandboxRequest{starts, stops} {
			desire(r, resourcev1.DesiredState_DESIRED_STATE_RUNNING)
			await(t, b, r.GetUid(), "started, "+how, running)
			desire(r, resourcev1.DesiredState_DESIRED_STATE_STOPPED)
			await(t, b, r.GetUid(), "stopped, "+how, ended)
		}
		removeAll(t, b, starts.GetUid(), stops.GetUid(), goes.GetUid())
	}
	settled(t, b)
}

func inPhase(phase resourcev1.SandboxPhase) func(*resourcev1.SandboxStatus) bool {
	return func(s *resourcev1.SandboxStatus) bool { return s.GetPhase() == phase }
}
