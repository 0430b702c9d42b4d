package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// readyIs asks whether the condition Ready is so, with a reason that contains the text.
func readyIs(state resourcev1.ConditionState, why string) func(*resourcev1.SandboxStatus) bool {
	return func(s *resourcev1.SandboxStatus) bool {
		for _, c := range s.GetConditions() {
			if c.GetType() == "Ready" {
				return c.GetState() == state && strings.Contains(c.GetReason(), why)
			}
		}
		return false
	}
}

const (
	isTrue  = resourcev1.ConditionState_CONDITION_STATE_TRUE
	isFalse = resourcev1.ConditionState_CONDITION_STATE_FALSE
)

// signalTo sends a signal to the main process of a container.
func signalTo(t *testing.T, s *resourcev1.SandboxStatus, container string, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(int(pids(s)[container]), sig); err != nil {
		t.Fatalf("signal %s: %v", container, err)
	}
}

// A readiness probe of each kind, as a person asks for it, follows what the workload says
// of itself, both ways.
func TestNode_ReadinessFollowsProbesOfEveryKind(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	importFrom(t, b, serviceArchive)
	for _, c := range []struct{ name, probe, verb, why string }{
		{"http", "http://:8080/healthy", "http", "GET /healthy answered 503"},
		{"grpc", "grpc://:8080/shop.Rates", "grpc", "health service answers NOT_SERVING"},
		{"grpc-whole", "grpc://:8080", "grpc", "health service answers NOT_SERVING"},
	} {
		b.OK("--node-socket", b.HostSocket(), "run", "-d", "--name", c.name, "--startup", "tcp://:8080", "--readiness", c.probe,
			"--probe-set", "startup.period=100ms", "--probe-set", "startup.failure_threshold=300", "--probe-set", "readiness.period=100ms", "--probe-set", "readiness.failure_threshold=1",
			serviceImage, "--", c.verb, ":8080", "500ms")
		uid := onHost(t, b, c.name).GetUid()
		got := await(t, b, uid, "ready", readyIs(isTrue, "")) // the command waited for that
		signalTo(t, got, "main", syscall.SIGUSR1)
		await(t, b, uid, "not ready", readyIs(isFalse, c.why))
		signalTo(t, got, "main", syscall.SIGUSR2)
		got = await(t, b, uid, "ready again", readyIs(isTrue, ""))
		if got.GetAttempt() != 1 || len(got.GetExits()) != 0 {
			t.Errorf("%s: got %v, want the same life", c.name, got)
		}
		remove(t, b, uid)
	}
	b.OK("--node-socket", b.HostSocket(), "run", "-d", "--name", "exec", "--readiness", "exec:/service has '/tmp/it is so'",
		"--probe-set", "readiness.period=100ms", "--probe-set", "readiness.failure_threshold=1", "--init-container", ". tell '/notes/it is so' yes",
		"--scratch", "work:/notes", "--scratch", "work:/tmp", serviceImage, "--", "tcp", ":8080")
	uid := onHost(t, b, "exec").GetUid()
	got := await(t, b, uid, "ready", readyIs(isTrue, ""))
	file := filepath.Join(scratch(b, uid, "work"), "it is so")
	must(t, os.Rename(file, file+" not"))
	await(t, b, uid, "not ready", readyIs(isFalse, "the command ended with code 1"))
	must(t, os.Rename(file+" not", file))
	if now := await(t, b, uid, "ready again", readyIs(isTrue, "")); sprint(pids(now)) != sprint(pids(got)) {
		t.Errorf("got %v, want the same life as %v", now, got)
	}
	remove(t, b, uid)
	settled(t, b)
}

// scratch is the folder on the node of a scratch volume.
func scratch(b *bed.Bed, uid, volume string) string {
	return filepath.Join(b.Paths.Var("sandboxhost"), "scratch", strings.ToLower(uid), volume)
}

