package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
)

// own tells which program the supervisor runs.
func (n *node) own() *supervisorv1.SupervisorProgram {
	n.t.Helper()
	answer, err := n.api.GetSupervisor(n.t.Context(), &supervisorv1.GetSupervisorRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	return answer.GetProgram()
}

// restarted asks for the next program and returns the one that answers.
func (n *node) restarted(of *supervisorv1.SupervisorProgram) (*supervisorv1.SupervisorProgram, error) {
	n.t.Helper()
	answer, err := n.api.RestartSupervisor(n.t.Context(), &supervisorv1.RestartSupervisorRequest{Life: of.GetLife(), Number: of.GetNumber()})
	return answer.GetProgram(), err
}

// causes are those of the events about the supervisor itself.
func (n *node) causes() []string {
	n.t.Helper()
	list, err := n.api.ListEvents(n.t.Context(), &supervisorv1.ListEventsRequest{Component: "supervisor"})
	if err != nil {
		n.t.Fatal(err)
	}
	var causes []string
	for _, e := range list.GetEvents() {
		causes = append(causes, e.GetCause())
	}
	return causes
}

// The call is answered by the next program, and a repeated one changes nothing.
func TestRestartSupervisor_IsAnsweredByTheNextProgram(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.start()
	n.untilState("c", ready)
	before, first := n.graph(), n.own()
	if first.GetNumber() != 1 || first.GetLife() == "" || first.GetVersion() == "" {
		t.Errorf("got %v, want the first program", first)
	}
	for want := uint32(2); want <= 3; want++ {
		now, err := n.restarted(n.own())
		if err != nil || now.GetNumber() != want || now.GetLife() != first.GetLife() {
			t.Fatalf("got %v, %v, want program %d of the same life", now, err, want)
		}
	}
	for _, of := range []*supervisorv1.SupervisorProgram{first, {Life: "another", Number: 9}} {
		if now, err := n.restarted(of); err != nil || now.GetNumber() != 3 {
			t.Errorf("got %v, %v, want nothing done", now, err)
		}
	}
	if _, err := n.restarted(&supervisorv1.SupervisorProgram{Life: first.GetLife(), Number: 4}); !errors.Is(err, fault.Conflict) {
		t.Errorf("got %v for a program that is not there yet, want Conflict", err)
	}
	for name, c := range n.graph() {
		if c.GetPid() != before[name].GetPid() || c.GetStarts() != 1 {
			t.Errorf("got %v, want %s untouched", c, name)
		}
	}
	if got := n.causes(); len(got) != 2 || !strings.Contains(got[1], "program 3 of this process has taken over") {
		t.Errorf("got events %q, want one per program", got)
	}
	n.noTrace()
}

// noTrace wants nothing left of a trial.
func (n *node) noTrace() {
	n.t.Helper()
	paths := config.Paths{Root: n.root}
	for _, pattern := range []string{
		filepath.Join(paths.Run(), "supervisor", "trial.sock"),
		filepath.Join("/sys/fs/cgroup", paths.ComponentCgroup(), ".trial"), filepath.Join("/sys/fs/cgroup/unified", paths.ComponentCgroup(), ".trial"),
	} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			n.t.Errorf("got %v left (%v)", left, err)
		}
	}
}

