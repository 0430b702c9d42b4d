// Package bed puts up real machines for the end-to-end tests: each a root folder
// and a network namespace with its own supervisor, containerd, coordinator and
// node processes, driven as a person would drive them.
//
// A bed takes itself down at the end of its test and fails it if anything that
// it made is left in the kernel. It must never touch what it did not make.
package bed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/config"
	"staddle.internal/kit/rpc"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"
)

// ProbeImage is the name under which a bed with Probe has the test workload.
const ProbeImage = "staddle.local/probe:1"

// Options says what kind of machine to put up.
type Options struct {
	// Composition is "node" (a node alone) or "machine", the default.
	Composition string
	// Disabled components are left out of the graph.
	Disabled []string
	// Node is YAML added to node.yaml, Supervisor to its section supervisor, where
	// each line begins with two spaces.
	Node, Supervisor string
	// Sandboxes are further keys of the section sandboxes of node.yaml.
	Sandboxes string
	// Coordinator is YAML added to coordinator.yaml.
	Coordinator string
	// Env is added to the environment of the supervisor and the command line.
	Env []string
	// Open are files that the supervisor finds open beside the usual three, as
	// whoever starts it may have forgotten to close some.
	Open []*os.File
	// Lan makes it a machine that has a coordinator for others and nothing else: it
	// gets a bridge that they are joined to, and its coordinator serves there.
	Lan bool
	// Cluster is a machine with Lan that was started. This one is then a node joined
	// to it by a cable that can be cut, with the identity that its bootstrap wrote.
	Cluster *Bed
	// Name of the node, NodeName by default, or SecondNode: it joins the same cluster
	// beside the first, with an identity of its own.
	Name string
}

// T is what a bed needs of a test; testing.TB has it, and so has a benchmark that
// is a program.
type T interface {
	Helper()
	Cleanup(func())
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Failed() bool
}

// Bed is one machine.
type Bed struct {
	t      T
	opts   Options
	Paths  config.Paths
	NS     string // name of the network namespace
	Parent string // cgroup below which its workloads live
	bin    string
	before inventory

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

// installed is what an installation consists of.
var installed = []string{"staddle", "staddle-node", "staddle-init", "staddle-coordinator", "containerd", "containerd-shim-runc-v2", "runc", "hello.tar"}

// binaries copies what is tested to a folder that every user may enter, once.
var binaries = sync.OnceValues(func() (string, error) {
	from := os.Getenv("BINARIES_UNDER_TEST")
	if from == "" {
		return "", errors.New("BINARIES_UNDER_TEST does not name the folder of binaries: run make test")
	}
	to, err := os.MkdirTemp("/var/tmp", "staddle-e2e-bin-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(to, 0o755); err != nil {
		return "", err
	}
	for _, name := range installed {
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return "", fmt.Errorf("run make build: %w", err)
		}
	}
	return to, nil
})

