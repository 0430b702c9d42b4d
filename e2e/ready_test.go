package e2e

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// isReady says whether the condition of a sandbox is yes.
func isReady(s *resourcev1.SandboxStatus) bool {
	for _, c := range s.GetConditions() {
		if c.GetType() == "Ready" {
			return c.GetState() == resourcev1.ConditionState_CONDITION_STATE_TRUE
		}
	}
	return false
}

// The init container first, then the port, then the probes; other limits in place; and
// the death of the host changes none of it. (ADO-5)
func TestSandbox_ReadyAndChangedInPlace(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	connect := &resourcev1.Probe{
		Check:  &resourcev1.Probe_Tcp{Tcp: &resourcev1.TcpCheck{Port: 7000}},
		Period: durationpb.New(200 * time.Millisecond),
	}
	first, server := probe("first", "exit", "0", "500ms"), probe("server", "serve", "7000")
	first.Init = true
	server.Ports = []*resourcev1.ContainerPort{{Port: 7000}}
	server.ReadinessProbe, server.LivenessProbe = connect, connect
	s := spec(always, first, server)
	uid := ensure(t, b, "web", s)
	before := await(t, b, uid, "ready", isReady)
	exit := before.GetContainers()[0].GetExit()
	if exit == nil || exit.GetCode() != 0 || exit.GetExitedAt().AsTime().After(before.GetContainers()[1].GetStartedAt().AsTime()) {
		t.Errorf("the init container ended with %v, the other was started at %v", exit, before.GetContainers()[1].GetStartedAt().AsTime())
	}
	if out := b.OK("--node-socket", b.HostSocket(), "ps"); !strings.Contains(out, "RUNNING   true") {
		t.Errorf("ps does not say that it is ready:\n%s", out)
	}
	b.Kill("sandboxhost")
	server.Limits = &resourcev1.ResourceLimits{PidsLimit: new(int64(64))}
	r := &sandboxhostv1.EnsureSandboxRequest{Uid: uid, Name: "web", Generation: 2, Manager: "local", Spec: s}
	if _, err := b.Host().EnsureSandbox(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	after := await(t, b, uid, "limited", func(s *resourcev1.SandboxStatus) bool {
		if !isReady(s) {
			t.Errorf("not ready after the death of the host: %v", s.GetConditions())
		}
		return s.GetContainers()[1].GetLimits().GetPidsLimit() == 64
	})
	if after.GetAttempt() != 1 || pids(after)["server"] != pids(before)["server"] {
		t.Errorf("attempt %d with process %d, want 1 with %d", after.GetAttempt(), pids(after)["server"], pids(before)["server"])
	}
	remove(t, b, uid)

	// A port that is never opened, told to the person who waits for it.
	socket := []string{"--node-socket", b.HostSocket()}
	wrong := b.CLI(append(socket, "--timeout", "5s", "run", "-d", "--name", "wrong", "--expose", "7001", bed.ProbeImage, "--", "serve", "7000")...)
	if wrong.Code == 0 || !strings.Contains(wrong.Stderr, "nothing listens on port 7001/tcp, but on 7000/tcp; is it the right port?") {
		t.Errorf("got code %d: %s", wrong.Code, wrong.Stderr)
	}
	b.OK(append(socket, "rm", "wrong")...)
	settled(t, b)
}

// probing is a probe that asks often and needs few answers, which a busy machine may
// take its time for.
func probing(check *resourcev1.Probe) *resourcev1.Probe {
	check.Period, check.Timeout, check.FailureThreshold = durationpb.New(200*time.Millisecond), durationpb.New(20*time.Second), 2
	return check
}

func program(args ...string) *resourcev1.Probe {
	return probing(&resourcev1.Probe{Check: &resourcev1.Probe_Exec{Exec: &resourcev1.ExecAction{Command: append([]string{"/probe"}, args...)}}})
}

func page(path string) *resourcev1.Probe {
	return probing(&resourcev1.Probe{Check: &resourcev1.Probe_Http{Http: &resourcev1.HttpCheck{Port: 7000, Path: path}}})
}

// What programs and pages say of a sandbox: ready; not ready, and why; and a new
// attempt when it is not live, which "describe" tells.
func TestSandbox_ProbesByProgramAndPage(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	start := func(name string, set func(c *resourcev1.ContainerSpec)) string {
		c := probe("main", "web", "7000")
		set(c)
		return ensure(t, b, name, spec(always, c))
	}
	good := start("good", func(c *resourcev1.ContainerSpec) {
		c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = program("exit", "0"), page("/ok"), page("/ok")
	})
	busy := start("busy", func(c *resourcev1.ContainerSpec) { c.ReadinessProbe = page("/busy") })
	dead := start("dead", func(c *resourcev1.ContainerSpec) { c.LivenessProbe = program("exit", "7") })
	await(t, b, good, "ready", isReady)
	await(t, b, busy, "not ready for its page", func(s *resourcev1.SandboxStatus) bool {
		return running(s) && !isReady(s) && strings.Contains(s.String(), "503")
	})
	await(t, b, dead, "in another attempt", func(s *resourcev1.SandboxStatus) bool { return s.GetAttempt() > 1 })
	socket := []string{"--node-socket", b.HostSocket()}
	for name, says := range map[string]string{"good": "Ready sandbox true", "busy": "503", "dead": "ATTEMPT CONTAINER EXIT"} {
		if out := b.OK(append(socket, "describe", name)...); !strings.Contains(strings.Join(strings.Fields(out), " "), says) {
			t.Errorf("the description of %s does not say %q:\n%s", name, says, out)
		}
	}
	b.OK(append(socket, "wait", "good")...)
	if r := b.CLI(append(socket, "wait", "--timeout", "1s", "busy")...); r.Code == 0 || !strings.Contains(r.Stderr, "503") {
		t.Errorf("to wait for one that is not ready ended with %d: %s", r.Code, r.Stderr)
	}
	for _, uid := range []string{good, busy, dead} {
		remove(t, b, uid)
	}
	settled(t, b)
}
