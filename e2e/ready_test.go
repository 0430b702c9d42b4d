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
	socket := []string{"--node-socket", b.HostSocket()}
	b.OK(append(socket, "explain", "web")...)
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

	// A port that is never opened, told to the person who waits for it, and to who asks later.
	wrong := b.CLI(append(socket, "--timeout", "5s", "run", "-d", "--name", "wrong", "--expose", "7001", bed.ProbeImage, "--", "serve", "7000")...)
	if wrong.Code == 0 || !strings.Contains(wrong.Stderr, "nothing listens on port 7001/tcp, but on 7000/tcp; is it the right port?") {
		t.Errorf("got code %d: %s", wrong.Code, wrong.Stderr)
	}
	why := b.CLI(append(socket, "explain", "wrong")...)
	if why.Code != 7 || !strings.Contains(why.Stdout, "nothing listens on port 7001/tcp") || !strings.Contains(why.Stdout, "next: ") {
		t.Errorf("explain: got code %d: %s%s", why.Code, why.Stdout, why.Stderr)
	}
	b.OK(append(socket, "rm", "wrong")...)
	settled(t, b)
}