// Main runs the tests of a package that uses beds, or anything else that gives an
// exit code, and removes what beds share.
func Main(m interface{ Run() int }) int {
	code := m.Run()
	if dir, err := binaries(); err == nil {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// New lays out a machine without starting anything.
func New(t T, opts Options) *Bed {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("end-to-end tests need root: run make test")
	}
	opts.complete()
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.MkdirTemp("/var/tmp", "st-")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(root)
	b := &Bed{
		t: t, opts: opts, Paths: config.Paths{Root: root}, NS: name, Parent: name + ".slice",
		bin: filepath.Join(root, "bin"), conns: map[string]*grpc.ClientConn{},
	}
	b.must(os.Chmod(root, 0o755))
	b.must(os.MkdirAll(b.Paths.Etc(), 0o755))
	b.must(os.Mkdir(b.bin, 0o755))
	for _, name := range installed {
		b.must(os.Link(filepath.Join(bin, name), filepath.Join(b.bin, name)))
	}
	b.command("ip", "netns", "add", b.NS)
	b.command("ip", "-n", b.NS, "link", "set", "lo", "up")
	b.layCables()
	b.WriteConfig("")
	b.before = b.inventory()
	t.Cleanup(b.down)
	return b
}

// WriteConfig writes node.yaml and coordinator.yaml anew, with extra at the end
// of node.yaml.
func (b *Bed) WriteConfig(extra string) {
	b.t.Helper()
	var node strings.Builder
	fmt.Fprintf(&node, "version: 1\nname: %s\nusers: {first_id: %d}\nsandboxes: {cgroup_parent: %s, boot_hold: 3s, %s}\n", b.opts.Name, firstID, b.Parent, b.opts.Sandboxes)
	fmt.Fprintf(&node, "supervisor:\n  composition: %s\n", b.opts.Composition)
	if b.opts.Supervisor != "" {
		node.WriteString(b.opts.Supervisor + "\n")
	}
	if len(b.opts.Disabled) > 0 {
		node.WriteString("  components:\n")
		for _, name := range b.opts.Disabled {
			fmt.Fprintf(&node, "    - {name: %s, disabled: true}\n", name)
		}
	}
	node.WriteString(b.opts.Node + "\n" + extra + "\n")
	b.must(os.WriteFile(b.Paths.NodeFile(), []byte(node.String()), 0o644))
	coordinator := fmt.Sprintf("version: 1\nbootstrap: {node: %s, nodes: [%s], node_key_owner: %d, operator: admin}\n%s\n",
		NodeName, SecondNode, firstID, b.opts.Coordinator)
	b.must(os.WriteFile(b.Paths.CoordinatorFile(), []byte(coordinator), 0o644))
}

// NodeName is the name of the node of every bed, and SecondNode that of another one in
// the same cluster.
const (
	NodeName   = "node1"
	SecondNode = "node2"
)

// firstID is the first of the users of a bed's processes: clusteraccess, which
// reads the node's key.
const firstID = 64100

// Start starts the supervisor and returns its process.
func (b *Bed) Start() *os.Process {
	b.t.Helper()
	log, err := os.OpenFile(filepath.Join(b.Paths.Root, "supervisor.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	b.must(err)
	defer log.Close()
	cmd := b.inside(filepath.Join(b.bin, "staddle-node"), "supervisor", "--root", b.Paths.Root)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, b.opts.Open
	b.must(cmd.Start())
	go func() { _ = cmd.Wait() }() // reaps it; owned by the test binary
	return cmd.Process
}

// inside is a command in the bed's network namespace. It does not use ip netns
// exec, which would give it a mount namespace of its own.
func (b *Bed) inside(program string, args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"--net=/run/netns/" + b.NS, "--", program}, args...)...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "STADDLE_") }), "HOME="+b.Paths.Root)
	cmd.Env = append(cmd.Env, b.opts.Env...)
	return cmd
}

// Result is what a command of a person gave.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// CLI runs the command line to its end, at most two minutes.
func (b *Bed) CLI(args ...string) Result {
	b.t.Helper()
	return b.CLIWith(nil, args...)
}

