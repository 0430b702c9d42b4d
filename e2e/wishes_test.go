package e2e

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// refused checks that a call failed with that kind and reason.
func refused(t *testing.T, what string, err error, kind fault.Kind, reason string) {
	t.Helper()
	if fault.KindOf(err) != kind || fault.Reason(err) != reason {
		t.Errorf("%s: got %v (%v, reason %q), want %v with reason %s", what, err, fault.KindOf(err), fault.Reason(err), kind, reason)
	}
}

func TestNode_RefusedWishesSayWhy(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	host, ctx := b.Host(), t.Context()
	wish := &sandboxhostv1.EnsureSandboxRequest{
		Uid: newUID(), Name: "web", Generation: 5, Manager: "local", Spec: spec(always, probe("c", "sleep")),
	}
	with := func(change func(*sandboxhostv1.EnsureSandboxRequest)) error {
		r := proto.CloneOf(wish)
		change(r)
		_, err := host.EnsureSandbox(ctx, r)
		return err
	}
	same := func(*sandboxhostv1.EnsureSandboxRequest) {}
	if err := with(same); err != nil {
		t.Fatal(err)
	}
	want := await(t, b, wish.GetUid(), "running", running)

	rounds := func(when string) {
		refused(t, when+": a lower generation", with(func(r *sandboxhostv1.EnsureSandboxRequest) { r.Generation = 4 }),
			fault.Conflict, "STALE_GENERATION")
		refused(t, when+": another spec under the same generation", with(func(r *sandboxhostv1.EnsureSandboxRequest) {
			r.Spec.RestartPolicy = never
		}), fault.Conflict, "SPEC_CHANGED")
		refused(t, when+": name taken", with(func(r *sandboxhostv1.EnsureSandboxRequest) { r.Uid = newUID() }),
			fault.Conflict, "NAME_TAKEN")
		refused(t, when+": another manager", with(func(r *sandboxhostv1.EnsureSandboxRequest) { r.Manager = "cluster" }),
			fault.Denied, "MANAGER_MISMATCH")
		_, err := host.RemoveSandbox(ctx, &sandboxhostv1.RemoveSandboxRequest{Uid: wish.GetUid(), Manager: "cluster"})
		refused(t, when+": removal by another manager", err, fault.Denied, "MANAGER_MISMATCH")
		_, err = host.ForgetSandbox(ctx, &sandboxhostv1.ForgetSandboxRequest{Uid: wish.GetUid(), Manager: "cluster"})
		refused(t, when+": forgetting by another manager", err, fault.Denied, "MANAGER_MISMATCH")
		_, err = host.ForgetSandbox(ctx, &sandboxhostv1.ForgetSandboxRequest{Uid: wish.GetUid(), Manager: "local"})
		refused(t, when+": forgetting what is there", err, fault.Conflict, "NOT_TORN_DOWN")
		if err := with(same); err != nil {
			t.Errorf("%s: the same wish again: %v", when, err)
		}
		got := await(t, b, wish.GetUid(), "running", running)
		if sprint(pids(got)) != sprint(pids(want)) || got.GetAttempt() != 1 {
			t.Errorf("%s: refused wishes changed the sandbox: %v, want %v", when, got, want)
		}
	}
	rounds("before a restart")
	b.KillRunner(supervisor, true)
	b.Start()
	b.WaitReady()
	rounds("after a restart")

	deaf := &sandboxhostv1.EnsureSandboxRequest{
		Uid: newUID(), Name: "deaf", Generation: 1, Manager: "local", Spec: spec(always, probe("c", "deaf")),
	}
	deaf.Spec.TerminationGracePeriod = seconds(2)
	if _, err := host.EnsureSandbox(ctx, deaf); err != nil {
		t.Fatal(err)
	}
	bed.Eventually(t, waitLong, "it ignores the signal", func(ctx context.Context) (bool, string) {
		s := await(t, b, deaf.GetUid(), "running", running)
		return output(t, b, deaf.GetUid(), "c", 1) == "deaf\n", s.String()
	})
	if _, err := host.RemoveSandbox(ctx, &sandboxhostv1.RemoveSandboxRequest{Uid: deaf.GetUid(), Manager: "local"}); err != nil {
		t.Fatal(err)
	}
	_, err := host.EnsureSandbox(ctx, deaf)
	refused(t, "a wish for what is being removed", err, fault.Conflict, "BEING_REMOVED")
	await(t, b, deaf.GetUid(), "torn down", func(s *resourcev1.SandboxStatus) bool { return s.GetTornDownAt() != nil })
	_, err = host.EnsureSandbox(ctx, deaf)
	refused(t, "a wish for what was removed", err, fault.Conflict, "TOMBSTONE")

	remove(t, b, deaf.GetUid())
	remove(t, b, wish.GetUid())
	b.Kill("sandboxhost")
	b.WaitReady()
	for _, r := range []*sandboxhostv1.EnsureSandboxRequest{deaf, wish} {
		_, err := host.EnsureSandbox(ctx, r)
		refused(t, "a wish for a tombstone", err, fault.Conflict, "TOMBSTONE")
	}
	// A uid that was never here gets a tombstone, too: its wish may come late.
	late := proto.CloneOf(wish)
	late.Uid = newUID()
	if _, err := host.RemoveSandbox(ctx, &sandboxhostv1.RemoveSandboxRequest{Uid: late.GetUid(), Manager: "local"}); err != nil {
		t.Fatal(err)
	}
	_, err = host.EnsureSandbox(ctx, late)
	refused(t, "a wish that came after its removal", err, fault.Conflict, "TOMBSTONE")
	settled(t, b)
}
