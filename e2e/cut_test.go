package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"staddle.internal/e2e/bed"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// shortSession makes what follows from a lost session quick.
const shortSession = "presence: {session_ttl: 5s, hold_down: 1s}"

// joined starts a machine with a coordinator and a node that reaches it over a
// cable, with the workload's image.
func joined(t *testing.T, opts bed.Options) (far, b *bed.Bed, supervisor *os.Process) {
	t.Helper()
	far = bed.New(t, bed.Options{Lan: true})
	far.Start()
	far.WaitReady()
	opts.Cluster = far
	b = bed.New(t, opts)
	supervisor = b.Start()
	b.WaitReady()
	importProbe(t, b)
	return far, b, supervisor
}

// apply gives records to a bed's coordinator.
func apply(t *testing.T, b *bed.Bed, yaml string) {
	t.Helper()
	if r := b.CLIWith(strings.NewReader(yaml), "apply", "-f", "-"); r.Code != 0 {
		t.Fatalf("apply: exit code %d\n%s%s\n%s", r.Code, r.Stdout, r.Stderr, yaml)
	}
}

// sandboxYAML is a sandbox of one container; more is further lines of its spec.
func sandboxYAML(name, args, more string) string {
	return fmt.Sprintf("kind: Sandbox\nname: %s\nspec:\n  desired: RUNNING\n  containers:\n    - {name: main, image: %q, args: [%s]}\n%s\n---\n",
		name, bed.ProbeImage, args, more)
}

// get is a record as a bed's coordinator has it.
func get(t *testing.T, b *bed.Bed, kind resourcev1.Kind, name string) *resourcev1.Resource {
	t.Helper()
	r, err := b.Records().GetResource(t.Context(), &coordinatorv1.GetResourceRequest{
		Kind: kind, Which: &coordinatorv1.GetResourceRequest_Name{Name: name},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetResource()
}

// link says whether clusteraccess calls its link to the coordinator serving.
func link(ctx context.Context, b *bed.Bed) string {
	r, err := grpc_health_v1.NewHealthClient(b.Conn("clusteraccess")).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "link"})
	if err != nil {
		return err.Error()
	}
	return r.GetStatus().String()
}

