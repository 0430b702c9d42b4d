package e2e

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// openGateway lets a node take calls from other machines.
const openGateway = "listen_address: 0.0.0.0:8444"

// A node is reached from another machine, over a cable, by who may, and by nobody
// else; and again after its end of the gateway was killed.
func TestGateway_FromAnotherMachine(t *testing.T) {
	far, b, _ := joined(t, bed.Options{Node: openGateway})
	operator := far.Gateway(bed.NodeGateway, "operator")

	t.Run("an operator asks the node where the coordinator says", func(t *testing.T) {
		bed.Eventually(t, waitLong, "the node is ready, by its own word", func(context.Context) (bool, string) {
			r := far.CLI("node", "status", bed.NodeName)
			return r.Code == 0 && strings.Contains(r.Stdout, "Ready"), r.Stdout + r.Stderr
		})
		if out := far.OK("get", "node", bed.NodeName, "-o", "json"); !strings.Contains(out, bed.NodeGateway) {
			t.Errorf("the record does not say where the gateway is:\n%s", out)
		}
	})
	t.Run("the supervisor and every process tell how they are", func(t *testing.T) {
		for _, name := range append(slices.Clone(ourProcesses), "supervisor") {
			if name == "coordinator" {
				continue // has a door of its own
			}
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "staddle-process", name), 10*time.Second)
			status, err := processv1.NewProcessServiceClient(operator).GetStatus(ctx, &processv1.GetStatusRequest{})
			if err != nil || status.GetProcess() != name || status.GetState() != processv1.ProcessState_PROCESS_STATE_READY {
				t.Errorf("%s: %v, %v", name, status, err)
			}
			health, err := healthv1.NewHealthClient(operator).Check(ctx, &healthv1.HealthCheckRequest{})
			if err != nil || health.GetStatus() != healthv1.HealthCheckResponse_SERVING {
				t.Errorf("health of %s: %v, %v", name, health, err)
			}
			cancel()
		}
	})
	t.Run("nobody else is let in", func(t *testing.T) { wrongIdentities(t, far) })
	t.Run("what is not listed is refused", func(t *testing.T) {
		_, err := sandboxhostv1.NewSandboxHostServiceClient(operator).ListSandboxes(t.Context(), &sandboxhostv1.ListSandboxesRequest{})
		if fault.KindOf(err) != fault.Denied || fault.Reason(err) != "NOT_LISTED" || !strings.Contains(err.Error(), "staddle.presence.v1.PresenceService") {
			t.Errorf("got %v, want it refused with the list", err)
		}
	})
	t.Run("it answers again after kills of both ends", func(t *testing.T) { killEnds(t, far, b) })
}

