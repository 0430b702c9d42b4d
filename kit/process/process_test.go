package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/run"
	"staddle.internal/kit/version"
)

// TestMain lets the test binary be a process of Staddle, whose name and whose
// build the environment says.
func TestMain(m *testing.M) {
	if name := os.Getenv("KIT_TEST_PROCESS"); name != "" {
		os.Exit(Main(name, builds[os.Getenv("KIT_TEST_BUILD")]))
	}
	os.Exit(m.Run())
}

var builds = map[string]Build{
	"": func(context.Context, *Process) ([]run.Member, error) { return nil, nil },
	"bad config": func(context.Context, *Process) ([]run.Member, error) {
		return nil, config.Wrong("node.yaml", "no such engine")
	},
	"broken": func(context.Context, *Process) ([]run.Member, error) { return nil, errors.New("out of luck") },
	"failing": func(context.Context, *Process) ([]run.Member, error) {
		return []run.Member{{Name: "loop", Run: func(context.Context, func()) error { return errors.New("loop broke") }}}, nil
	},
	"alone": func(context.Context, *Process) ([]run.Member, error) { return nil, nil },
	"stuck": func(_ context.Context, p *Process) ([]run.Member, error) {
		return []run.Member{{Name: "loop", Run: stuckLoop(p)}}, nil
	},
	"panicking": func(context.Context, *Process) ([]run.Member, error) {
		return []run.Member{{Name: "loop", Run: func(context.Context, func()) error { panic("bang") }}}, nil
	},
}

// root is a root folder with a configuration, whose name leaves room for sockets.
func root(t *testing.T, yaml string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if yaml != "" {
		if err := os.WriteFile(filepath.Join(dir, "etc", "node.yaml"), []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// output is what a process wrote, readable while it runs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// proc is one running process.
type proc struct {
	*exec.Cmd
	out  *output
	done chan struct{}
}

type spec struct {
	name, build string
	args, env   []string
	files       []*os.File
}

func (s spec) start(t *testing.T) *proc {
	t.Helper()
	p := &proc{Cmd: exec.Command("/proc/self/exe", s.args...), out: &output{}, done: make(chan struct{})}
	p.Env = append(os.Environ(), append(s.env, "KIT_TEST_PROCESS="+s.name, "KIT_TEST_BUILD="+s.build)...)
	p.Stdout, p.Stderr, p.ExtraFiles = p.out, p.out, s.files
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process, which the test kills
		defer close(p.done)
		p.Wait()
	}()
	t.Cleanup(func() { p.Process.Kill(); <-p.done })
	return p
}

// exit waits for the end and returns the exit code.
func (p *proc) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
		return p.ProcessState.ExitCode()
	case <-time.After(20 * time.Second):
		t.Fatalf("still running; it wrote:\n%s", p.out)
		return -1
	}
}

func eventually(t *testing.T, what string, check func() (value any, ok bool)) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		value, ok := check()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20s; last value: %v", what, value)
		}
		<-tick.C
	}
}

