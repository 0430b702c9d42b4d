package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// attacher attaches to sandboxes of a node by itself.
type attacher struct {
	t *testing.T
	b *bed.Bed
	n int
}

func newAttacher(t *testing.T) *attacher {
	t.Helper()
	b, _ := alone(t, bed.Options{})
	return &attacher{t: t, b: b}
}

// box begins a sandbox whose container reads its standard input.
func (a *attacher) box(restart resourcev1.RestartPolicy, change func(*resourcev1.ContainerSpec), args ...string) (name, uid string) {
	a.t.Helper()
	a.n++
	name = fmt.Sprintf("box-%d", a.n)
	c := probe("main", args...)
	c.Stdin = true
	if change != nil {
		change(c)
	}
	uid = ensure(a.t, a.b, name, spec(restart, c))
	await(a.t, a.b, uid, "running", running)
	return name, uid
}

func withTerminal(c *resourcev1.ContainerSpec) { c.Tty = true }

func (a *attacher) args(name string, flags ...string) []string {
	return append(append([]string{"--node-socket", a.b.HostSocket(), "attach"}, flags...), name)
}

// says waits until a command has written something.
func says(t *testing.T, r *bed.Running, want string) {
	t.Helper()
	bed.Eventually(t, waitLong, fmt.Sprintf("it says %q", want), func(context.Context) (bool, string) {
		return strings.Contains(r.Stdout(), want), fmt.Sprintf("%.200q, %.200q", r.Stdout(), r.Stderr())
	})
}

// Several watch, from a tail on; signals arrive; each ends with the code of the process.
func TestAttach_GoesAlongWithOneLife(t *testing.T) {
	a := newAttacher(t)
	name, uid := a.box(always, nil, "trap", "2", "7")
	watch := a.b.Begin(a.args(name, "--no-stdin")...)
	says(t, watch, "ready\n")
	client := a.b.Begin(a.args(name, "--no-stdin", "--tail", "1")...)
	says(t, client, "ready\n")
	client.Interrupt()
	says(t, watch, "interrupt\n")
	client.Interrupt()
	for what, r := range map[string]*bed.Running{"the first": watch, "one that interrupts": client} {
		got := r.Wait()
		if want := "ready\ninterrupt\ninterrupt\n"; got.Code != 7 || got.Stdout != want {
			t.Errorf("%s: got code %d, %q, %s, want 7 and %q", what, got.Code, got.Stdout, got.Stderr, want)
		}
	}
	await(t, a.b, uid, "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == 2 })
	client = a.b.Begin(a.args(name, "--no-stdin", "--no-signals")...)
	says(t, client, "ready\n")
	client.Interrupt()
	if r := client.Wait(); r.Code != 128+2 || strings.Contains(r.Stdout, "interrupt") {
		t.Errorf("with --no-signals: got code %d, %q, want 130", r.Code, r.Stdout)
	}
	const plain = "plain"
	uid = ensure(t, a.b, plain, spec(never, probe("main", "say", "to out", "to err")))
	await(t, a.b, uid, "ended", ended)
	if r := a.b.CLI(a.args(plain)...); r.Code != 125 || !strings.Contains(r.Stderr, "does not run") {
		t.Errorf("to one that has ended: got code %d, %s", r.Code, r.Stderr)
	}
	from := &sandboxhostv1.AttachFrom{Attempt: 1}
	out, errs, exit, err := a.frames(&sandboxhostv1.AttachStart{Uid: uid, From: from})
	if err != nil || out != "to out" || errs != "to err" || exit.GetCode() != 0 {
		t.Errorf("from the start of a life that is over: got %q, %q, %v, %v", out, errs, exit, err)
	}
	if _, _, _, err := a.frames(&sandboxhostv1.AttachStart{Uid: uid, Stdin: true}); fault.Reason(err) != "NO_STDIN" {
		t.Errorf("input for one that has none: got %v, want NO_STDIN", err)
	}
}

// Without a tail nothing of the past is shown, and all that comes after, also over a kill of the host.
func TestAttach_WithoutATail(t *testing.T) {
	a := newAttacher(t)
	name, _ := a.box(never, nil, "cat")
	keys, writer := io.Pipe()
	typist := a.b.BeginWith(keys, a.args(name, "--tail", "0")...)
	typed := ""
	types := func(line string) {
		t.Helper()
		_, err := writer.Write([]byte(line))
		must(t, err)
		typed += line
		says(t, typist, typed)
	}
	types("past\n")
	watch := a.b.Begin(a.args(name, "--no-stdin", "--tail", "0")...)
	bed.Eventually(t, waitLong, "it is attached, and shows what comes", func(context.Context) (bool, string) {
		types(fmt.Sprintf("line %d\n", strings.Count(typed, "\n")))
		return watch.Stdout() != "", fmt.Sprintf("%.200q, %.200q", typed, watch.Stderr())
	})
	a.b.Kill("sandboxhost")
	a.b.WaitReady()
	types("last\n")
	must(t, writer.Close())
	if r := typist.Wait(); r.Code != 0 || r.Stdout != typed {
		t.Errorf("who types: got code %d, %q, %s, want 0 and %q", r.Code, r.Stdout, r.Stderr, typed)
	}
	r := watch.Wait()
	if before, ok := strings.CutSuffix(typed, r.Stdout); r.Code != 0 || !ok || !strings.HasPrefix(before, "past\n") || !strings.HasSuffix(before, "\n") {
		t.Errorf("who watches: got code %d, %q, %s, want 0 and the last lines of %q without the first", r.Code, r.Stdout, r.Stderr, typed)
	}
}

// frames attaches by the contract, without input, to the end.
func (a *attacher) frames(start *sandboxhostv1.AttachStart) (stdout, stderr string, exit *sandboxhostv1.ExecExit, err error) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), waitLong)
	defer cancel()
	stream, err := sandboxhostv1.NewExecServiceClient(a.b.Conn("sandboxhost")).Attach(ctx)
	must(a.t, err)
	must(a.t, stream.Send(&sandboxhostv1.AttachRequest{Frame: &sandboxhostv1.AttachRequest_Start{Start: start}}))
	for {
		m, err := stream.Recv()
		if err != nil {
			return stdout, stderr, nil, err
		}
		stdout, stderr = stdout+string(m.GetStdout().GetData()), stderr+string(m.GetStderr().GetData())
		if m.GetExit() != nil {
			return stdout, stderr, m.GetExit(), nil
		}
	}
}