// A liveness probe that says no ends the attempt, and the next one begins by the restart
// policy; with what the flags of "run" say before and after.
func TestNode_LivenessBeginsAnewWithInitAndPreStop(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	importFrom(t, b, serviceArchive)
	b.OK("--node-socket", b.HostSocket(), "run", "-d", "--name", "rates", "--liveness", "grpc://:9000/shop.Rates", "--probe-set", "liveness.period=100ms",
		"--probe-set", "liveness.failure_threshold=2", "--expose", "9000", "--scratch", "work:/notes", "--init-container", ". tell /notes/said before",
		"--pre-stop", "/service tell /notes/said leaving", serviceImage, "--", "grpc", ":9000")
	uid := onHost(t, b, "rates").GetUid()
	got := await(t, b, uid, "ready", readyIs(isTrue, ""))
	if text := b.OK("--node-socket", b.HostSocket(), "logs", "rates"); text != "open\n" {
		t.Errorf("logs: got %q, want those of the main container", text)
	}
	signalTo(t, got, "main", syscall.SIGUSR1)
	got = await(t, b, uid, "begun anew", func(s *resourcev1.SandboxStatus) bool { return s.GetAttempt() == 2 && readyIs(isTrue, "")(s) })
	if exits := got.GetExits(); len(exits) < 2 || exits[1].GetContainer() != "main" || exits[1].GetAttempt() != 1 {
		t.Errorf("got exits %v, want that of main in attempt 1", exits)
	}
	b.OK("--node-socket", b.HostSocket(), "stop", "rates")
	raw, err := os.ReadFile(filepath.Join(scratch(b, uid, "work"), "said"))
	if want := "before\nleaving\nbefore\nleaving\n"; err != nil || string(raw) != want {
		t.Errorf("it said %q (%v), want %q", raw, err, want)
	}
	remove(t, b, uid)
	settled(t, b)
}

// TestNode_LIF6_SlowStarters has a start limit of 6 s instead of 15, and services that open
// their port after 0.1, 2, 5 and 30 s, never, and on loopback only. The limit is a number of
// questions, so the ones next to it in the field case are a second off here.
func TestNode_LIF6_SlowStarters(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	importFrom(t, b, serviceArchive)
	const limit = 6 * time.Second
	starter := func(address, after string, startup bool) *resourcev1.SandboxSpec {
		c := &resourcev1.ContainerSpec{Name: "c", Image: serviceImage, Args: []string{"tcp", address, after}, Ports: []*resourcev1.ContainerPort{{Port: 8080}}}
		if startup {
			c.StartupProbe = &resourcev1.Probe{
				Check:  &resourcev1.Probe_Tcp{Tcp: &resourcev1.TcpCheck{Port: 8080}},
				Period: durationpb.New(limit / 12), FailureThreshold: 12,
			}
		}
		return spec(never, c)
	}
	passes, fails := map[string]string{}, map[string]string{}
	for _, after := range []string{"100ms", "2s", "5s"} {
		passes[after] = ensure(t, b, "after-"+after, starter(":8080", after, true))
	}
	late := ensure(t, b, "late", starter(":8080", "12s", false))
	for after, why := range map[string]string{"30s": "nothing listens on port 8080/tcp", "1h": "nothing listens on port 8080/tcp"} {
		fails[ensure(t, b, "after-"+after, starter(":8080", after, true))] = why
	}
	fails[ensure(t, b, "loopback", starter("127.0.0.1:8080", "100ms", true))] = "bound to 127.0.0.1 only"
	waits := ensure(t, b, "waits", starter("127.0.0.1:8080", "100ms", false))

	answers := func(uid string) { // never ready before a connection from beside the bridge works
		t.Helper()
		got := await(t, b, uid, "ready", readyIs(isTrue, ""))
		if err := b.Connect(got.GetAddresses()[0] + ":8080"); err != nil || !running(got) || got.GetAttempt() != 1 {
			t.Errorf("ready, but %v: %v", err, got)
		}
	}
	for _, after := range []string{"100ms", "2s", "5s"} {
		answers(passes[after])
	}
	for uid, why := range fails {
		got := await(t, b, uid, "failed", ended)
		if took := got.GetPhaseAt().AsTime().Sub(got.GetContainers()[0].GetStartedAt().AsTime()); got.GetReason() != "UNHEALTHY" || !strings.Contains(got.GetMessage(), why) ||
			!strings.Contains(got.GetMessage(), "startup probe") || took > limit+5*time.Second || len(got.GetExits()) != 1 {
			t.Errorf("after %v: got %v, want %q", took, got, why)
		}
	}
	await(t, b, waits, "explained", readyIs(isFalse, "bound to 127.0.0.1 only"))
	answers(late)
	for _, uid := range append([]string{late, waits, passes["100ms"], passes["2s"], passes["5s"]}, keys(fails)...) {
		remove(t, b, uid)
	}
	settled(t, b)
}

func keys(m map[string]string) (all []string) {
	for key := range m {
		all = append(all, key)
	}
	return all
}
