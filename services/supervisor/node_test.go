package supervisor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"google.golang.org/grpc"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/rpc"
)

const (
	ready    = supervisorv1.ComponentState_COMPONENT_STATE_READY
	starting = supervisorv1.ComponentState_COMPONENT_STATE_STARTING
	waiting  = supervisorv1.ComponentState_COMPONENT_STATE_WAITING
)

// part is one component of a test: a child of a mode.
type part struct {
	name, mode string
	more       string // further keys of node.yaml, such as "needs: [a]"
}

// node is one root with its configuration, and the supervisor that runs on it.
type node struct {
	t    *testing.T
	root string
	// program is the supervisor's.
	program string
	attr    *syscall.SysProcAttr // of the supervisor; may be nil
	cmd     *exec.Cmd
	done    chan struct{} // closed after exit was set
	exit    error
	out     *output
	conn    *grpc.ClientConn
	api     supervisorv1.SupervisorServiceClient
}

// output collects what a process says.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// newNode writes a configuration in which only the given parts exist.
func newNode(t *testing.T, settings string, parts ...part) *node {
	t.Helper()
	root, err := os.MkdirTemp("", "sv")
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, root: root, program: exe}
	t.Cleanup(n.clean)
	n.configure(settings, parts...)
	return n
}

// configure writes node.yaml anew.
func (n *node) configure(settings string, parts ...part) {
	n.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "version: 1\nname: test\ncontainerd: {managed: false}\nsupervisor:\n  backoff: {initial: 50ms, cap: 1s, stable: 60s}\n%s  components:\n", settings)
	for _, name := range config.Processes() {
		if name != "coordinator" {
			fmt.Fprintf(&b, "    - {name: %s, disabled: true}\n", name)
		}
	}
	for _, p := range parts {
		fmt.Fprintf(&b, "    - name: %s\n      command: [%s, %s, --root, %s]\n      env: {%s: \"child:%s\"}\n", p.name, exe, p.name, n.root, roleVariable, p.mode)
		if p.more != "" {
			fmt.Fprintf(&b, "      %s\n", p.more)
		}
	}
	n.write(b.String())
}