// A program that does not get as far as to serve is found out where it is another
// process: the old one goes on, with its children and sockets, and says why.
func TestRestartSupervisor_ABadProgramIsHarmless(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := func(text string) func(n *node) error {
		return func(n *node) error { return replaceFile(n.program, "#!/bin/sh\n"+text+"\n") }
	}
	bad := map[string]struct {
		spoil func(n *node) error
		why   string
	}{
		"no program":                {func(n *node) error { return os.Remove(n.program) }, "no such file"},
		"no format":                 {func(n *node) error { return replaceFile(n.program, "\x7fELF") }, "exec format error"},
		"exits":                     {script("echo this is not it >&2; exit 3"), "exit code 3: this is not it"},
		"says yes to all and exits": {script(`exit 0`), "exit code 0, without a word"},
		"is killed":                 {script(`kill -9 $$`), "signal killed"},
		"panics":                    {script("SUPERVISOR_TEST_ROLE=supervisor:panic exec " + exe + ` "$@"`), "panic: bang"},
		"hangs, and its helper too": {script("setsid sleep 1000 & echo $! > ${0%/*}/helper; sleep 1000"), "did not serve within 2s"},
		"wrong configuration": {func(n *node) error {
			return os.WriteFile(filepath.Join(n.root, "etc/node.yaml"), []byte("version: 1\nsupervisr: {}\n"), 0o600)
		}, "node.yaml:2"},
	}
	for name, tt := range bad {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "  start_timeout: 2s\n", chain("serve")...)
			n.copyProgram()
			n.start()
			n.untilState("c", ready)
			before := n.graph()
			if err := tt.spoil(n); err != nil {
				t.Fatal(err)
			}
			_, err := n.restarted(n.own())
			if !errors.Is(err, fault.Conflict) || fault.Reason(err) != "PROGRAM_REFUSED" || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("got %v, want Conflict that says %q", err, tt.why)
			}
			n.wantUntouched(before)
			if got := n.causes(); len(got) != 1 || !strings.Contains(got[0], "program not replaced") || !strings.Contains(got[0], tt.why[:min(len(tt.why), 10)]) {
				t.Errorf("got events %q, want one that says why", got)
			}
			for _, pid := range numbers(t, n.lines("helper")) {
				if alive(pid) {
					t.Errorf("got helper %d of the trial alive", pid)
				}
			}
			n.noTrace()
			if code := n.stop(); code != 0 {
				t.Errorf("got exit code %d, want 0", code)
			}
		})
	}
}

// wantUntouched wants every component in the same process, reached by its socket.
func (n *node) wantUntouched(before map[string]*supervisorv1.Component) {
	n.t.Helper()
	for name, c := range n.graph() {
		if c.GetState() != ready || c.GetPid() != before[name].GetPid() {
			n.t.Errorf("got %v, want it untouched", c)
		}
		if got, err := n.called(name); err != nil || got != name {
			n.t.Errorf("%s answered as %q: %v", name, got, err)
		}
	}
	if got := n.own(); got.GetNumber() != 1 {
		n.t.Errorf("got program %v, want the first", got)
	}
}

// A supervisor that is killed while it tries a program leaves nothing of that, and
// its children end by their leash as ever.
func TestRestartSupervisor_KilledInTheMiddleOfATrial(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.copyProgram()
	n.start()
	n.untilState("c", ready)
	var pids []int
	for _, c := range n.graph() {
		pids = append(pids, int(c.GetPid()))
	}
	if err := replaceFile(n.program, "#!/bin/sh\nsetsid sleep 1000 &\necho $$ $! > "+n.root+"/trial\nsleep 1000\n"); err != nil {
		t.Fatal(err)
	}
	api, of := n.api, n.own()
	ctx, stop := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() { // waited for below
		_, err := api.RestartSupervisor(ctx, &supervisorv1.RestartSupervisorRequest{Life: of.GetLife(), Number: of.GetNumber()})
		asked <- err
	}()
	n.eventually(func() bool { return len(n.lines("trial")) == 2 }, func() string { return "the trial to begin" })
	n.signal(syscall.SIGKILL)
	n.wait()
	stop()
	if err := <-asked; err == nil {
		t.Error("got an answer of a supervisor that is dead")
	}
	for _, pid := range append(pids, numbers(t, n.lines("trial")[:1])...) {
		n.eventually(func() bool { return !alive(pid) }, func() string { return fmt.Sprintf("process %d to end", pid) })
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n.program = exe
	n.start()
	n.untilState("c", ready)
	for _, pid := range numbers(t, n.lines("trial")) {
		if alive(pid) {
			t.Errorf("got process %d of the trial alive, want it ended by the next supervisor", pid)
		}
	}
	n.noTrace()
}

func numbers(t *testing.T, words []string) []int {
	t.Helper()
	var out []int
	for _, w := range words {
		n, err := strconv.Atoi(w)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}
