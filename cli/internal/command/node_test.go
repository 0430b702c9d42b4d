package command_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/id"
	"staddle.internal/kit/run"

	"staddle.internal/cli/internal/command"
)

// result is the end of one command line.
type result struct {
	out, err string
	code     int
}

// cli runs a command line without a terminal and with an empty home.
func cli(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return cliIn(ctx, "", args...)
}

func cliIn(ctx context.Context, stdin string, args ...string) result {
	var out, errOut bytes.Buffer
	code := command.Run(ctx, args, strings.NewReader(stdin), &out, &errOut)
	return result{out.String(), errOut.String(), code}
}

func want(t *testing.T, got result, code int, parts ...string) {
	t.Helper()
	if got.code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", got.code, code, got.out, got.err)
	}
	for _, p := range parts {
		if !strings.Contains(got.out+got.err, p) {
			t.Errorf("%q is missing in\nstdout: %s\nstderr: %s", p, got.out, got.err)
		}
	}
}

// eventually waits for a condition and prints its last value when it does not
// come.
func eventually(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		done, last := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time: %s", what, last)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestMain(m *testing.M) {
	home, err := os.MkdirTemp("", "home")
	if err != nil {
		panic(err)
	}
	for k, v := range map[string]string{"HOME": home, "XDG_CONFIG_HOME": filepath.Join(home, ".config"), "STADDLE_ROOT": ""} {
		if err := os.Setenv(k, v); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	_ = os.RemoveAll(home)
	os.Exit(code)
}

func TestRun_AttachedShowsOutputApartAndEndsWithTheContainersCode(t *testing.T) {
	h := newHost(t)
	got := cli(t, "--node-socket", h.path, "run", "--name", "job", "exit-3", "--", "a b", "$HOME", "")
	want(t, got, 3)
	if got.out != "out a b|$HOME|\n" {
		t.Errorf("stdout %q: arguments must arrive as they were given", got.out)
	}
	if got.err != "err\n" {
		t.Errorf("stderr %q", got.err)
	}
	if b := h.byName("job"); b == nil || b.GetSpec().GetRestartPolicy() != resourcev1.RestartPolicy_RESTART_POLICY_NEVER {
		t.Errorf("sandbox %v: want it kept, with policy never", b)
	}
}

func TestRun_RmRemovesAfterTheEnd(t *testing.T) {
	h := newHost(t)
	want(t, cli(t, "--node-socket", h.path, "run", "--rm", "--name", "job", "exit-0"), 0, "out", "err")
	if b := h.byName("job"); b != nil {
		t.Errorf("sandbox %v is left", b)
	}
}

func TestRun_DetachedPrintsTheUIDAndRestartsAlways(t *testing.T) {
	h := newHost(t)
	got := cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", "--memory", "64MiB", "--cpu", "0.5", "-e", "A=b=c", "serve")
	want(t, got, 0)
	b := h.byName("web")
	if strings.TrimSpace(got.out) != b.GetUid() {
		t.Errorf("stdout %q, want the uid %s", got.out, b.GetUid())
	}
	c := b.GetSpec().GetContainers()[0]
	if b.GetSpec().GetRestartPolicy() != resourcev1.RestartPolicy_RESTART_POLICY_ALWAYS ||
		c.GetLimits().GetMemoryLimitBytes() != 64<<20 || c.GetLimits().GetCpuLimitMillicores() != 500 || c.GetEnv()[0].GetValue() != "b=c" {
		t.Errorf("spec %v", b.GetSpec())
	}
}

func TestRun_FailedStartSaysWhyAndWhatToTry(t *testing.T) {
	h := newHost(t)
	for _, mode := range []string{"--detach", "--rm"} {
		got := cli(t, "--node-socket", h.path, "run", mode, "--name", "bad"+strings.Trim(mode, "-"), "missing")
		want(t, got, 1, "registry unreachable", "\ntry: ")
	}
}

func TestRun_NameTakenIsAConflict(t *testing.T) {
	h := newHost(t)
	want(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", "serve"), 0)
	want(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", "serve"), 4, "name web is taken", "try: another --name")
}

func TestRun_WrongFlagsAreUsage(t *testing.T) {
	for _, args := range [][]string{
		{"run"},
		{"run", "--memory", "64", "img"},
		{"run", "--cpu", "NaN", "img"},
		{"run", "--restart", "sometimes", "img"},
		{"run", "--network", "bridge", "img"},
		{"run", "--disk", "data", "img"},
		{"run", "--env", "=x", "img"},
		{"run", "--name", "Not_A_Label", "img"},
		{"run", "img", "ls"},
		{"run", "--tmpfs", "/tmp:5", "img"},
		{"run", "--config-file", "/no/such/file:/etc/x", "img"},
		{"run", "--config-file", "x", "img"},
		{"run", "--scratch", "work", "img"},
		{"run", "--host-path", "srv:/srv", "img"},
		{"run", "--ulimit", "nofile=many", "img"},
		{"run", "--oom-score-adj", "low", "img"},
		{"run", "--log-mode", "never", "img"},
		{"run", "--security", "none", "img"},
		{"run", "--seccomp", "off", "img"},
		{"run", "--device", "fuse", "img"},
		{"run", "--add-host", "db", "img"},
		{"run", "-p", "80", "img"},
		{"run", "-p", "host:80:80", "img"},
		{"run", "-p", "80:70000", "img"},
		{"run", "-p", "80:80/sctp", "img"},
		{"run", "--sysctl", "net.core.somaxconn", "img"},
		{"run", "--env-from", "X=colour", "img"},
		{"run", "--detach", "--rm", "img"},
		{"ps", "-o", "xml"},
		{"pss"},
		{"get", "sandboxs"},
		{"logs", "--stream", "stdin", "x"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) { want(t, cli(t, args...), 2, "staddle: ") })
	}
}

func TestRun_InterruptStopsTheSandboxAndEndsWith128PlusSignal(t *testing.T) {
	h := newHost(t)
	ctx, interrupt := context.WithCancelCause(context.Background())
	done := make(chan result, 1)
	go func() { done <- cliIn(ctx, "", "--node-socket", h.path, "run", "--rm", "--name", "web", "serve") }()
	eventually(t, "sandbox runs", func() (bool, string) {
		b := h.byName("web")
		return b.GetStatus().GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING, b.String()
	})
	interrupt(&run.SignalError{Signal: syscall.SIGINT})
	want(t, <-done, 130)
	if b := h.byName("web"); b != nil {
		t.Errorf("sandbox %v is left, want it stopped and removed", b)
	}
}

func TestLogs_FollowOutlivesRestartsOfTheHostAndOfTheSandbox(t *testing.T) {
	h := newHost(t)
	want(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", "serve"), 0)
	uid := h.byName("web").GetUid()
	var out, errOut syncBuffer
	done := make(chan int, 1)
	go func() {
		done <- command.Run(context.Background(), []string{"--node-socket", h.path, "logs", "-f", "web"}, nil, &out, &errOut)
	}()
	expect := func(text string) {
		t.Helper()
		eventually(t, "output "+text, func() (bool, string) { return out.String() == text, out.String() })
	}
	expect("out \n")
	h.restart(t)
	h.change(func() { h.outputOf(uid, 1).stdout.WriteString("second\n") })
	expect("out \nsecond\n")
	h.change(func() { h.outputOf(uid, 1).closed = true; h.live(h.boxes[uid]) }) // a new attempt
	expect("out \nsecond\nout \n")
	want(t, cli(t, "--node-socket", h.path, "stop", "web"), 0, "web")
	select {
	case code := <-done:
		if code != 0 {
			t.Errorf("exit code %d: %s", code, errOut.String())
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("logs -f did not end: %s", out.String())
	}
	if n := strings.Count(errOut.String(), "err\n"); n != 2 {
		t.Errorf("stderr %q: want the line of each attempt once", errOut.String())
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestLifecycle_StopStartRemoveOnANodeAlone(t *testing.T) {
	h := newHost(t)
	node := func(args ...string) result { return cli(t, append([]string{"--node-socket", h.path}, args...)...) }
	want(t, node("run", "-d", "--name", "web", "serve"), 0)
	want(t, node("stop", "web"), 0)
	if got := h.byName("web"); got.GetStatus().GetPhase() != resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED || got.GetGeneration() != 2 {
		t.Fatalf("after stop: %v", got)
	}
	want(t, node("stop", "web"), 0)
	if got := h.byName("web").GetGeneration(); got != 2 {
		t.Errorf("generation %d after a second stop, want 2: nothing changed", got)
	}
	want(t, node("start", "web"), 0)
	if got := h.byName("web").GetStatus(); got.GetAttempt() != 2 {
		t.Errorf("after start: %v", got)
	}
	want(t, node("rm", "web", "nothing"), 3, "web", `sandbox "nothing": not found`)
	want(t, node("ps", "-o", "name"), 0)
}

func TestRm_TimeoutNamesTheStateAndIsUnavailable(t *testing.T) {
	h := newHost(t)
	h.stuck = true
	want(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", "serve"), 0)
	want(t, cli(t, "--node-socket", h.path, "--timeout", "200ms", "rm", "web"), 5, "not there in time: REMOVING", "try: ")
	want(t, cli(t, "--node-socket", h.path, "rm", "--no-wait", "web"), 0)
}

func TestPs_PrintedNamesAndUIDsAreWholeAndAccepted(t *testing.T) {
	h := newHost(t)
	long := strings.Repeat("n", 63)
	for _, name := range []string{"a", "b", "c", "d", long} {
		want(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", name, "serve"), 0)
	}
	t.Setenv("COLUMNS", "20")
	got := cli(t, "--node-socket", h.path, "ps")
	want(t, got, 0, long)
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if len(lines) != 6 {
		t.Fatalf("%d lines, want a heading and five sandboxes:\n%s", len(lines), got.out)
	}
	for _, line := range lines[1:] {
		uid := strings.Fields(line)[1]
		if id.CheckUID(uid) != nil {
			t.Fatalf("%q is no uid in %q", uid, line)
		}
		want(t, cli(t, "--node-socket", h.path, "logs", strings.ToLower(uid)), 0, "out")
		want(t, cli(t, "--node-socket", h.path, "logs", uid[:25]), 0, "out")
	}
	want(t, cli(t, "--node-socket", h.path, "logs", strings.Fields(lines[1])[1][:6]), 4, "is ambiguous", long)
}

func TestNode_WhatOnlyACoordinatorCanDoSaysSo(t *testing.T) {
	h := newHost(t)
	for _, args := range [][]string{
		{"run", "-d", "--disk", "d:/data", "serve"},
		{"get", "nodes"}, {"disk", "ls"}, {"node", "ls"},
	} {
		want(t, cli(t, append([]string{"--node-socket", h.path}, args...)...), 2, "coordinator", "--node-socket")
	}
}

// Labels are kept by a node as well, and by a change of the sandbox.
func TestNode_LabelsAreKept(t *testing.T) {
	h := newHost(t)
	want(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", "-l", "app=web", "serve"), 0)
	want(t, cli(t, "--node-socket", h.path, "stop", "web"), 0)
	want(t, cli(t, "--node-socket", h.path, "describe", "web"), 0, "app=web")
}

func TestNode_SandboxesOfTheClusterAreShownAndNotTouched(t *testing.T) {
	h := newHost(t)
	uid := string(id.NewSandbox())
	h.change(func() {
		h.boxes[uid] = &sandboxhostv1.SandboxState{Uid: uid, Name: "theirs", Manager: "cluster", Generation: 1,
			Spec: &resourcev1.SandboxSpec{}, Status: &resourcev1.SandboxStatus{}}
	})
	want(t, cli(t, "--node-socket", h.path, "ps"), 0, "theirs", "cluster")
	want(t, cli(t, "--node-socket", h.path, "stop", "theirs"), 6, "belongs to the cluster")
	want(t, cli(t, "--node-socket", h.path, "rm", "theirs"), 6, "belongs to the cluster")
}

func TestImage_PullImportList(t *testing.T) {
	h := newHost(t)
	node := func(args ...string) result { return cli(t, append([]string{"--node-socket", h.path}, args...)...) }
	want(t, node("image", "pull", "host/app:1"), 0, "host/app:1 sha256:1")
	want(t, node("image", "pull", "nowhere/app:1"), 5, "no such host", "staddle image import")
	file := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(file, make([]byte, 200<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, node("image", "import", file), 0, "staddle.local/imported:1")
	if err := os.WriteFile(file, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, node("image", "import", file), 2, "it is no archive")
	want(t, node("image", "import", file+".not"), 3, "does not exist")
	want(t, cliIn(context.Background(), "x", "--node-socket", h.path, "image", "import", "-"), 0)
	want(t, node("image", "ls"), 0, "host/app:1", "2.0 KiB", "200.0 KiB")
	want(t, node("run", "-d", "--name", "web", "--pull", "never", "host/app:1"), 0)
	if got := h.byName("web").GetSpec().GetContainers()[0].GetPullPolicy(); got != resourcev1.PullPolicy_PULL_POLICY_NEVER {
		t.Errorf("run --pull never: got %s", got)
	}
	want(t, node("run", "-d", "--pull", "sometimes", "host/app:1"), 2, "if-not-present, always or never")
	want(t, node("__complete", "image", "rm", ""), 0, "host/app:1")
	got := node("image", "rm", "host/app:1", "staddle.local/imported:1", "none:1")
	want(t, got, got.code, "in use by sandbox web", "staddle rm NAME", "staddle.local/imported:1", "none:1: it is not present")
	if got.code == 0 {
		t.Error("a removal that was refused ended with 0")
	}
	want(t, node("image", "ls"), 0, "host/app:1")
}

func TestImage_ExportPinPrune(t *testing.T) {
	h := newHost(t)
	node := func(args ...string) result { return cli(t, append([]string{"--node-socket", h.path}, args...)...) }
	for _, ref := range []string{"host/app:1", "host/cut:1", "host/kept:1"} {
		want(t, node("image", "pull", ref), 0)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "app.tar")
	holds := func(what, content string) {
		t.Helper()
		raw, err := os.ReadFile(file)
		if err != nil || string(raw) != content {
			t.Errorf("%s: the file holds %q, %v", what, raw, err)
		}
		if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
			t.Errorf("%s: the folder holds %v, %v", what, all, err)
		}
	}
	want(t, node("image", "export", "host/app:1", file), 0)
	holds("export", "first second")
	want(t, node("image", "export", "host/cut:1", file), 5, "the runtime went away")
	holds("an export that is cut", "first second")
	want(t, node("image", "export", "--all-platforms", "host/app:1", file), 0)
	holds("a second export", "first second all")
	if got := node("image", "export", "host/app:1", "-"); got.out != "first second" {
		t.Errorf("to standard output: got %q", got.out)
	}
	want(t, node("image", "export", "none:1", file), 3, "not present", "staddle image ls")
	want(t, node("image", "export", "host/app:1", filepath.Join(dir, "none", "app.tar")), 2, "none")
	want(t, node("image", "pin", "host/kept:1"), 0, "host/kept:1")
	want(t, node("image", "pin", "none:1"), 3, "staddle image ls")
	want(t, node("image", "ls"), 0, "KEPT", "pinned")
	want(t, node("image", "prune", "--dry-run"), 0, "host/app:1", "2 images would be removed")
	want(t, node("image", "prune"), 0, "host/app:1", "2 images removed")
	want(t, node("image", "ls"), 0, "host/kept:1")
	want(t, node("image", "unpin", "host/kept:1"), 0, "host/kept:1")
	want(t, node("image", "prune", "-o", "json"), 0, "freed_bytes")
	if left := node("image", "ls"); strings.Contains(left.out, "host/") {
		t.Errorf("left: %s", left.out)
	}
}

func TestReach_TellsWhatIsWrongWithTheSocket(t *testing.T) {
	dir := t.TempDir()
	want(t, cli(t, "--node-socket", filepath.Join(dir, "none.sock"), "ps"), 5, "there is no such socket", "try: staddle up")
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, cli(t, "--node-socket", dead, "ps"), 5, "connection refused", "try: staddle status")
	want(t, cli(t, "--node-socket", filepath.Join(dir, strings.Repeat("x", 120)), "ps"), 2, "107")
}

// TestReach_NoProxyIsUsed is UDS-4: calls to a socket are not sent to a proxy.
func TestReach_NoProxyIsUsed(t *testing.T) {
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	calls.Add(1)
	count := 0
	go func() { // ends with the listener
		defer calls.Done()
		for {
			c, err := proxy.Accept()
			if err != nil {
				return
			}
			count++
			_ = c.Close()
		}
	}()
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, fmt.Sprintf("http://%s", proxy.Addr()))
	}
	h := newHost(t)
	want(t, cli(t, "--node-socket", h.path, "run", "--rm", "exit-0"), 0)
	want(t, cli(t, "--node-socket", h.path, "ps"), 0)
	if err := proxy.Close(); err != nil {
		t.Fatal(err)
	}
	calls.Wait()
	if count != 0 {
		t.Errorf("the proxy was called %d times", count)
	}
}