func wrongIdentities(t *testing.T, far *bed.Bed) {
	for _, c := range []struct {
		name, identity string
		kind           fault.Kind
		says           string
	}{
		{"the node itself", "node", fault.Denied, "neither an operator nor a coordinator"},
		{"nobody", "", fault.Unavailable, ""}, // hung up on, in one of several ways
	} {
		got, err := presencev1.NewPresenceServiceClient(far.Gateway(bed.NodeGateway, c.identity)).
			GetPresence(t.Context(), &presencev1.GetPresenceRequest{})
		if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v, want %v with %q", c.name, got, err, c.kind, c.says)
		}
	}
	coordinator := far.Gateway(bed.NodeGateway, "coordinator")
	if _, err := presencev1.NewPresenceServiceClient(coordinator).GetPresence(t.Context(), &presencev1.GetPresenceRequest{}); err != nil {
		t.Errorf("a coordinator: %v", err)
	}
	used := func(identity string) error {
		r, err := sandboxhostv1.NewStatsServiceClient(far.Gateway(bed.NodeGateway, identity)).GetStats(t.Context(), &sandboxhostv1.GetStatsRequest{})
		if err == nil && r.GetNode().GetMachine().GetCpuUsageNanoseconds() == 0 {
			t.Errorf("what the machine uses: got %v", r)
		}
		return err
	}
	if err := used("operator"); err != nil {
		t.Errorf("an operator asks what is used: %v", err)
	}
	if err := used("coordinator"); fault.KindOf(err) != fault.Denied {
		t.Errorf("a coordinator asks what is used: %v", err)
	}
	pki := far.Paths.Etc() + "/pki/"
	r := far.CLI("node", "status", bed.NodeName, "--address", bed.NodeGateway, "--cert", pki+"node.crt", "--key", pki+"node.key")
	if r.Code != 6 || !strings.Contains(r.Stderr, "neither an operator nor a coordinator") {
		t.Errorf("the command line with a node's identity: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

func killEnds(t *testing.T, far, b *bed.Bed) {
	client := presencev1.NewPresenceServiceClient(far.Gateway(bed.NodeGateway, "operator"))
	ask := func(ctx context.Context) (bool, string) {
		got, err := client.GetPresence(ctx, &presencev1.GetPresenceRequest{})
		return err == nil && got.GetPresence().GetReady(), sprint(got) + sprint(err)
	}
	pid := b.PID("clusteraccess")
	bed.KillPID(b, pid)
	for dials := 0; dials < 20 || b.PID("clusteraccess") == pid; dials++ { // never refused: the supervisor holds the listener
		if err := far.DialAt("tcp", bed.NodeGateway).Close(); err != nil {
			t.Error(err)
		}
	}
	bed.Eventually(t, waitLong, "the node answers again after a kill of clusteraccess", ask)
	for _, name := range []string{"clusteraccess", "presence"} {
		watch, err := client.WatchPresence(t.Context(), &presencev1.WatchPresenceRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
		b.Kill(name)
		for err == nil {
			_, err = watch.Recv()
		}
		if fault.KindOf(err) != fault.Unavailable {
			t.Errorf("a watch over the kill of %s ends with %v, want Unavailable", name, err)
		}
		bed.Eventually(t, waitLong, "the node answers again after the kill of "+name, ask)
	}
}

// An operator who is to be let in no more is cut off everywhere while her certificate is
// valid: at the coordinator, and at the gateway in the middle of a call, also when the node
// has lost its coordinator and was started anew.
func TestGateway_RefusedOperatorIsCutOff(t *testing.T) {
	far, b := afar(t)
	far.IssueOperator("eve")
	pki := far.Paths.Etc() + "/pki/"
	as := func(args ...string) bed.Result {
		return far.CLI(append(args, "--cert", pki+"eve.crt", "--key", pki+"eve.key")...)
	}
	if r := as("node", "status", bed.NodeName); r.Code != 0 {
		t.Fatalf("before she is refused: exit code %d\n%s", r.Code, r.Stderr)
	}
	watch, err := presencev1.NewPresenceServiceClient(far.Gateway(bed.NodeGateway, "eve")).WatchPresence(t.Context(), &presencev1.WatchPresenceRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	must(t, err)

	raw, err := os.ReadFile(far.Paths.CoordinatorFile())
	must(t, err)
	must(t, os.WriteFile(far.Paths.CoordinatorFile(), append(raw, "refused_identities: [user/eve]\n"...), 0o644))
	far.OK("component", "restart", "coordinator")
	for err == nil {
		_, err = watch.Recv()
	}
	if fault.KindOf(err) != fault.Denied || fault.Reason(err) != "REFUSED" {
		t.Errorf("her open call ended with %v, want Denied with reason REFUSED", err)
	}
	far.WaitReady()
	if r := as("node", "ls"); r.Code != 6 {
		t.Errorf("at the coordinator: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	refused := func(when string) {
		t.Helper()
		bed.Eventually(t, waitLong, "she is refused "+when, func(context.Context) (bool, string) {
			r := as("node", "status", bed.NodeName, "--address", bed.NodeGateway)
			return r.Code == 6 && strings.Contains(r.Stderr, "user/eve is refused"), r.Stdout + r.Stderr
		})
	}
	refused("at the gateway")
	far.Stop("coordinator")
	b.Kill("clusteraccess")
	refused("after a kill, without a coordinator")
	far.Continue("coordinator")
	far.WaitReady()
	b.WaitNodeReady()
	if r := far.CLI("node", "status", bed.NodeName); r.Code != 0 {
		t.Errorf("another operator: exit code %d\n%s", r.Code, r.Stderr)
	}
}

// What the guide says of the gateway is run as it stands there.
func TestGuide_GatewayAnswersAsItSays(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	install(t, b, "grpcurl")
	calls := 0
	for _, e := range examples(t, "../docs/guide/gateway.md") {
		if strings.HasPrefix(e.command, "sudo bin/grpcurl") {
			calls++
			t.Run(e.where, func(t *testing.T) { runExample(t, b, e) })
		}
	}
	if calls < 3 {
		t.Errorf("the guide shows %d calls", calls)
	}
	if out := b.OK("node", "status", bed.NodeName); !strings.Contains(out, "Ready") {
		t.Errorf("a machine by itself does not answer through its gateway:\n%s", out)
	}
}