// CLIWith is CLI with something on standard input.
func (b *Bed) CLIWith(stdin io.Reader, args ...string) Result {
	b.t.Helper()
	cmd := b.inside(filepath.Join(b.bin, "staddle"), append([]string{"--root", b.Paths.Root}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	b.must(cmd.Start())
	timer := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.t.Fatalf("staddle %s: %v", strings.Join(args, " "), err)
	}
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

// OK runs the command line, fails the test unless it succeeds, and returns its
// standard output.
func (b *Bed) OK(args ...string) string {
	b.t.Helper()
	r := b.CLI(args...)
	if r.Code != 0 {
		b.t.Fatalf("staddle %s: exit code %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// HostSocket is the socket of sandboxhost, for --node-socket.
func (b *Bed) HostSocket() string { return b.Paths.Socket("sandboxhost") }

// Conn is a connection to a process of the bed, as the operator.
func (b *Bed) Conn(process string) *grpc.ClientConn {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.conns[process]; c != nil {
		return c
	}
	c, err := rpc.Dial(b.Paths.Socket(process), rpc.DialConfig{})
	b.must(err)
	b.conns[process] = c
	return c
}

// Host is the sandbox host's API.
func (b *Bed) Host() sandboxhostv1.SandboxHostServiceClient {
	return sandboxhostv1.NewSandboxHostServiceClient(b.Conn("sandboxhost"))
}

// Graph returns the components by name.
func (b *Bed) Graph(ctx context.Context) (map[string]*supervisorv1.Component, error) {
	r, err := supervisorv1.NewSupervisorServiceClient(b.Conn("supervisor")).GetGraph(ctx, &supervisorv1.GetGraphRequest{})
	if err != nil {
		return nil, err
	}
	byName := map[string]*supervisorv1.Component{}
	for _, c := range r.GetComponents() {
		byName[c.GetName()] = c
	}
	return byName, nil
}

// WaitReady waits until every component is ready and, in a machine, the node is.
func (b *Bed) WaitReady() {
	b.t.Helper()
	b.WaitComponents()
	if b.clustered() && !b.disabled("presence") {
		b.WaitNodeReady()
	}
}

// WaitComponents waits until the supervisor says that every component is ready.
func (b *Bed) WaitComponents() {
	b.t.Helper()
	Eventually(b.t, time.Minute, "all components ready", func(ctx context.Context) (bool, string) {
		graph, err := b.Graph(ctx)
		if err != nil {
			return false, err.Error()
		}
		var waiting []string
		for _, c := range graph {
			if c.GetState() != supervisorv1.ComponentState_COMPONENT_STATE_READY {
				waiting = append(waiting, fmt.Sprintf("%s %s: %s", c.GetName(), c.GetState(), c.GetReason()))
			}
		}
		return len(waiting) == 0, strings.Join(waiting, "\n")
	})
}

// WaitNodeReady waits until presence says that the node may be given work.
func (b *Bed) WaitNodeReady() {
	b.t.Helper()
	Eventually(b.t, time.Minute, "node ready", func(ctx context.Context) (bool, string) {
		p, err := b.Presence(ctx)
		if err != nil {
			return false, err.Error()
		}
		return p.GetReady() && p.GetSessionId() != 0, p.String()
	})
}

// Presence returns what the node says of itself.
func (b *Bed) Presence(ctx context.Context) (*presencev1.Presence, error) {
	r, err := presencev1.NewPresenceServiceClient(b.Conn("presence")).GetPresence(ctx, &presencev1.GetPresenceRequest{})
	return r.GetPresence(), err
}

func (b *Bed) disabled(name string) bool {
	for _, d := range b.opts.Disabled {
		if d == name {
			return true
		}
	}
	return false
}

// command runs a tool that must succeed.
func (b *Bed) command(name string, args ...string) string {
	b.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		b.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (b *Bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func copyFile(from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	_, err = io.Copy(dst, src)
	return err
}

// WriteConfigWithout writes the configuration without some components.
func (b *Bed) WriteConfigWithout(components ...string) {
	b.t.Helper()
	was := b.opts.Disabled
	b.opts.Disabled = append(append([]string(nil), was...), components...)
	b.WriteConfig("")
	b.opts.Disabled = was
}

// WriteConfigOnly writes the configuration with one component alone.
func (b *Bed) WriteConfigOnly(component string) {
	b.t.Helper()
	var others []string
	for _, name := range []string{"coordinator", "containerd", "clusteraccess", "storage", "storage-agent", "sandboxhost", "sandbox-agent", "presence"} {
		if name != component {
			others = append(others, name)
		}
	}
	b.WriteConfigWithout(others...)
}

// Reboot does to the machine what a reboot does: every process ends, everything
// that lives in the kernel or ends with the boot is gone, what is durable stays.
// From then on the machine's boot id is the given one.
func (b *Bed) Reboot(supervisor *os.Process, bootID string) {
	b.t.Helper()
	b.KillRunner(supervisor, true)
	cmd := b.inside(filepath.Join(b.bin, "staddle-node"), "teardown", "--root", b.Paths.Root, "--grace", "0s")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("reboot: %v\n%s", err, out)
	}
	b.opts.Env = append(b.opts.Env, boottime.EnvID+"="+bootID)
}
