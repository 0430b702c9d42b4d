package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/e2e/bed"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// afar starts a coordinator's machine and a node whose gateway it reaches.
func afar(t *testing.T) (far, b *bed.Bed) {
	t.Helper()
	far, b, _ = joined(t, bed.Options{Node: openGateway + "\n" + shortSession})
	bed.Eventually(t, waitLong, "the gateway answers", func(context.Context) (bool, string) {
		r := far.CLI("node", "status", bed.NodeName)
		return r.Code == 0, r.Stdout + r.Stderr
	})
	return far, b
}

// deaf is a sandbox that only a kill ends, after that grace period.
func deaf(name, grace string) string {
	return sandboxYAML(name, "deaf", "  termination_grace_period: "+grace+"\n")
}

// admission is whether the node takes work, by its own word.
func admission(t *testing.T, b *bed.Bed) *presencev1.Admission {
	t.Helper()
	p, err := b.Presence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p.GetAdmission()
}

// end reads a drain's stream to its end.
func end(stream grpc.ServerStreamingClient[presencev1.DrainResponse], err error) (*presencev1.DrainProgress, error) {
	var last *presencev1.DrainProgress
	for err == nil {
		var msg *presencev1.DrainResponse
		if msg, err = stream.Recv(); err == nil {
			last = msg.GetProgress()
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return last, err
}

// A node is taken out of use and put back from another machine, by an operator and by
// a coordinator.
func TestNode_DrainedFromAfar(t *testing.T) {
	far, b := afar(t)
	apply(t, far, sandboxYAML("plain", "sleep", "")+deaf("deaf", "2s"))
	awaitPhase(t, far, "plain", "RUNNING")
	awaitPhase(t, far, "deaf", "RUNNING")
	recorded := func() bool {
		return get(t, far, resourcev1.Kind_KIND_NODE, bed.NodeName).GetNode().GetSpec().GetCordoned()
	}

	if out := far.OK("node", "cordon", bed.NodeName, "--reason", "new disks"); !strings.Contains(out, "node node1 cordoned\n") {
		t.Errorf("cordon says %q", out)
	}
	if a := admission(t, b); !a.GetCordoned() || a.GetCordonReason() != "new disks" || !recorded() {
		t.Errorf("after a cordon the node says %v, and its record cordoned: %v", a, recorded())
	}
	running := far.Begin("node", "drain", bed.NodeName)
	bed.Eventually(t, waitLong, "the drain is under way", func(context.Context) (bool, string) {
		return strings.Contains(running.Stderr(), "sandboxes to end: deaf"), running.Stderr()
	})
	running.Interrupt()
	if r := running.Wait(); r.Code != 130 || !strings.Contains(r.Stderr, "it goes on by itself") {
		t.Errorf("an interrupted drain: exit code %d\n%s", r.Code, r.Stderr)
	}
	if out := far.OK("node", "drain", bed.NodeName); !strings.Contains(out, "node drained: 2 sandboxes are dead") {
		t.Errorf("drain says %q", out)
	}
	nobodyLives(t, b, "after the drain")
	far.OK("node", "uncordon", bed.NodeName)
	if a := admission(t, b); a.GetCordoned() || a.GetDrain() != nil || recorded() {
		t.Errorf("after uncordon the node says %v, and its record cordoned: %v", a, recorded())
	}
	awaitRunning(t, b, "plain", "deaf")

	t.Run("by a coordinator", func(t *testing.T) {
		client := presencev1.NewPresenceServiceClient(far.Gateway(bed.NodeGateway, "coordinator"))
		if _, err := client.Cordon(t.Context(), &presencev1.CordonRequest{Reason: "by a coordinator"}); err != nil {
			t.Fatal(err)
		}
		last, err := end(client.Drain(t.Context(), &presencev1.DrainRequest{}))
		if err != nil || last.GetStep() != presencev1.DrainStep_DRAIN_STEP_DONE || last.GetDead() != 2 {
			t.Errorf("the drain ended with %v, %v", last, err)
		}
		got, err := client.GetPresence(t.Context(), &presencev1.GetPresenceRequest{})
		if err != nil || !got.GetPresence().GetAdmission().GetHolding() || got.GetPresence().GetAdmission().GetCordonReason() != "by a coordinator" {
			t.Errorf("the node says %v, %v", got, err)
		}
		if _, err := client.Uncordon(t.Context(), &presencev1.UncordonRequest{}); err != nil {
			t.Fatal(err)
		}
		awaitRunning(t, b, "plain", "deaf")
	})
	t.Run("two at once", func(t *testing.T) {
		// The earlier deadline counts for both, and the drain of the other's end is theirs.
		far.OK("delete", "sandbox", "deaf")
		apply(t, far, deaf("deaf", "10m"))
		awaitPhase(t, far, "deaf", "RUNNING")
		first := far.Begin("node", "drain", bed.NodeName)
		second := far.Begin("node", "drain", bed.NodeName, "--kill-after", "3s", "--scope", "cluster")
		for _, r := range []bed.Result{first.Wait(), second.Wait()} {
			if r.Code != 0 || !strings.Contains(r.Stdout, "node drained: 2 sandboxes are dead") {
				t.Errorf("exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
		}
		nobodyLives(t, b, "after two drains")
		far.OK("node", "uncordon", bed.NodeName)
		awaitRunning(t, b, "plain", "deaf")
	})
	t.Run("uncordoned in the middle", func(t *testing.T) {
		waiting := far.Begin("node", "drain", bed.NodeName)
		bed.Eventually(t, waitLong, "the drain is under way", func(context.Context) (bool, string) {
			return strings.Contains(waiting.Stderr(), "sandboxes to end: deaf"), waiting.Stderr()
		})
		far.OK("node", "uncordon", bed.NodeName)
		if r := waiting.Wait(); r.Code != 4 || !strings.Contains(r.Stderr, "uncordoned meanwhile") {
			t.Errorf("exit code %d\n%s", r.Code, r.Stderr)
		}
		awaitRunning(t, b, "plain") // deaf has been told to end, and does not
		far.OK("node", "drain", bed.NodeName, "--kill-after", "0s")
		nobodyLives(t, b, "after a drain that kills at once")
		far.OK("node", "uncordon", bed.NodeName)
		awaitRunning(t, b, "plain", "deaf")
	})
	t.Run("the coordinator is killed in the middle", func(t *testing.T) {
		waiting := far.Begin("node", "drain", bed.NodeName, "--kill-after", "5s")
		bed.Eventually(t, waitLong, "the drain is under way", func(context.Context) (bool, string) {
			return strings.Contains(waiting.Stderr(), "sandboxes to end: deaf"), waiting.Stderr()
		})
		far.Kill("coordinator")
		if r := waiting.Wait(); r.Code != 0 {
			t.Errorf("exit code %d\n%s", r.Code, r.Stderr)
		}
		nobodyLives(t, b, "after a kill of the coordinator")
		far.WaitReady()
		far.OK("node", "uncordon", bed.NodeName)
		awaitRunning(t, b, "plain", "deaf")
	})
	far.OK("delete", "sandbox", "plain", "deaf", "--no-wait")
	bed.Eventually(t, waitLong, "deaf is told to end", func(context.Context) (bool, string) {
		s := onHost(t, b, "deaf").GetStatus()
		return s.GetPhase() >= resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING, s.String()
	})
	far.OK("node", "drain", bed.NodeName, "--kill-after", "0s")
	settled(t, b)
}

// awaitRunning waits until sandboxes run on the node.
func awaitRunning(t *testing.T, b *bed.Bed, names ...string) {
	t.Helper()
	for _, name := range names {
		bed.Eventually(t, waitLong, name+" runs", func(context.Context) (bool, string) {
			s := onHost(t, b, name).GetStatus()
			return running(s), s.String()
		})
	}
}

// A node that is not reached is cordoned by its record; what its own process holds is
// lifted when it is back. One that is removed meanwhile goes on with its drain.
func TestNode_DrainWhileItIsNotReached(t *testing.T) {
	far, b := afar(t)
	apply(t, far, sandboxYAML("plain", "sleep", "")+deaf("deaf", "4s"))
	awaitPhase(t, far, "plain", "RUNNING")
	awaitPhase(t, far, "deaf", "RUNNING")
	b.Cut()
	if r := far.CLI("node", "cordon", bed.NodeName); r.Code != 0 || !strings.Contains(r.Stdout, "cordoned by its record alone") || !strings.Contains(r.Stderr, "does not know of it") {
		t.Errorf("cordon: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := far.CLI("node", "drain", bed.NodeName); r.Code != 5 || !strings.Contains(r.Stderr, "not drained") || !strings.Contains(r.Stderr, "try: the same again once the node is reached") {
		t.Errorf("drain: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if a := admission(t, b); a.GetCordoned() || a.GetHolding() {
		t.Errorf("the node says %v, and nobody reached it", a)
	}
	b.Mend()
	b.WaitNodeReady()
	apply(t, far, sandboxYAML("late", "sleep", ""))
	bed.Eventually(t, waitLong, "the record counts when the node is back", func(context.Context) (bool, string) {
		out := far.OK("get", "sandbox", "late", "-o", "yaml")
		return strings.Contains(out, "1 cordoned"), out
	})
	far.OK("node", "uncordon", bed.NodeName)
	awaitPhase(t, far, "late", "RUNNING")

	// Removed in the middle of its drain: it says nothing of that to anybody, and ends it.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := presencev1.NewPresenceServiceClient(b.Conn("presence")).Drain(ctx, &presencev1.DrainRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	b.Cut()
	bed.Eventually(t, time.Minute, "the coordinator says that the node is lost", func(context.Context) (bool, string) {
		p := get(t, far, resourcev1.Kind_KIND_NODE, bed.NodeName).GetNode().GetPlacement()
		return p.GetLostSince() != nil, p.String()
	})
	far.OK("delete", "node", bed.NodeName)
	if last, err := end(stream, nil); err != nil || last.GetStep() != presencev1.DrainStep_DRAIN_STEP_DONE || last.GetDead() != 3 {
		t.Errorf("the drain of a removed node ended with %v, %v", last, err)
	}
	nobodyLives(t, b, "after the drain of a removed node")
	b.Mend()
	bed.Eventually(t, waitLong, "the removed node says that it was", func(ctx context.Context) (bool, string) {
		c := condition(ctx, b, "Link")
		return strings.Contains(c.GetReason(), "removed"), c.String()
	})
	r := far.CLI("node", "uncordon", bed.NodeName)
	if r.Code != 3 {
		t.Errorf("uncordon of a removed node: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := far.CLI("node", "uncordon", bed.NodeName, "--address", bed.NodeGateway); r.Code != 0 {
		t.Errorf("uncordon of a removed node by its address: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	apply(t, far, "kind: Node\nname: "+bed.NodeName+"\nspec: {}\n")
	b.WaitNodeReady()
	bed.Eventually(t, time.Minute, "what the cluster has ended is gone", func(context.Context) (bool, string) {
		left := fmt.Sprint(onHost(t, b, "plain"), onHost(t, b, "deaf"), onHost(t, b, "late"))
		return left == "<nil> <nil> <nil>", left
	})
	settled(t, b)
}

// DRN-3: a grace period and a deadline are points in time. A restart of whoever keeps
// them neither cuts them short nor starts them anew.
func TestMachine_DRN3_GraceOutlivesKills(t *testing.T) {
	const grace, deadline = 14 * time.Second, 20 * time.Second
	b, _ := machine(t, bed.Options{})
	apply(t, b, deaf("graceful", grace.String())+deaf("endless", "1h"))
	awaitPhase(t, b, "graceful", "RUNNING")
	awaitPhase(t, b, "endless", "RUNNING")
	uids := map[string]string{"graceful": onHost(t, b, "graceful").GetUid(), "endless": onHost(t, b, "endless").GetUid()}

	began := time.Now()
	waiting := b.Begin("node", "drain", bed.NodeName, "--kill-after", deadline.String())
	bed.Eventually(t, waitLong, "the drain is under way", func(context.Context) (bool, string) {
		return strings.Contains(waiting.Stderr(), "sandboxes to end: endless, graceful"), waiting.Stderr()
	})
	told := time.Now()
	for _, name := range []string{"sandboxhost", "presence", "sandbox-agent", "sandboxhost", "containerd", "sandboxhost"} {
		b.Kill(name)
		b.WaitComponents()
	}
	if took := time.Since(began); took > grace {
		t.Fatalf("the kills took %v: that shows nothing about a grace of %v", took, grace)
	}
	if r := waiting.Wait(); r.Code != 0 || !strings.Contains(r.Stdout, "node drained: 2 sandboxes are dead") {
		t.Errorf("drain: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	for name, after := range map[string]time.Duration{"graceful": grace, "endless": deadline} {
		s := await(t, b, uids[name], "stopped", ended)
		if len(s.GetExits()) != 1 || s.GetExits()[0].GetSignal() != 9 {
			t.Errorf("%s: exits are %v, want one by signal 9", name, s.GetExits())
			continue
		}
		at := s.GetExits()[0].GetExitedAt().AsTime()
		if at.Before(began.Add(after)) || at.After(told.Add(after+3*time.Second)) {
			t.Errorf("%s ended %v after the drain was asked for, want %v", name, at.Sub(began), after)
		}
	}
	b.OK("node", "uncordon", bed.NodeName)
	awaitPhase(t, b, "graceful", "RUNNING")
	b.OK("node", "drain", bed.NodeName, "--kill-after", "0s")
	b.OK("delete", "sandbox", "graceful", "endless")
	settled(t, b)
}

// What was taken out of use stays so when everything is stopped and started: a hold
// outlives down and up, as wishes do, and so does the hold of a shutdown within one boot.
func TestMachine_HoldsOutliveDownAndUp(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	b.OK("run", "-d", "--name", "web", bed.ProbeImage, "--", "sleep")
	awaitPhase(t, b, "web", "RUNNING")
	for i, drain := range []*presencev1.DrainRequest{
		{Reason: "new disks"},
		{Shutdown: true, KillAfter: durationpb.New(time.Minute)},
	} {
		last := drained(t, b, drain, nil)
		if last.GetDead() != 1 {
			t.Fatalf("the drain ended with %v", last)
		}
		b.OK("down", "--yes")
		b.Start()
		b.WaitComponents()
		uid := onHost(t, b, "web").GetUid()
		await(t, b, uid, "held after down and up", func(s *resourcev1.SandboxStatus) bool {
			return ended(s) && s.GetReason() == "HELD" && s.GetAttempt() == uint64(i+1)
		})
		nobodyLives(t, b, "after down and up")
		a := admission(t, b)
		if !a.GetHolding() || a.GetCordoned() == drain.GetShutdown() || a.GetCordonReason() != drain.GetReason() {
			t.Errorf("after down and up of %v the node says %v", drain, a)
		}
		b.OK("node", "uncordon", bed.NodeName)
		await(t, b, uid, "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == uint64(i+2) })
	}
	b.OK("rm", "web")
	settled(t, b)
}
