package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"
)

func chain(mode string) []part {
	return []part{{name: "a", mode: mode}, {name: "b", mode: "serve", more: "needs: [a]"}, {name: "c", mode: "serve", more: "order_only: [b]"}}
}

func TestSupervisor_StartsInOrderAndStopsInReverse(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.start()
	for _, name := range []string{"a", "b", "c"} {
		n.untilState(name, ready)
	}
	if code := n.stop(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
	if got := n.order("to", "ready"); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("got ready in order %v, want a b c", got)
	}
	if got := n.order("to", "stopped"); !slices.Equal(got, []string{"c", "b", "a"}) {
		t.Errorf("got stopped in order %v, want c b a", got)
	}
	if left, err := filepath.Glob(filepath.Join(n.root, "run/*.sock")); err != nil || len(left) > 0 {
		t.Errorf("got sockets %v (%v), want none left", left, err)
	}
}

// order reads from the supervisor's own lines which components changed so.
func (n *node) order(key, value string) []string {
	var names []string
	for _, line := range regexp.MustCompile(`"component":"([^"]*)"[^}]*"`+key+`":"`+value+`"`).FindAllStringSubmatch(n.out.String(), -1) {
		names = append(names, line[1])
	}
	return names
}

func TestSupervisor_CrashRestartsOnlyTheCrashed(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.start()
	n.untilState("c", ready)
	before := n.graph()
	for range 3 {
		pid := n.graph()["a"].GetPid()
		if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		after := n.untilAgain("a", pid)
		if after.GetLastExit() != "signal killed" {
			t.Errorf("got last exit %q, want it to name the signal", after.GetLastExit())
		}
	}
	for _, name := range []string{"b", "c"} {
		if got := n.graph()[name]; got.GetPid() != before[name].GetPid() || got.GetStarts() != 1 {
			t.Errorf("got %v, want %s untouched", got, name)
		}
	}
}

func TestSupervisor_FailingComponentHoldsUpOnlyItsDependents(t *testing.T) {
	n := newNode(t, "", append(chain("fail"), part{name: "d", mode: "serve"})...)
	n.start()
	n.untilState("d", ready)
	n.until("a", "retried", func(c *supervisorv1.Component) bool { return c.GetStarts() >= 3 })
	c := n.until("b", "waiting with the reason", func(c *supervisorv1.Component) bool {
		return c.GetState() == waiting && strings.Contains(c.GetReason(), "exit code 1")
	})
	if c.GetStarts() != 0 {
		t.Errorf("got %d starts of b, want none", c.GetStarts())
	}
	st := n.status()
	if st.GetState() != processv1.ProcessState_PROCESS_STATE_STARTING || !strings.Contains(st.GetReason(), "a is") {
		t.Errorf("got status %v, want it to name a", st)
	}
}

func (n *node) status() *processv1.GetStatusResponse {
	n.t.Helper()
	st, err := processv1.NewProcessServiceClient(n.conn).GetStatus(n.t.Context(), &processv1.GetStatusRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	return st
}

func TestSupervisor_FailFastUnwinds(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "serve"}, part{name: "b", mode: "fail", more: "needs: [a]"}, part{name: "c", mode: "serve", more: "needs: [b]"})
	n.start("--fail-fast")
	if code := n.wait(); code != 1 {
		t.Errorf("got exit code %d, want 1", code)
	}
	if !strings.Contains(n.out.String(), "component b: exit code 1") {
		t.Error("got no line that names b, want the cause")
	}
	if got := n.order("to", "starting"); slices.Contains(got, "c") {
		t.Errorf("got starts of %v, want none of c", got)
	}
}

// SUP-4: a component that answers once and dies was never ready, however often it
// does so.
func TestSupervisor_SUP4_OneAnswerBeforeDeathIsNotReady(t *testing.T) {
	n := newNode(t, "  start_timeout: 10s\n", chain("serve and die")...)
	n.start()
	n.until("a", "dead eight times", func(c *supervisorv1.Component) bool { return c.GetStarts() >= 8 })
	if got := n.graph()["b"]; got.GetStarts() != 0 {
		t.Errorf("got %v, want b never started", got)
	}
}