// Input arrives to the last byte, whatever its size, and its end does too, for good. (EXE-2)
func TestAttach_EXE2_InputArrivesToTheLastByte(t *testing.T) {
	a := newAttacher(t)
	large := make([]byte, 10<<20)
	for i := range large {
		large[i] = byte(i * 7 / 3)
	}
	for what, input := range map[string][]byte{"empty": nil, "one byte": {'x'}, "a chunk": large[:32<<10], "large": large} {
		name, _ := a.box(never, nil, "cat")
		if got := a.b.CLIWith(bytes.NewReader(input), a.args(name)...); got.Code != 0 || got.Stdout != string(input) {
			t.Errorf("%s: got code %d and %d bytes, want %d; %s", what, got.Code, len(got.Stdout), len(input), got.Stderr)
		}
		got := a.b.CLIWith(bytes.NewReader(input), "--node-socket", a.b.HostSocket(), "run", "--rm", "-i", bed.ProbeImage, "--", "cat")
		if got.Code != 0 || got.Stdout != string(input) {
			t.Errorf("%s, in a foreground run: got code %d and %d bytes, want %d; %s", what, got.Code, len(got.Stdout), len(input), got.Stderr)
		}
	}
	name, _ := a.box(never, withTerminal, "cat")
	if got := a.b.CLIWith(strings.NewReader("line\nrest"), a.args(name)...); got.Code != 0 || !strings.Contains(got.Stdout, "rest") {
		t.Errorf("in a terminal: got code %d and %q, %s", got.Code, got.Stdout, got.Stderr)
	}
	a.endsForGood()
}

// endsForGood ends the input of a container that goes on.
func (a *attacher) endsForGood() {
	t := a.t
	name, uid := a.box(never, nil, "trap", "1", "3")
	first := a.b.BeginWith(strings.NewReader("not read"), a.args(name, "--no-signals")...)
	says(t, first, "ready\n")
	client := sandboxhostv1.NewExecServiceClient(a.b.Conn("sandboxhost"))
	refused := func(what, reason string) {
		t.Helper()
		bed.Eventually(t, waitLong, what, func(ctx context.Context) (bool, string) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := client.Attach(ctx)
			if err == nil {
				err = stream.Send(&sandboxhostv1.AttachRequest{Frame: &sandboxhostv1.AttachRequest_Start{
					Start: &sandboxhostv1.AttachStart{Uid: uid, Stdin: true, InputId: id.New()},
				}})
			}
			var m *sandboxhostv1.AttachResponse
			if err == nil {
				m, err = stream.Recv()
			}
			return fault.Reason(err) == reason, fmt.Sprintf("%v, %v", m, err)
		})
	}
	refused("a second one with input is refused", "INPUT_TAKEN")
	first.Interrupt()
	if r := first.Wait(); r.Code != 128+2 {
		t.Errorf("got code %d, %s, want 130", r.Code, r.Stderr)
	}
	refused("more input is refused", "STDIN_ENDED")
	a.b.Kill("sandboxhost")
	a.b.WaitReady()
	refused("also by the next host", "STDIN_ENDED")
	watch := a.b.Begin(a.args(name, "--no-stdin")...)
	says(t, watch, "ready\n")
	watch.Interrupt()
	if r := watch.Wait(); r.Code != 3 {
		t.Errorf("got code %d, %s, want 3", r.Code, r.Stderr)
	}
}

