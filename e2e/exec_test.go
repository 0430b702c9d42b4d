package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// execer runs commands in one sandbox of a node by itself.
type execer struct {
	t      *testing.T
	b      *bed.Bed
	name   string
	uid    string
	before []string
}

// withSandbox starts a node with a sandbox that stays.
func withSandbox(t *testing.T, container *resourcev1.ContainerSpec) execer {
	t.Helper()
	b, _ := alone(t, bed.Options{})
	uid := ensure(t, b, "box", spec(always, container))
	await(t, b, uid, "running", running)
	return execer{t, b, "box", uid, []string{"--node-socket", b.HostSocket()}}
}

func (e execer) args(flags []string, command ...string) []string {
	all := append(append(append([]string{}, e.before...), "exec"), flags...)
	return append(append(all, e.name, "--"), command...)
}

// cli runs a command with flags of exec and standard input.
func (e execer) cli(stdin []byte, flags []string, command ...string) bed.Result {
	e.t.Helper()
	return e.b.CLIWith(bytes.NewReader(stdin), e.args(flags, command...)...)
}

// alive are the processes of the sandbox.
func (e execer) alive() int { return len(e.b.Workloads()) }

// awaitAlive waits until so many processes of the sandbox are there.
func (e execer) awaitAlive(want int, what string) {
	e.t.Helper()
	bed.Eventually(e.t, 30*time.Second, what, func(context.Context) (bool, string) {
		n := e.alive()
		return n == want, fmt.Sprintf("%d processes, want %d", n, want)
	})
}

// traces are the folders of executed processes that are left.
func (e execer) traces() []string {
	e.t.Helper()
	found, err := filepath.Glob(filepath.Join(e.b.Paths.Run(), "sandboxhost", "*", "beside", "*", "*"))
	must(e.t, err)
	return found
}

func (e execer) awaitNoTraces() {
	e.t.Helper()
	bed.Eventually(e.t, 30*time.Second, "nothing is left of executed processes", func(context.Context) (bool, string) {
		left := e.traces()
		return len(left) == 0, fmt.Sprint(left)
	})
}