func TestSupervisor_StoppedProcessIsKilledAndStartedAgain(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.start()
	n.untilState("c", ready)
	pid := n.graph()["b"].GetPid()
	if err := syscall.Kill(int(pid), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	after := n.untilAgain("b", pid)
	if after.GetLastExit() != "signal killed" || after.GetStarts() != 2 {
		t.Errorf("got %v, want one kill", after)
	}
}

func TestSupervisor_StoppedAtStartFailsByItsStartTimeout(t *testing.T) {
	n := newNode(t, "  start_timeout: 1s\n  stop_timeout: 1s\n", chain("never ready")...)
	n.start()
	c := n.until("a", "given up", func(c *supervisorv1.Component) bool { return c.GetStarts() >= 2 })
	if !strings.Contains(n.out.String(), "not ready within 1s: recovering 3 volumes") {
		t.Errorf("got %v, want the reason of the process in the log", c)
	}
}

func TestSupervisor_ReasonOutsideTheMachineIsWaitedFor(t *testing.T) {
	n := newNode(t, "  start_timeout: 1s\n", part{name: "a", mode: "outside"}, part{name: "z", mode: "never ready"})
	n.start()
	n.until("z", "given up twice", func(c *supervisorv1.Component) bool { return c.GetStarts() >= 3 })
	if got := n.graph()["a"]; got.GetStarts() != 1 || got.GetState() != starting || got.GetReason() != "never had an overlay lease" {
		t.Errorf("got %v, want it starting in its first process", got)
	}
}

func TestSupervisor_ChildrenEndWithItAndTheNextStartsAfresh(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.start()
	n.untilState("c", ready)
	var pids []int
	for _, c := range n.graph() {
		pids = append(pids, int(c.GetPid()))
	}
	n.signal(syscall.SIGKILL)
	n.wait()
	n.start() // at once: left-overs are its business
	for _, name := range []string{"a", "b", "c"} {
		n.untilState(name, ready)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("got process %d of the first supervisor alive, want it gone before the next starts", pid)
		}
	}
}

func TestSupervisor_SecondOnTheSameRootIsRefused(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "serve"})
	n.start()
	n.untilState("a", ready)
	second := &node{t: t, root: n.root, program: n.program}
	second.start()
	if code := second.wait(); code != 1 || !strings.Contains(second.out.String(), "already running") {
		t.Errorf("got exit code %d and %q, want 1 and the reason", code, second.out)
	}
	if err := second.conn.Close(); err != nil {
		t.Error(err)
	}
	if got := n.graph()["a"]; got.GetState() != ready || got.GetStarts() != 1 {
		t.Errorf("got %v, want the first one untouched", got)
	}
}

func TestSupervisor_StoredFilesOutliveAKill(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "storing"})
	n.start()
	for range 2 {
		pid := n.untilState("a", ready).GetPid()
		if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.untilAgain("a", pid)
	}
	if got := n.lines("words"); !slices.Equal(got, []string{"none", "first", "other"}) {
		t.Errorf("got words %v, want the pipe and its place kept over two kills", got)
	}
}

// A call that its contract calls repeatable is answered, by the process that is killed
// or by the next one. One that is not repeatable is made once, and fails with Unavailable
// when its server is killed under it: only the caller can know whether to repeat it.
func TestSupervisor_KillsRefuseNoCall(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "serve"})
	n.start()
	n.untilState("a", ready)
	conn, err := rpc.Dial(filepath.Join(n.root, "run/a.sock"), rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	calls, failed := 0, []error{}
	wg.Go(func() { // ends with ctx; waited for below
		for ctx.Err() == nil {
			calls++
			// How long a start takes here is no claim of this test; without a deadline of its
			// own a call has 10 s.
			within, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			if _, err := processv1.NewProcessServiceClient(conn).GetStatus(within, &processv1.GetStatusRequest{}); err != nil {
				failed = append(failed, err)
			}
			cancel()
		}
	})
	for range 5 {
		pid := n.graph()["a"].GetPid()
		if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.untilAgain("a", pid)
	}
	stop()
	wg.Wait()
	if len(failed) > 0 || calls < 10 {
		t.Errorf("got %d of %d calls refused (%v), want none", len(failed), calls, errors.Join(failed...))
	}
}

// SUP-7: what a component has started ends with it, also what has left its group.
func TestSupervisor_SUP7_HelpersEndWithTheirComponent(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "helper"})
	n.start()
	pid := n.untilState("a", ready).GetPid()
	if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.untilAgain("a", pid)
	n.stop()
	helpers := n.lines("helpers")
	if len(helpers) != 2 {
		t.Errorf("got helpers %v, want two", helpers)
	}
	for _, text := range helpers {
		helper, err := strconv.Atoi(text)
		if err != nil || alive(helper) {
			t.Errorf("got helper %s alive (%v), want it gone with its component", text, err)
		}
	}
}

func TestSupervisor_DeafProcessIsKilledAfterItsGrace(t *testing.T) {
	n := newNode(t, "  stop_timeout: 1s\n", part{name: "a", mode: "deaf"}, part{name: "b", mode: "serve", more: "needs: [a]"})
	n.start()
	n.untilState("b", ready)
	begin := time.Now()
	if code := n.stop(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("got a stop of %s, want the grace and little more", took)
	}
}