// copyProgram gives the node a supervisor's program of its own, which can be
// replaced.
func (n *node) copyProgram() {
	n.t.Helper()
	text, err := os.ReadFile(n.program)
	n.program = filepath.Join(n.root, "supervisor")
	if err := errors.Join(err, os.WriteFile(n.program, text, 0o755)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) write(text string) {
	n.t.Helper()
	etc := filepath.Join(n.root, "etc")
	if err := errors.Join(os.MkdirAll(etc, 0o755), os.WriteFile(filepath.Join(etc, "node.yaml"), []byte(text), 0o600)); err != nil {
		n.t.Fatal(err)
	}
}

// start runs a supervisor on the root.
func (n *node) start(args ...string) {
	n.t.Helper()
	n.out, n.done = &output{}, make(chan struct{})
	n.cmd = exec.Command(n.program, append([]string{"--root", n.root}, args...)...)
	n.cmd.Env = append(os.Environ(), roleVariable+"=supervisor", "STADDLE_LOG=json", "GORACE=atexit_sleep_ms=0")
	n.cmd.SysProcAttr = n.attr
	n.cmd.Stdout, n.cmd.Stderr = n.out, n.out
	n.cmd.WaitDelay = 5 * time.Second
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func(cmd *exec.Cmd, done chan struct{}) { // owned by the node: clean waits for it
		n.exit = cmd.Wait()
		close(done)
	}(n.cmd, n.done)
	n.dial()
}

func (n *node) dial() {
	n.t.Helper()
	conn, err := rpc.Dial(filepath.Join(n.root, "run", "supervisor.sock"), rpc.DialConfig{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.conn, n.api = conn, supervisorv1.NewSupervisorServiceClient(conn)
}

// stop ends the supervisor in order and returns its exit code.
func (n *node) stop() int {
	n.t.Helper()
	n.signal(syscall.SIGTERM)
	return n.wait()
}

func (n *node) signal(sig syscall.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.t.Fatal(err)
	}
}

func (n *node) wait() int {
	n.t.Helper()
	select {
	case <-n.done:
	case <-time.After(30 * time.Second):
		n.t.Fatalf("supervisor still runs; it said:\n%s", n.out)
	}
	return n.cmd.ProcessState.ExitCode()
}

func (n *node) clean() {
	if n.cmd != nil {
		n.stop()
		if err := n.conn.Close(); err != nil {
			n.t.Error(err)
		}
		if n.t.Failed() {
			n.t.Logf("supervisor said:\n%s", n.out)
			n.logs()
		}
	}
	if err := os.RemoveAll(n.root); err != nil {
		n.t.Error(err)
	}
	n.removeGroups()
}

// removeGroups takes away what a supervisor that was killed has left of its
// control groups, once what lived in them has died.
func (n *node) removeGroups() {
	ours := config.Paths{Root: n.root}.ComponentCgroup()
	for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu"} {
		base := filepath.Join(hierarchy, ours)
		inner, err := filepath.Glob(filepath.Join(base, "*", "cgroup.procs"))
		if err != nil {
			n.t.Error(err)
		}
		for i, procs := range inner {
			inner[i] = filepath.Dir(procs)
		}
		for _, group := range append(inner, base) {
			var last error
			n.eventually(func() bool {
				last = os.Remove(group)
				return last == nil || errors.Is(last, os.ErrNotExist)
			}, func() string { return fmt.Sprintf("no control group, last got %v", last) })
		}
	}
}

func (n *node) logs() {
	files, err := filepath.Glob(filepath.Join(n.root, "var/supervisor/logs/*.log"))
	if err != nil {
		n.t.Error(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		n.t.Logf("%s said (%v):\n%s", filepath.Base(f), err, text)
	}
}

// graph returns the components by name.
func (n *node) graph() map[string]*supervisorv1.Component {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 5*time.Second)
	defer cancel()
	answer, err := n.api.GetGraph(ctx, &supervisorv1.GetGraphRequest{})
	if err != nil {
		n.t.Fatalf("get graph: %v; supervisor said:\n%s", err, n.out)
	}
	out := map[string]*supervisorv1.Component{}
	for _, c := range answer.GetComponents() {
		out[c.GetName()] = c
	}
	return out
}

// until waits for a condition on one component and returns it.
func (n *node) until(name string, what string, ok func(*supervisorv1.Component) bool) *supervisorv1.Component {
	n.t.Helper()
	var last *supervisorv1.Component
	n.eventually(func() bool {
		last = n.graph()[name]
		return ok(last)
	}, func() string { return fmt.Sprintf("%s to be %s, last seen %v", name, what, last) })
	return last
}

func (n *node) untilState(name string, state supervisorv1.ComponentState) *supervisorv1.Component {
	n.t.Helper()
	return n.until(name, state.String(), func(c *supervisorv1.Component) bool { return c.GetState() == state })
}

// untilAgain waits for a component to be ready in another process than pid.
func (n *node) untilAgain(name string, pid int32) *supervisorv1.Component {
	n.t.Helper()
	return n.until(name, "ready again", func(c *supervisorv1.Component) bool {
		return c.GetState() == ready && c.GetPid() != pid
	})
}

func (n *node) eventually(ok func() bool, what func() string) {
	n.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			n.t.Fatalf("waited in vain for %s", what())
		}
		<-tick.C
	}
}

// lines returns the lines of a file that children wrote below the root.
func (n *node) lines(file string) []string {
	text, err := os.ReadFile(filepath.Join(n.root, file))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// alive reports whether a process lives; a dead one that nobody reaped does not.
func alive(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	events, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && events == 0
}