// marked is input that tells whenever another part of it was read.
type marked struct {
	from io.Reader
	part int
	read int
	tell chan struct{}
}

func (m *marked) Read(b []byte) (int, error) {
	n, err := m.from.Read(b)
	if (m.read+n)/m.part > m.read/m.part {
		m.tell <- struct{}{}
	}
	m.read += n
	return n, err
}

// What is sent goes in exactly once, and what is written comes out exactly once, over kills of the host
// and of containerd; the workload notices nothing. (EXE-4)
func TestAttach_EXE4_NothingIsLostOverKills(t *testing.T) {
	a := newAttacher(t)
	large := make([]byte, 48<<20)
	for i := range large {
		large[i] = byte(i*7/3) ^ byte(i>>13)
	}
	for _, component := range []string{"sandboxhost", "containerd"} {
		for _, verb := range []string{"sum", "cat"} {
			input := large
			if verb == "cat" {
				input = large[:12<<20]
			}
			const kills = 4
			name, uid := a.box(never, nil, verb)
			before := a.b.Workloads()
			m := &marked{from: bytes.NewReader(input), part: len(input) / (kills + 1), tell: make(chan struct{}, kills+2)}
			client := a.b.BeginWith(m, a.args(name)...)
			for range kills {
				<-m.tell
				a.b.Kill(component)
				a.b.WaitReady()
			}
			r := client.Wait()
			want := string(input)
			if verb == "sum" {
				want = fmt.Sprintf("%x %d\n", sha256.Sum256(input), len(input))
			}
			if r.Code != 0 || r.Stdout != want {
				t.Errorf("%s, kills of %s: got code %d, %d bytes %.100q, %s, want %d bytes", verb, component, r.Code, len(r.Stdout), r.Stdout, r.Stderr, len(want))
			}
			if len(before) != 1 {
				t.Errorf("%s: got processes %v at first, want one", verb, before)
			}
			s := await(t, a.b, uid, "ended", ended)
			if s.GetAttempt() != 1 {
				t.Errorf("%s: it was started %d times", verb, s.GetAttempt())
			}
			remove(t, a.b, uid)
		}
	}
}

// The terminal has the size of the person's, is restored after every end, and keys leave it. (EXE-5)
func TestAttach_EXE5_TheTerminalIsRestored(t *testing.T) {
	a := newAttacher(t)
	master, slave := pty(t)
	before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	must(t, err)
	for i, c := range []struct {
		name string
		end  func(cmd *bed.Running)
		code int
		left bool // the process goes on
	}{
		{"keys that leave it", func(*bed.Running) { _, err := master.WriteString("\x10\x11"); must(t, err) }, 0, true},
		{"Ctrl-C as a key", func(*bed.Running) { _, err := master.WriteString("\x03"); must(t, err) }, 2, false},
		{"a removal", func(*bed.Running) { a.b.OK("--node-socket", a.b.HostSocket(), "rm", fmt.Sprintf("box-%d", a.n)) }, 2, false},
	} {
		row := uint16(30 + i)
		must(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: row, Col: 77}))
		name, uid := a.box(never, withTerminal, "size")
		cmd := a.b.BeginIn(slave, a.args(name)...)
		says(t, cmd, fmt.Sprintf("%d 77\r\n", row))
		if during, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS); err != nil || *during == *before {
			t.Errorf("%s: the terminal does not hand keys on as they are: %v", c.name, err)
		}
		if i == 0 { // a restart of the host leaves the person where she is
			a.b.Kill("sandboxhost")
			a.b.WaitReady()
			must(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 78}))
			cmd.Signal(unix.SIGWINCH)
			says(t, cmd, "50 78\r\n")
		}
		c.end(cmd)
		if r := cmd.Wait(); r.Code != c.code {
			t.Errorf("%s: got code %d, %s, want %d", c.name, r.Code, r.Stderr, c.code)
		}
		if after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS); err != nil || *after != *before {
			t.Errorf("%s: got %+v, %v, want the terminal as before: %+v", c.name, after, err, before)
		}
		if c.left {
			remove(t, a.b, uid)
		}
	}
}