// A command runs as asked, its outputs stay apart, and its code is that of the command.
func TestExec_RunsAsAsked(t *testing.T) {
	e := withSandbox(t, probe("main", "sleep"))
	for _, c := range []struct {
		name, stdin    string
		flags, command []string
		code           int
		stdout, stderr string // the beginning of it
	}{
		{name: "outputs apart", command: []string{"probe", "say", "to out", "to err"}, stdout: "to out", stderr: "to err"},
		{name: "the code of the process", command: []string{"probe", "exit", "7"}, code: 7},
		{name: "a process that a signal ends", command: []string{"probe", "die", "15"}, code: 143},
		{name: "words stay words", command: []string{"/probe", "where", "two words", "", "$HOME; 'x'"},
			stdout: `uid=0 gid=0 dir=/ args=["two words" "" "$HOME; 'x'"]`},
		{name: "user and folder", flags: []string{"-u", "1234:55", "-w", "/tmp"}, command: []string{"probe", "where"}, stdout: "uid=1234 gid=55 dir=/tmp"},
		{name: "environment", flags: []string{"-e", "A=b=c", "-e", "A=last one"}, command: []string{"probe", "sums", "A", "/probe"},
			stdout: fmt.Sprintf("%x ", sha256.Sum256([]byte("last one")))},
		{name: "no input", command: []string{"probe", "cat"}},
		{name: "input that nobody passes on", stdin: "lost", command: []string{"probe", "cat"}},
		{name: "a command that is not there", command: []string{"missing"}, code: 127, stderr: "staddle: exec in sandbox box"},
		{name: "a command that cannot be executed", command: []string{"/etc"}, code: 126, stderr: "staddle: exec in sandbox box"},
		{name: "a user that is not there", flags: []string{"-u", "nobody-knows"}, command: []string{"probe", "where"}, code: 125, stderr: "staddle: exec in sandbox box"},
		{name: "a folder that is not there", flags: []string{"-w", "/nowhere"}, command: []string{"probe", "where"}, code: 125, stderr: "staddle: exec in sandbox box"},
		{name: "a container that is not there", flags: []string{"-c", "other"}, command: []string{"probe", "where"}, code: 125, stderr: `staddle: sandbox box has no container "other"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if len(c.command) > 1 && c.command[1] == "sums" { // it stays: it is detached from, by its end of input
				r := e.b.Begin(e.args(c.flags, c.command...)...)
				bed.Eventually(t, waitLong, "it has printed", func(context.Context) (bool, string) {
					return strings.HasPrefix(r.Stdout(), c.stdout), r.Stdout()
				})
				r.Interrupt()
				if got := r.Wait(); got.Code != 128+2 {
					t.Errorf("got code %d, want 130", got.Code)
				}
				return
			}
			e := e
			e.t = t
			got := e.cli([]byte(c.stdin), c.flags, c.command...)
			if got.Code != c.code || !strings.HasPrefix(got.Stdout, c.stdout) || !strings.HasPrefix(got.Stderr, c.stderr) || c.stdout == "" && got.Stdout != "" {
				t.Errorf("got code %d, %q and %q, want %d, %q and %q", got.Code, got.Stdout, got.Stderr, c.code, c.stdout, c.stderr)
			}
		})
	}
	e.awaitAlive(1, "only the main process is left")
	e.awaitNoTraces()
}

// Input arrives to the last byte, whatever its size, and its end does too. (EXE-2)
func TestExec_EXE2_InputArrivesToTheLastByte(t *testing.T) {
	e := withSandbox(t, probe("main", "sleep"))
	large := make([]byte, 10<<20)
	for i := range large {
		large[i] = byte(i * 7 / 3)
	}
	const rounds = 20
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range rounds {
		for name, input := range map[string][]byte{"empty": nil, "one byte": {'x'}, "a chunk": large[:32<<10], "large": large} {
			if name == "large" && i >= 3 {
				continue
			}
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				if got := e.cli(input, []string{"-i"}, "probe", "cat"); got.Code != 0 || got.Stdout != string(input) {
					t.Errorf("%s: got code %d and %d bytes, want %d; %s", name, got.Code, len(got.Stdout), len(input), got.Stderr)
				}
			})
		}
	}
	wg.Wait()
	// With a terminal, the end of input is Ctrl-D, and what is typed is echoed.
	for range 5 {
		if got := e.cli([]byte("line\nrest"), []string{"-i", "-t"}, "probe", "cat"); got.Code != 0 || !strings.Contains(got.Stdout, "rest") {
			t.Errorf("in a terminal: got code %d and %q, %s", got.Code, got.Stdout, got.Stderr)
		}
		if got := e.cli(nil, []string{"-i", "-t"}, "probe", "cat"); got.Code != 0 {
			t.Errorf("in a terminal without input: got code %d and %q, %s", got.Code, got.Stdout, got.Stderr)
		}
	}
	e.awaitAlive(1, "only the main process is left")
	e.awaitNoTraces()
}

// A process does not outlive the one who wanted it, however that one goes. (EXE-3)
func TestExec_EXE3_EndsWithItsClient(t *testing.T) {
	e := withSandbox(t, probe("main", "sleep"))
	for _, flags := range [][]string{nil, {"-i"}, {"-t"}, {"-i", "-t"}} {
		for _, command := range [][]string{{"probe", "sleep"}, {"probe", "deaf"}, {"probe", "count", "1ms"}} {
			client := e.b.StartCLI(e.args(flags, command...)...)
			e.awaitAlive(2, "it runs")
			must(t, client.Process.Kill())
			_ = client.Wait() // it was killed
			e.awaitAlive(1, fmt.Sprintf("%v %v ended with its client", flags, command))
		}
	}
	for i := range 3 {
		client := e.b.Begin(e.args(nil, "probe", "sleep")...)
		e.awaitAlive(2, "it runs")
		e.b.Kill("sandboxhost")
		if r := client.Wait(); r.Code != 125 || !strings.Contains(r.Stderr, "staddle: exec in sandbox box") {
			t.Errorf("round %d: got code %d, %q of one whose host was killed, want 125", i, r.Code, r.Stderr)
		}
		e.awaitAlive(1, "the next life of the host ended it")
		e.b.WaitReady()
		e.awaitNoTraces()
	}
	if got := e.cli(nil, []string{"--detach"}, "probe", "sleep"); got.Code != 0 {
		t.Errorf("detached: got code %d, %s", got.Code, got.Stderr)
	}
	e.awaitAlive(2, "a detached one goes on")
	e.b.Kill("sandboxhost")
	e.b.WaitReady()
	if got := e.alive(); got != 2 {
		t.Errorf("after a kill of the host: got %d processes, want the detached one to go on", got)
	}
	if got := e.cli(nil, []string{"-d"}, "probe", "exit", "0"); got.Code != 0 {
		t.Errorf("detached: got code %d, %s", got.Code, got.Stderr)
	}
	bed.Eventually(t, waitLong, "only one trace is left", func(context.Context) (bool, string) {
		return len(e.traces()) == 1, fmt.Sprint(e.traces())
	})
}

// What ends, ends with its own code over the absence of containerd; a stream that breaks
// is never a process that ended well. (EXE-4)
func TestExec_EXE4_ABrokenStreamIsNoSuccess(t *testing.T) {
	e := withSandbox(t, probe("main", "sleep"))
	client := e.b.Begin(e.args(nil, "probe", "trap", "1", "7")...)
	bed.Eventually(t, waitLong, "it is ready", func(context.Context) (bool, string) { return client.Stdout() == "ready\n", client.Stdout() })
	e.b.Kill("containerd")
	client.Interrupt()
	if r := client.Wait(); r.Code != 7 {
		t.Errorf("over a kill of containerd: got code %d, %s, want 7", r.Code, r.Stderr)
	}
	e.b.WaitReady()
	client = e.b.Begin(e.args(nil, "probe", "exit", "0", "1m")...)
	e.awaitAlive(2, "it runs")
	bed.KillPID(e.b, e.b.PID("sandboxhost"))
	if r := client.Wait(); r.Code != 125 {
		t.Errorf("after a kill of the host: got code %d, %s, want 125", r.Code, r.Stderr)
	}
	e.b.WaitReady()
	client = e.b.Begin(e.args(nil, "probe", "exit", "0", "1m")...)
	e.awaitAlive(2, "it runs")
	for _, shim := range e.b.Shims() {
		bed.KillPID(e.b, shim)
	}
	if r := client.Wait(); r.Code == 0 {
		t.Errorf("after a kill of the shim: got code 0, %s", r.Stderr)
	}
	await(t, e.b, e.uid, "running again", running)
}

// Whoever is in a sandbox that ends is told so soon; nobody gets into one that does not
// run. (EXE-6)
func TestExec_EXE6_EndsWithItsSandbox(t *testing.T) {
	e := withSandbox(t, probe("main", "sleep"))
	for _, c := range []struct {
		what string
		end  func()
		says string
	}{
		{"stopped", func() { e.b.OK(append(e.before, "stop", e.name)...) }, "its sandbox was stopped"},
		{"removed", func() { e.b.OK(append(e.before, "rm", e.name)...) }, "its sandbox was removed"},
	} {
		client := e.b.Begin(e.args([]string{"-i"}, "probe", "sleep")...)
		e.awaitAlive(2, "it runs")
		begin := time.Now()
		c.end()
		r := client.Wait()
		if r.Code != 128+9 || !strings.Contains(r.Stderr, c.says) || time.Since(begin) > 15*time.Second {
			t.Errorf("%s: got code %d after %s, %q, want 137 and %q", c.what, r.Code, time.Since(begin), r.Stderr, c.says)
		}
		if c.what != "stopped" {
			continue
		}
		if r := e.cli(nil, nil, "probe", "where"); r.Code != 125 || !strings.Contains(r.Stderr, "does not run, its phase is STOPPED") {
			t.Errorf("in one that is stopped: got code %d, %q", r.Code, r.Stderr)
		}
		e.b.OK(append(e.before, "start", e.name)...)
	}
	if r := e.cli(nil, nil, "probe", "where"); r.Code != 125 || !strings.Contains(r.Stderr, "not found") {
		t.Errorf("in one that is unknown: got code %d, %q", r.Code, r.Stderr)
	}
	uid := ensure(t, e.b, "bad", spec(never, &resourcev1.ContainerSpec{Name: "main", Image: bed.ProbeImage, Command: []string{"/missing"}}))
	await(t, e.b, uid, "failed", func(s *resourcev1.SandboxStatus) bool {
		return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
	})
	if r := e.b.CLI(append(e.before, "exec", "bad", "--", "probe", "where")...); r.Code != 125 || !strings.Contains(r.Stderr, "its phase is FAILED") {
		t.Errorf("in one that failed to start: got code %d, %q", r.Code, r.Stderr)
	}
}

// What is left behind by a command that ended holds up nobody, and goes on. (EXE-7)
func TestExec_EXE7_WhatIsLeftHoldsUpNobody(t *testing.T) {
	e := withSandbox(t, probe("main", "sleep"))
	begin := time.Now()
	if got := e.cli(nil, nil, "probe", "leave"); got.Code != 0 || got.Stdout != "left\n" || time.Since(begin) > 10*time.Second {
		t.Errorf("got code %d, %q after %s, %s", got.Code, got.Stdout, time.Since(begin), got.Stderr)
	}
	e.awaitNoTraces()
	if got := e.alive(); got != 2 {
		t.Errorf("got %d processes, want the one that was left to go on", got)
	}
}

// A process that is executed has the limits and rights of its container, time after time. (LIF-7)
func TestExec_LIF7_HasTheLimitsOfItsContainer(t *testing.T) {
	limited := probe("main", "sleep")
	limited.Ulimits = []*resourcev1.Ulimit{{Name: "nofile", Soft: 2000, Hard: new(int64(3000))}}
	limited.Security = &resourcev1.SecuritySpec{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"CHOWN"}}
	e := withSandbox(t, limited)
	pid := e.b.Workloads()[0]
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	must(t, err)
	open := regexp.MustCompile(`Max open files +(\d+) +(\d+)`).FindSubmatch(limits) // the language of probe raises the first
	if open == nil || string(open[2]) != "3000" {
		t.Fatalf("the main process has %s", limits)
	}
	want := fmt.Sprintf("%s %s\n", open[1], open[2])
	for range 10 {
		if got := e.cli(nil, nil, "probe", "nofile"); got.Stdout != want {
			t.Errorf("got %q, %s, want %q", got.Stdout, got.Stderr, want)
		}
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	got := e.cli(nil, nil, "probe", "self").Stdout
	if strings.Count(got, "\n") != 5 || !strings.Contains(got, "CapBnd:\t0000000000000001\n") || !strings.Contains(got, "Seccomp:\t2\n") {
		t.Errorf("got %q", got)
	}
	for line := range strings.Lines(got) {
		if !strings.Contains(string(raw), line) {
			t.Errorf("the main process has no line %q", line)
		}
	}
}

// frames sends frames and returns the stream.
func (e execer) frames(start *sandboxhostv1.ExecStart) sandboxhostv1.ExecService_ExecClient {
	e.t.Helper()
	stream, err := sandboxhostv1.NewExecServiceClient(e.b.Conn("sandboxhost")).Exec(e.t.Context())
	must(e.t, err)
	start.Uid = e.uid
	must(e.t, stream.Send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Start{Start: start}}))
	return stream
}

// A terminal has its size from the first moment, and the last of many sizes counts. (EXE-5)
func TestExec_EXE5_TheTerminalHasItsSize(t *testing.T) {
	e := withSandbox(t, probe("main", "sleep"))
	size := func(columns, rows uint32) *sandboxhostv1.TerminalSize {
		return &sandboxhostv1.TerminalSize{Columns: columns, Rows: rows}
	}
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		stream := e.frames(&sandboxhostv1.ExecStart{Command: []string{"probe", "size"}, Terminal: size(120, 40)})
		said := ""
		until := func(want string) {
			for !strings.HasSuffix(said, want) {
				m, err := stream.Recv()
				if err != nil {
					t.Fatalf("got %q, then %v, want %q", said, err, want)
				}
				said += string(m.GetStdout())
				if ctx.Err() != nil {
					t.Fatalf("got %q, want %q", said, want)
				}
			}
		}
		until("40 120\r\n")
		if said != "40 120\r\n" {
			t.Errorf("got %q at first", said)
		}
		for _, s := range []*sandboxhostv1.TerminalSize{size(100, 30), size(90, 20)} {
			must(t, stream.Send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Resize{Resize: s}}))
		}
		until("20 90\r\n")
		must(t, stream.Send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Signal{Signal: 9}}))
		must(t, stream.Send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Resize{Resize: size(80, 25)}})) // maybe after its end
		for {
			m, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if m.GetExit() != nil {
				if m.GetExit().GetCode() != 137 || m.GetExit().GetReason() != "" {
					t.Errorf("got %v, want code 137 without a reason", m.GetExit())
				}
				break
			}
		}
		cancel()
	}
}

// A signal is heard by a process that does not read what is sent to it.
func TestExec_SignalsPassInput(t *testing.T) {
	e := withSandbox(t, probe("main", "sleep"))
	endless := endlessReader{}
	cmd := e.b.Begin(e.args(nil, "probe", "trap", "2", "9")...)
	bed.Eventually(t, waitLong, "it is ready", func(context.Context) (bool, string) { return cmd.Stdout() == "ready\n", cmd.Stdout() })
	cmd.Interrupt()
	bed.Eventually(t, waitLong, "it heard one", func(context.Context) (bool, string) {
		return cmd.Stdout() == "ready\ninterrupt\n", cmd.Stdout()
	})
	cmd.Interrupt()
	if r := cmd.Wait(); r.Code != 9 {
		t.Errorf("got code %d, %q, want 9", r.Code, r.Stderr)
	}
	cmd = e.b.BeginWith(endless, e.args([]string{"-i"}, "probe", "trap", "1", "8")...)
	bed.Eventually(t, waitLong, "it is ready", func(context.Context) (bool, string) { return cmd.Stdout() == "ready\n", cmd.Stdout() })
	cmd.Interrupt()
	if r := cmd.Wait(); r.Code != 8 {
		t.Errorf("with input that nobody reads: got code %d, %q, want 8", r.Code, r.Stderr)
	}
}

// endlessReader always has more.
type endlessReader struct{}

func (endlessReader) Read(b []byte) (int, error) { return len(b), nil }

// There is a bound of processes in a sandbox, and no start that makes no sense.
func TestExec_IsBounded(t *testing.T) {
	e := withSandbox(t, probe("main", "sleep"))
	refused := func(start *sandboxhostv1.ExecStart, kind fault.Kind, reason string) {
		t.Helper()
		stream := e.frames(start)
		if m, err := stream.Recv(); fault.KindOf(err) != kind || fault.Reason(err) != reason {
			t.Errorf("got %v, %v, want kind %v with reason %q", m, err, kind, reason)
		}
	}
	terminal := &sandboxhostv1.TerminalSize{Columns: 80, Rows: 24}
	for _, bad := range []*sandboxhostv1.ExecStart{
		{}, {Command: []string{""}}, {Command: []string{"a\x00b"}}, {Command: []string{"x", strings.Repeat("a", 70<<10)}},
		{Command: []string{"x"}, Detach: true, Stdin: true}, {Command: []string{"x"}, Detach: true, Terminal: terminal},
		{Command: []string{"x"}, Env: []string{"NOVALUE"}}, {Command: []string{"x"}, WorkingDir: "relative"}, {Command: []string{"x"}, Terminal: &sandboxhostv1.TerminalSize{}},
	} {
		stream := e.frames(bad)
		if m, err := stream.Recv(); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%.80v: got %v, %v, want it refused", bad, m, err)
		}
	}
	refused(&sandboxhostv1.ExecStart{Command: []string{"missing"}}, fault.NotFound, "COMMAND_NOT_FOUND")
	refused(&sandboxhostv1.ExecStart{Command: []string{"probe"}, Container: "other"}, fault.NotFound, "")
	const most = 64
	for range most {
		if got := e.cli(nil, []string{"-d"}, "probe", "sleep"); got.Code != 0 {
			t.Fatalf("got code %d, %s", got.Code, got.Stderr)
		}
	}
	refused(&sandboxhostv1.ExecStart{Command: []string{"probe", "where"}}, fault.Exhausted, "TOO_MANY_SESSIONS")
	remove(t, e.b, e.uid)
	settled(t, e.b)
}