// condition is one of the conditions that presence tells.
func condition(ctx context.Context, b *bed.Bed, kind string) *resourcev1.Condition {
	p, err := b.Presence(ctx)
	if err != nil {
		return &resourcev1.Condition{Reason: err.Error()}
	}
	for _, c := range p.GetConditions() {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}

// processes are the ids of all components of a bed.
func processes(t *testing.T, b *bed.Bed) map[string]int32 {
	t.Helper()
	graph, err := b.Graph(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int32{}
	for name, c := range graph {
		all[name] = c.GetPid()
	}
	return all
}

// SUP-2 and ETC-3: the way to the coordinator is cut without a word. The node
// says so, its sandboxes go on, and when the way is back everything converges
// without a restart of anything.
func TestNode_SUP2_CutOffAndBack(t *testing.T) {
	far, b, _ := joined(t, bed.Options{Node: shortSession})
	apply(t, far, sandboxYAML("kept", "count, 1ms", "")+sandboxYAML("doomed", "sleep", ""))
	awaitPhase(t, far, "kept", "RUNNING")
	awaitPhase(t, far, "doomed", "RUNNING")
	kept, doomed, before := onHost(t, b, "kept"), onHost(t, b, "doomed"), processes(t, b)

	b.Cut()
	// The link is pinged every 12 s and has 5 s to answer; renewals are sooner.
	bed.Eventually(t, 20*time.Second, "clusteraccess says that the link is down", func(ctx context.Context) (bool, string) {
		got := link(ctx, b)
		return got == "NOT_SERVING", got
	})
	bed.Eventually(t, 15*time.Second, "the node is not ready, has no session, and says why", func(ctx context.Context) (bool, string) {
		p, err := b.Presence(ctx)
		if err != nil {
			return false, err.Error()
		}
		c := condition(ctx, b, "Link")
		return !p.GetReady() && p.GetSessionId() == 0 && c.GetState() == resourcev1.ConditionState_CONDITION_STATE_FALSE &&
			strings.Contains(c.GetReason(), "192.0.2.1"), p.String()
	})
	bed.Eventually(t, 15*time.Second, "the coordinator says that the node is lost and not ready", func(context.Context) (bool, string) {
		lost := get(t, far, resourcev1.Kind_KIND_NODE, bed.NodeName).GetNode().GetPlacement().GetLostSince() != nil
		shown := far.OK("get", "node", bed.NodeName)
		return lost && strings.Contains(shown, "lost") && strings.Contains(shown, "false") && !strings.Contains(shown, "true"), shown
	})
	if r := b.CLI("get", "node", "--timeout", "10s"); r.Code != 5 || !strings.Contains(r.Stderr, "--node-socket") {
		t.Errorf("the coordinator asked from the node: exit code %d, want 5 and a way out\n%s", r.Code, r.Stderr)
	}

	// What is asked for meanwhile, at both ends.
	far.OK("delete", "sandbox", "doomed", "--no-wait")
	apply(t, far, sandboxYAML("fresh", "sleep", ""))
	socket := []string{"--node-socket", b.HostSocket()}
	b.OK(append(socket, "run", "-d", "--name", "local", bed.ProbeImage, "--", "sleep")...)
	if out := b.OK(append(socket, "ps")...); !strings.Contains(out, "kept") || !strings.Contains(out, "local") {
		t.Errorf("ps of the node alone:\n%s", out)
	}
	b.OK(append(socket, "rm", "local")...)
	was := counted(t, output(t, b, kept.GetUid(), "main", 1))
	bed.Eventually(t, waitLong, "output goes on during the cut", moreThan(t, b, kept.GetUid(), "main", was))
	if now := onHost(t, b, "doomed"); sprint(pids(now.GetStatus())) != sprint(pids(doomed.GetStatus())) {
		t.Errorf("a sandbox was changed during the cut: %v, want %v", now, doomed)
	}

	b.Mend()
	back := time.Now()
	b.WaitNodeReady()
	if took := time.Since(back); took > 30*time.Second {
		t.Errorf("the node was ready %v after the cut, want at most 30 s", took)
	}
	awaitPhase(t, far, "fresh", "RUNNING")
	bed.Eventually(t, waitLong, "the deleted one is gone at both ends", func(context.Context) (bool, string) {
		there, out := onHost(t, b, "doomed"), far.OK("get", "sandbox")
		return there == nil && !strings.Contains(out, "doomed"), out
	})
	now := await(t, b, kept.GetUid(), "running", running)
	if sprint(pids(now)) != sprint(pids(kept.GetStatus())) || now.GetAttempt() != 1 {
		t.Errorf("the sandbox was touched: %v, want %v", now, kept.GetStatus())
	}
	was = counted(t, output(t, b, kept.GetUid(), "main", 1))
	bed.Eventually(t, waitLong, "output goes on after the cut", moreThan(t, b, kept.GetUid(), "main", was))
	if after := processes(t, b); sprint(after) != sprint(before) {
		t.Errorf("processes were started anew: %v, want %v", after, before)
	}
}

// DESIGN 5: what the node does with its sandboxes while it is cut off is part of
// each one's wish.
func TestNode_CutOffObeysDisconnectPolicies(t *testing.T) {
	far, b, _ := joined(t, bed.Options{Node: shortSession})
	apply(t, far, sandboxYAML("limited", "count, 1ms", "  disconnect: {stop_after: 10s}\n  termination_grace_period: 1s\n")+sandboxYAML("steady", "sleep", ""))
	awaitPhase(t, far, "limited", "RUNNING")
	awaitPhase(t, far, "steady", "RUNNING")
	limited, steady := onHost(t, b, "limited"), onHost(t, b, "steady")

	cut := time.Now()
	b.Cut()
	stopped := await(t, b, limited.GetUid(), "stopped by its policy", func(s *resourcev1.SandboxStatus) bool {
		return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	})
	if stopped.GetReason() != "DISCONNECTED" {
		t.Errorf("got reason %s, want DISCONNECTED", stopped.GetReason())
	}
	// The last renewal was at most a third of the session before the cut.
	after := stopped.GetPhaseAt().AsTime().Sub(cut)
	if after < 8*time.Second || after > 20*time.Second {
		t.Errorf("stopped %v after the cut, want about 10 s after the last renewal", after)
	}
	// Who forgot everything knows at once until when the node could act.
	for _, name := range []string{"sandboxhost", "clusteraccess"} {
		b.Kill(name)
		b.WaitComponents()
		bed.Eventually(t, waitLong, "stopped also after a kill of "+name, func(context.Context) (bool, string) {
			s := onHost(t, b, "limited").GetStatus()
			return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED, s.String()
		})
	}
	if s := onHost(t, b, "limited").GetStatus(); s.GetAttempt() != 1 {
		t.Errorf("it was started again while cut off: %v", s)
	}

	b.Mend()
	again := await(t, b, limited.GetUid(), "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == 2 })
	if exits := again.GetExits(); len(exits) != 1 || exits[0].GetAttempt() != 1 || exits[0].GetUnknown() {
		t.Errorf("got exits %v, want the one of the stop", exits)
	}
	awaitPhase(t, far, "limited", "RUNNING")
	if now := await(t, b, steady.GetUid(), "running", running); sprint(pids(now)) != sprint(pids(steady.GetStatus())) || now.GetAttempt() != 1 {
		t.Errorf("a sandbox without a policy was touched: %v, want %v", now, steady.GetStatus())
	}
}