func TestSupervisor_RestartByHand(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.start()
	n.untilState("c", ready)
	pid := n.graph()["b"].GetPid()
	if _, err := n.api.RestartComponent(t.Context(), &supervisorv1.RestartComponentRequest{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	if alive(int(pid)) {
		t.Errorf("got process %d alive after the answer, want it gone", pid)
	}
	if got := n.untilAgain("b", pid); got.GetLastExit() != "exit code 0" {
		t.Errorf("got %v, want a clean exit", got)
	}
	if _, err := n.api.RestartComponent(t.Context(), &supervisorv1.RestartComponentRequest{Name: "x"}); !errors.Is(err, fault.NotFound) {
		t.Errorf("got %v, want NotFound", err)
	}
}

// SUP-6: restarts of a component that waits, then a stop, while what it waits for
// is stopped by a signal.
func TestSupervisor_SUP6_RestartAndStopWhileWaiting(t *testing.T) {
	n := newNode(t, "", chain("never ready")...)
	n.start()
	pid := n.until("a", "started", func(c *supervisorv1.Component) bool {
		return c.GetReason() == "recovering 3 volumes"
	}).GetPid()
	if err := syscall.Kill(int(pid), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := n.api.RestartComponent(t.Context(), &supervisorv1.RestartComponentRequest{Name: "b"}); err != nil {
			t.Error(err)
		}
	}
	if got := n.graph()["b"]; got.GetState() != waiting || got.GetStarts() != 0 {
		t.Errorf("got %v, want b still waiting", got)
	}
	begin := time.Now()
	if code := n.stop(); code != 0 || time.Since(begin) > 8*time.Second {
		t.Errorf("got exit code %d after %s, want 0 well before the kill", code, time.Since(begin))
	}
	if alive(int(pid)) {
		t.Errorf("got process %d alive, want it gone", pid)
	}
}

func TestSupervisor_ShutdownByCall(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.start()
	n.untilState("c", ready)
	if _, err := n.api.Shutdown(t.Context(), &supervisorv1.ShutdownRequest{}); err != nil {
		t.Fatal(err)
	}
	if code := n.wait(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
}

func TestSupervisor_WatchShowsChanges(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "fail once"})
	n.start()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	n.graph() // streams do not wait for a server
	stream, err := n.api.WatchGraph(ctx, &supervisorv1.WatchGraphRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var last *supervisorv1.Component
	for last.GetState() != ready {
		graph, err := stream.Recv()
		if err != nil {
			t.Fatalf("last seen %v: %v", last, err)
		}
		last = graph.GetComponents()[0]
	}
	n.signal(syscall.SIGTERM)
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, fault.Unavailable) {
		t.Errorf("got end %v, want Unavailable", err)
	}
}

func TestSupervisor_RemovedSocketIsMadeAnew(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "serve"})
	n.start()
	pid := n.untilState("a", ready).GetPid()
	path := filepath.Join(n.root, "run/a.sock")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := n.api.RestartComponent(t.Context(), &supervisorv1.RestartComponentRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	n.untilAgain("a", pid)
	if info, err := os.Stat(path); err != nil || info.Mode().Type() != os.ModeSocket {
		t.Errorf("got %v (%v), want a socket", info, err)
	}
}

// UDS-1: what stands in the place of one socket holds up that component alone.
func TestSupervisor_PlainFileInThePlaceOfASocket(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	path := filepath.Join(n.root, "run/b.sock")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.untilState("a", ready)
	n.until("b", "says what is in its place", func(c *supervisorv1.Component) bool {
		return c.GetPid() == 0 && strings.Contains(c.GetReason(), path) && strings.Contains(c.GetReason(), "plain file")
	})
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "mine" {
		t.Errorf("the file holds %q, %v", raw, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	n.untilState("c", ready)
}

func TestSupervisor_RefusesAWrongFile(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"wrong type", "version: 1\nsupervisor: {stop_timeout: [1]}\n", "node.yaml:2: supervisor.stop_timeout"},
		{"unknown key", "version: 1\nsupervisr: {}\n", `nearest known key is "supervisor"`},
		{"circle", "version: 1\nsupervisor:\n  components:\n    - {name: storage, needs: [presence]}\n", "in a circle"},
		{"unknown need", "version: 1\nsupervisor:\n  components:\n    - {name: storage, needs: [storaje]}\n", `"storaje"`},
	}
	for _, tt := range tests {
		for _, args := range [][]string{{"--check-config"}, nil} {
			t.Run(fmt.Sprintf("%s %v", tt.name, args), func(t *testing.T) {
				n := newNode(t, "")
				n.write(tt.text)
				n.start(args...)
				if code := n.wait(); code != 2 || !strings.Contains(n.out.String(), tt.want) {
					t.Errorf("got exit code %d and %q, want 2 and %q", code, n.out, tt.want)
				}
				if _, err := os.Stat(filepath.Join(n.root, "var")); err == nil {
					t.Error("got data folders, want nothing done")
				}
			})
		}
	}
}
