package e2e

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const onFailure = resourcev1.RestartPolicy_RESTART_POLICY_ON_FAILURE

// away takes a part of the runner, or all of it, away, does what happens meanwhile,
// and brings it back. It returns the supervisor.
func away(t *testing.T, b *bed.Bed, supervisor *os.Process, part string, meanwhile func()) *os.Process {
	t.Helper()
	switch part {
	case "the runner, asked to stop":
		b.StopRunner(supervisor)
	case "the runner, killed":
		b.KillRunner(supervisor, true)
	default:
		b.Stop(part)
		meanwhile()
		b.Continue(part)
		b.WaitReady()
		return supervisor
	}
	meanwhile()
	supervisor = b.Start()
	b.WaitReady()
	return supervisor
}

// signal sends a signal to the main process of a sandbox's only container.
func signal(t *testing.T, s *resourcev1.SandboxStatus, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(int(pids(s)["c"]), sig); err != nil {
		t.Fatal(err)
	}
}

// TestNode_LIF3_RestartPolicyIsAppliedOnce ends workloads while somebody is away,
// whose restart policy then says what is right.
func TestNode_LIF3_RestartPolicyIsAppliedOnce(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	cases := []struct {
		name     string
		policy   resourcev1.RestartPolicy
		sig      syscall.Signal
		code     int32
		restarts bool
	}{
		{"zero-always", always, syscall.SIGTERM, 0, true},
		{"zero-onfailure", onFailure, syscall.SIGTERM, 0, false},
		{"seven-onfailure", onFailure, syscall.SIGUSR1, 7, true},
		{"killed-always", always, syscall.SIGKILL, 137, true},
	}
	for _, part := range []string{"sandboxhost", "containerd", "the runner, asked to stop", "the runner, killed"} {
		t.Run(part, func(t *testing.T) {
			var uids []string
			before := map[string]*resourcev1.SandboxStatus{}
			for _, c := range cases {
				uid := ensure(t, b, c.name, spec(c.policy, probe("c", "until", "7")))
				uids = append(uids, uid)
				before[uid] = await(t, b, uid, "running", running)
				bed.Eventually(t, waitLong, "it listens to signals", outputIs(t, b, uid, "c", 1, "waiting\n"))
			}
			supervisor = away(t, b, supervisor, part, func() {
				for i, uid := range uids {
					signal(t, before[uid], cases[i].sig)
				}
				for _, uid := range uids {
					bed.Eventually(t, waitLong, "the workload ended meanwhile", gone(int(pids(before[uid])["c"])))
				}
			})
			alive := 0
			for i, uid := range uids {
				c := cases[i]
				want, right := uint64(1), ended
				if c.restarts {
					want, right = 2, running
					alive++
				}
				got := await(t, b, uid, c.name+" in its right state", func(s *resourcev1.SandboxStatus) bool {
					return right(s) && s.GetAttempt() == want
				})
				if exits := got.GetExits(); len(exits) != 1 || int32(exits[0].GetCode()) != c.code || exits[0].GetUnknown() || exits[0].GetAttempt() != 1 {
					t.Errorf("%s: got exits %v, want one with code %d of attempt 1", c.name, exits, c.code)
				}
			}
			bed.Eventually(t, waitLong, "as many shims as running sandboxes", func(context.Context) (bool, string) {
				return len(b.Shims()) == alive, sprint(b.Shims())
			})
			for i, uid := range uids { // and it stays at that
				got := await(t, b, uid, "there", func(*resourcev1.SandboxStatus) bool { return true })
				if cases[i].restarts != (got.GetAttempt() == 2) || len(got.GetExits()) != 1 {
					t.Errorf("%s went on to %v", cases[i].name, got)
				}
			}
			removeAll(t, b, uids...)
		})
	}
	settled(t, b)
}

// TestNode_LIF3_StopGoesOnWhenContainerdIsRestarted orders a stop before or while
// containerd is away.
func TestNode_LIF3_StopGoesOnWhenContainerdIsRestarted(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	stopped := func(r *sandboxhostv1.EnsureSandboxRequest) {
		t.Helper()
		r = proto.CloneOf(r)
		r.Generation++
		r.Spec.Desired = resourcev1.DesiredState_DESIRED_STATE_STOPPED
		if _, err := b.Host().EnsureSandbox(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	start := func(name, verb, says string) *sandboxhostv1.EnsureSandboxRequest {
		t.Helper()
		s := spec(always, probe("c", verb, "5"))
		s.TerminationGracePeriod = seconds(3)
		r := &sandboxhostv1.EnsureSandboxRequest{Uid: newUID(), Name: name, Generation: 1, Manager: "local", Spec: s}
		if _, err := b.Host().EnsureSandbox(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		await(t, b, r.GetUid(), "running", running)
		bed.Eventually(t, waitLong, "it listens to signals", outputIs(t, b, r.GetUid(), "c", 1, says))
		return r
	}
	ends := func(r *sandboxhostv1.EnsureSandboxRequest, code int32) {
		t.Helper()
		got := await(t, b, r.GetUid(), "stopped", ended)
		exits := got.GetExits()
		if got.GetPhase() != resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED || len(exits) != 1 || int32(exits[0].GetCode()) != code || exits[0].GetUnknown() {
			t.Errorf("%s: got %v, want it stopped after one exit with code %d", r.GetName(), got, code)
		}
	}
	deaf := start("deaf", "deaf", "deaf\n")
	stopped(deaf)
	await(t, b, deaf.GetUid(), "stopping", func(s *resourcev1.SandboxStatus) bool {
		return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING
	})
	b.Kill("containerd")
	ends(deaf, 137)

	obeys := start("obeys", "until", "waiting\n")
	second := start("deaf-too", "deaf", "deaf\n")
	b.Stop("containerd")
	stopped(obeys)
	stopped(second)
	b.Continue("containerd")
	back := time.Now()
	ends(obeys, 0)
	ends(second, 137)
	if took := time.Since(back); took > 15*time.Second {
		t.Errorf("the stops took %v after containerd was back, want 15 s at most", took)
	}
	if shims := b.Shims(); len(shims) != 0 {
		t.Errorf("all sandboxes are stopped, but there are shims %v", shims)
	}
	removeAll(t, b, deaf.GetUid(), obeys.GetUid(), second.GetUid())
	settled(t, b)
}