// A foreground run has the terminal of the person from the start. (EXE-5)
func TestAttach_EXE5_AForegroundRunHasTheTerminal(t *testing.T) {
	a := newAttacher(t)
	master, slave := pty(t)
	must(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 41, Col: 99}))
	before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	must(t, err)
	run := []string{"--node-socket", a.b.HostSocket(), "run", "--rm", "-it", bed.ProbeImage, "--"}
	cmd := a.b.BeginIn(slave, append(run, "size")...)
	says(t, cmd, "41 99\r\n")
	_, err = master.WriteString("\x03")
	must(t, err)
	if r := cmd.Wait(); r.Code != 2 {
		t.Errorf("Ctrl-C as a key: got code %d, %s, want 2", r.Code, r.Stderr)
	}
	cmd = a.b.BeginIn(slave, append(run, "trap", "1", "6")...)
	says(t, cmd, "ready\r\n")
	cmd.Interrupt()
	if r := cmd.Wait(); r.Code != 128+2 || !strings.Contains(r.Stderr, "asked ") || !strings.Contains(r.Stdout, "terminated") {
		t.Errorf("interrupted: got code %d, %s, want 130 and that it was asked to stop", r.Code, r.Stderr)
	}
	if after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS); err != nil || *after != *before {
		t.Errorf("got %+v, %v, want the terminal as before: %+v", after, err, before)
	}
	if list := a.b.OK("--node-socket", a.b.HostSocket(), "ps", "-o", "name"); list != "" {
		t.Errorf("left %q", list)
	}
}

// Whoever is attached to what ends is told so soon; nobody is attached to what does not run. (EXE-6)
func TestAttach_EXE6_EndsWithItsSandbox(t *testing.T) {
	a := newAttacher(t)
	local := []string{"--node-socket", a.b.HostSocket()}
	for _, c := range []struct {
		what string
		end  func(name string)
		code int
		says string
	}{
		{"stopped", func(name string) { a.b.OK(append(local, "stop", name)...) }, 9, "its sandbox was stopped"},
		{"removed", func(name string) { a.b.OK(append(local, "rm", name)...) }, 9, ""},
		{"without its shim", func(string) {
			for _, shim := range a.b.Shims() {
				bed.KillPID(a.b, shim)
			}
		}, 0, ""},
	} {
		name, uid := a.box(never, nil, "trap", "1", "9")
		client := a.b.BeginWith(&silent{t.Context()}, a.args(name)...)
		says(t, client, "ready\n")
		begin := time.Now()
		c.end(name)
		r := client.Wait()
		if r.Code == 0 || c.code != 0 && r.Code != c.code || !strings.Contains(r.Stderr, c.says) || time.Since(begin) > 15*time.Second {
			t.Errorf("%s: got code %d after %s, %q, want %d and %q", c.what, r.Code, time.Since(begin), r.Stderr, c.code, c.says)
		}
		if c.what == "stopped" {
			if r := a.b.CLI(a.args(name)...); r.Code != 125 || !strings.Contains(r.Stderr, "does not run, its phase is STOPPED") {
				t.Errorf("to one that is stopped: got code %d, %q", r.Code, r.Stderr)
			}
		}
		if c.what != "removed" {
			remove(t, a.b, uid)
		}
	}
	if r := a.b.CLI(a.args("unknown")...); r.Code != 125 || !strings.Contains(r.Stderr, "not found") {
		t.Errorf("to one that is unknown: got code %d, %q", r.Code, r.Stderr)
	}
	uid := ensure(t, a.b, "bad", spec(never, &resourcev1.ContainerSpec{Name: "main", Image: bed.ProbeImage, Command: []string{"/missing"}}))
	await(t, a.b, uid, "failed", func(s *resourcev1.SandboxStatus) bool {
		return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
	})
	if r := a.b.CLI(a.args("bad")...); r.Code != 125 || !strings.Contains(r.Stderr, "its phase is FAILED") {
		t.Errorf("to one that failed to start: got code %d, %q", r.Code, r.Stderr)
	}
}

// silent is input to which nothing comes and that does not end.
type silent struct{ ctx context.Context } //nolint:containedctx // a reader has none

func (s *silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, io.EOF
}
