package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
)

// times is how often each way to lose a session is tried.
const times = 50

// Sessions that are lost by the dozen leave nothing: no process, no open file and no goroutine. (EXE-3)
func TestExec_EXE3_LostSessionsLeaveNothing(t *testing.T) {
	b, _ := alone(t, bed.Options{Supervisor: "  backoff: {initial: 20ms, cap: 200ms}"})
	uid := ensure(t, b, "box", spec(always, probe("main", "sleep")))
	await(t, b, uid, "running", running)
	e := execer{t, b, "box", uid, []string{"--node-socket", b.HostSocket()}}
	interactive, plain := e.args([]string{"-i", "-t"}, "probe", "size"), e.args(nil, "probe", "sleep")
	lost := func(clients int) {
		begun := make([]*exec.Cmd, 0, clients)
		for i := range clients {
			args := plain
			if i%2 == 0 {
				args = interactive
			}
			begun = append(begun, b.StartCLI(args...))
		}
		e.awaitAlive(1+clients, "all run")
		for _, c := range begun {
			must(t, c.Process.Kill())
			_ = c.Wait() // it was killed
		}
		e.awaitAlive(1, "all ended with their clients")
	}
	restarted := func(args []string) {
		client := b.Begin(args...)
		e.awaitAlive(2, "it runs")
		b.Kill("sandboxhost")
		if r := client.Wait(); r.Code != 125 {
			t.Errorf("got code %d, %s of one whose host was killed, want 125", r.Code, r.Stderr)
		}
		e.awaitAlive(1, "the next life of the host ended it")
		b.WaitReady()
	}
	lost(2)
	restarted(plain) // so that before and after are both of a host that found something
	lost(2)
	e.awaitNoTraces()
	before := stillStock(t, b, nil)
	lost(times)
	for i := range times {
		args := plain
		if i%2 == 0 {
			args = interactive
		}
		restarted(args)
	}
	lost(2)
	e.awaitNoTraces()
	stillStock(t, b, before)
}

// A command that says nothing for long has its own code in the end, here and through the gateway, and over
// a kill of containerd; and none that is cut off ends well. (EXE-4)
func TestExec_EXE4_SilentForLong(t *testing.T) {
	far, b := afar(t)
	apply(t, far, sandboxYAML("web", "sleep", "")+sandboxYAML("doomed", "sleep", ""))
	awaitPhase(t, far, "web", "RUNNING")
	awaitPhase(t, far, "doomed", "RUNNING")
	const rest = "100s"
	here := b.Begin("--node-socket", b.HostSocket(), "exec", "web", "--", "probe", "exit", "7", rest)
	there := far.Begin("exec", "web", "--", "probe", "exit", "7", rest)
	short := far.Begin("exec", "web", "--", "probe", "exit", "7", "30s")
	doomed := far.Begin("exec", "doomed", "--", "probe", "exit", "7", "30s")
	began := time.Now()
	bed.Eventually(t, waitLong, "all run for five seconds", func(context.Context) (bool, string) {
		n, age := len(b.Workloads()), time.Since(began)
		return n == 6 && age > 5*time.Second, fmt.Sprintf("%d processes after %s", n, age)
	})
	b.Kill("containerd")
	b.WaitReady()
	far.OK("delete", "sandbox", "doomed")
	if r := doomed.Wait(); r.Code != 128+9 {
		t.Errorf("of a sandbox that was removed: got code %d, %s, want 137", r.Code, r.Stderr)
	}
	for what, r := range map[string]*bed.Running{"for 30 s": short, "for long": here, "for long, through the gateway": there} {
		if got := r.Wait(); got.Code != 7 {
			t.Errorf("silent %s: got code %d, %s, want 7", what, got.Code, got.Stderr)
		}
	}
}