func status(t *testing.T, dir, name string) (*processv1.GetStatusResponse, error) {
	t.Helper()
	conn, err := rpc.Dial(config.Paths{Root: dir}.Socket(name), rpc.DialConfig{FailFast: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return processv1.NewProcessServiceClient(conn).GetStatus(t.Context(), &processv1.GetStatusRequest{})
}

func waitState(t *testing.T, dir, name string, want processv1.ProcessState) {
	t.Helper()
	eventually(t, name+" "+want.String(), func() (any, bool) {
		st, err := status(t, dir, name)
		return fmt.Sprint(st, err), err == nil && st.GetState() == want
	})
}

const ready = processv1.ProcessState_PROCESS_STATE_READY

// The exit code says whether a restart can help.
func TestMain_ExitCodes(t *testing.T) {
	good := root(t, "version: 1\n")
	bad := root(t, "version: 1\npresense: {}\n")
	for _, tc := range []struct {
		name string
		spec spec
		want int
		says []string
	}{
		{"version", spec{args: []string{"--version"}}, 0, []string{version.String()}},
		{"help", spec{args: []string{"--help"}}, 0, []string{"-check-config"}},
		{"check of a good file", spec{args: []string{"--root", good, "--check-config"}}, 0, []string{"valid"}},
		{"check of a bad file", spec{args: []string{"--root", bad, "--check-config"}}, 2, []string{bad + "/etc/node.yaml:2: presense", `"presence"`}},
		{"bad file", spec{args: []string{"--root", bad}}, 2, []string{"node.yaml:2"}},
		{"no file", spec{args: []string{"--root", root(t, "")}}, 2, []string{"does not exist", "--config"}},
		{"other file", spec{args: []string{"--root", bad, "--config", good + "/etc/node.yaml", "--check-config"}}, 0, []string{"valid"}},
		{"unknown flag", spec{args: []string{"--rot", "x"}}, 2, []string{"rot"}},
		{"argument", spec{args: []string{"start"}}, 2, []string{`"start"`}},
		{"bad level", spec{args: []string{"--log-level", "loud"}}, 2, []string{"loud", "debug, info"}},
		{"bad telemetry", spec{args: []string{"--root", good}, env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://x", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"}}, 2, []string{"http/json"}},
		{"build finds bad configuration", spec{args: []string{"--root", good}, build: "bad config"}, 2, []string{"no such engine"}},
		{"build fails", spec{args: []string{"--root", good}, build: "broken"}, 1, []string{"out of luck"}},
		{"member fails", spec{args: []string{"--root", good}, build: "failing"}, 1, []string{"member loop: loop broke"}},
		{"member panics", spec{args: []string{"--root", good}, build: "panicking"}, 1, []string{"panic: bang"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.spec.name = "storage"
			p := tc.spec.start(t)
			if got := p.exit(t); got != tc.want {
				t.Errorf("exit code %d, want %d:\n%s", got, tc.want, p.out)
			}
			for _, text := range tc.says {
				if !strings.Contains(p.out.String(), text) {
					t.Errorf("output does not say %q:\n%s", text, p.out)
				}
			}
		})
	}
}

func TestMain_LifeOfAProcess(t *testing.T) {
	dir := root(t, "version: 1\n")
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := spec{name: "storage", args: []string{"--root", dir}, env: []string{"STADDLE_LGO=json"}}.start(t)
		waitState(t, dir, "storage", ready)
		if st, err := status(t, dir, "storage"); err != nil || int(st.GetPid()) != p.Process.Pid {
			t.Errorf("status %v, %v", st, err)
		}
		if err := p.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if got := p.exit(t); got != 0 {
			t.Errorf("exit code after %s: %d:\n%s", signal, got, p.out)
		}
		for _, text := range []string{
			"process started", "config_hash", "state changed", "process stopped", "signal: " + signal.String(),
			"STADDLE_LGO", "STADDLE_LOG",
		} {
			if !strings.Contains(p.out.String(), text) {
				t.Errorf("log does not say %q:\n%s", text, p.out)
			}
		}
		if _, err := os.Lstat(config.Paths{Root: dir}.Socket("storage")); !os.IsNotExist(err) {
			t.Errorf("socket left behind: %v", err)
		}
	}
}

// UDS-1 for a whole process: after a kill the next one is ready at once.
func TestMain_UDS1_StartsAfterAKill(t *testing.T) {
	dir := root(t, "version: 1\n")
	s := spec{name: "storage", args: []string{"--root", dir}}
	for range 3 {
		p := s.start(t)
		waitState(t, dir, "storage", ready)
		p.Process.Kill()
		<-p.done
	}
	begin := time.Now()
	s.start(t)
	waitState(t, dir, "storage", ready)
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestMain_NeverTwo(t *testing.T) {
	dir := root(t, "version: 1\n")
	s := spec{name: "storage", args: []string{"--root", dir}}
	first := s.start(t)
	waitState(t, dir, "storage", ready)
	second := s.start(t)
	if got := second.exit(t); got != 1 {
		t.Errorf("exit code %d", got)
	}
	if want := fmt.Sprintf("already running as pid %d", first.Process.Pid); !strings.Contains(second.out.String(), want) {
		t.Errorf("output does not say %q:\n%s", want, second.out)
	}
	waitState(t, dir, "storage", ready)
}

func TestMain_WaitsForItsNeighbours(t *testing.T) {
	dir := root(t, "version: 1\nsupervisor:\n  components:\n    - {name: sandboxhost, needs: [storage]}\n")
	host := spec{name: "sandboxhost", args: []string{"--root", dir}}.start(t)
	eventually(t, "reason", func() (any, bool) {
		st, err := status(t, dir, "sandboxhost")
		return fmt.Sprint(st, err), err == nil && strings.HasPrefix(st.GetReason(), "waiting for storage: no such file or directory for ")
	})
	storage := spec{name: "storage", args: []string{"--root", dir}}.start(t)
	waitState(t, dir, "sandboxhost", ready)
	storage.Process.Kill()
	<-storage.done
	waitState(t, dir, "sandboxhost", processv1.ProcessState_PROCESS_STATE_NOT_READY)
	spec{name: "storage", args: []string{"--root", dir}}.start(t)
	waitState(t, dir, "sandboxhost", ready)
	host.Process.Signal(syscall.SIGTERM)
	if got := host.exit(t); got != 0 {
		t.Errorf("exit code %d:\n%s", got, host.out)
	}
}

func TestMain_StopsWhileItWaits(t *testing.T) {
	dir := root(t, "version: 1\n")
	p := spec{name: "sandboxhost", args: []string{"--root", dir}}.start(t)
	waitState(t, dir, "sandboxhost", processv1.ProcessState_PROCESS_STATE_STARTING)
	p.Process.Signal(syscall.SIGTERM)
	if got := p.exit(t); got != 0 {
		t.Errorf("exit code %d:\n%s", got, p.out)
	}
}

// A passed socket survives the process, and the manager is told.
func TestMain_UnderASupervisor(t *testing.T) {
	dir := root(t, "version: 1\n")
	paths := config.Paths{Root: dir}
	if err := os.Mkdir(paths.Run(), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: paths.Socket("storage")})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	file, err := listener.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	defer listener.Close()
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify")})
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()

	s := spec{name: "storage", args: []string{"--root", dir}, files: []*os.File{file}, env: []string{
		"LISTEN_FDS=1", "LISTEN_FDNAMES=storage.sock", "NOTIFY_SOCKET=" + filepath.Join(dir, "notify"),
	}}
	for range 2 {
		p := s.start(t)
		waitMessage(t, p, notify, "READY=1")
		waitState(t, dir, "storage", ready)
		p.Process.Signal(syscall.SIGTERM)
		waitMessage(t, p, notify, "STOPPING=1")
		if got := p.exit(t); got != 0 {
			t.Errorf("exit code %d:\n%s", got, p.out)
		}
	}
}

func waitMessage(t *testing.T, p *proc, notify *net.UnixConn, want string) {
	t.Helper()
	if err := notify.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	last := ""
	for !strings.Contains(last, want) {
		n, err := notify.Read(buf)
		if err != nil {
			t.Fatalf("no message with %s: %v; last: %q; output:\n%s", want, err, last, p.out)
		}
		last = string(buf[:n])
	}
}

func TestFrame_OwnFileAndFlags(t *testing.T) {
	dir := root(t, "")
	var replicas int
	var loaded string
	f := Frame{
		Name: "coordinator", File: "coordinator.yaml",
		Load:  func(path string) error { loaded = path; return nil },
		Flags: func(fs *flag.FlagSet) { fs.IntVar(&replicas, "replicas", 1, "how many") },
	}
	if err := os.WriteFile(filepath.Join(dir, "etc", "coordinator.yaml"), []byte("version: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if got := f.main([]string{"--root", dir, "--replicas", "3", "--check-config"}, &stdout, &stderr, nil); got != 0 {
		t.Fatalf("exit code %d: %s", got, &stderr)
	}
	if want := filepath.Join(dir, "etc", "coordinator.yaml"); loaded != want || replicas != 3 || !strings.Contains(stdout.String(), want) {
		t.Errorf("loaded %q, replicas %d, output %q", loaded, replicas, &stdout)
	}
	f.Load = func(string) error { return config.Wrong("coordinator.yaml", "bad") }
	if got := f.main([]string{"--root", dir}, io.Discard, io.Discard, nil); got != 2 {
		t.Errorf("exit code %d, want 2", got)
	}
}

func TestProcess_DialSharesConnections(t *testing.T) {
	node := config.DefaultNode()
	p := &Process{Name: "sandboxhost", Paths: config.Paths{Root: "/r"}, Config: &node}
	node.Resolve(p.Paths)
	a, err := p.Dial("storage")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := p.Dial("storage"); err != nil || b != a {
		t.Errorf("second connection %p, %v, want %p", b, err, a)
	}
	if c, err := p.Dial(config.ContainerdName); err != nil || !strings.Contains(c.Target(), "/r/run/containerd.sock") {
		t.Errorf("containerd: %v", err)
	}
	if err := p.hangUp(); err != nil {
		t.Error(err)
	}
}

func TestMessage_OneLinePerValue(t *testing.T) {
	got := message(&processv1.GetStatusResponse{Reason: "a\nREADY=1", State: processv1.ProcessState_PROCESS_STATE_STARTING})
	scanner := bufio.NewScanner(strings.NewReader(got))
	for scanner.Scan() {
		if scanner.Text() == "READY=1" {
			t.Errorf("a reason forged readiness: %q", got)
		}
	}
}
