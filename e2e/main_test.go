// Package e2e tests Staddle from outside: real supervisors, real containerd, real
// etcd, real kernels' namespaces, driven by the command line and the contracts.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	"staddle.internal/e2e/image"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

func TestMain(m *testing.M) {
	code := bed.Main(m)
	workloads.Range(func(dir, _ any) bool {
		if err := os.RemoveAll(dir.(string)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		return true
	})
	os.Exit(code)
}

// workloads are the folders with archives of images of workloads.
var workloads sync.Map

// nodeAlone are the components that a node without a cluster does without.
var nodeAlone = []string{"clusteraccess", "storage", "storage-agent", "sandbox-agent", "presence"}

// Images of workloads beside bed.ProbeImage.
const (
	serviceImage = "staddle.local/service:1"
	plainImage   = "staddle.local/plain:1"
)

// Archives of the images of workloads, each built once.
var (
	archive        = sync.OnceValues(func() (string, error) { return archiveOf(bed.ProbeImage, goProgram("probe")) })
	serviceArchive = sync.OnceValues(func() (string, error) { return archiveOf(serviceImage, goProgram("service")) })
	plainArchive   = sync.OnceValues(func() (string, error) { return archiveOf(plainImage, cProgram("plain")) })
)

// goProgram and cProgram build a folder below cmd as a static program in another folder.
func goProgram(name string) func(dir string) (string, error) {
	return func(dir string) (string, error) {
		out := filepath.Join(dir, name)
		return out, image.Build(filepath.Join("cmd", name), out)
	}
}

func cProgram(name string) func(dir string) (string, error) {
	return func(dir string) (string, error) {
		out := filepath.Join(dir, name)
		text, err := exec.Command("gcc", "-O2", "-Wall", "-static", "-o", out, filepath.Join("cmd", name, name+".c")).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("build %s: %w: %s", name, err, text)
		}
		return out, err
	}
}

// archiveOf makes the archive of an image with one program. It stays until the tests
// have ended.
func archiveOf(name string, build func(dir string) (string, error)) (string, error) {
	dir, err := os.MkdirTemp("", "staddle-workload-")
	if err != nil {
		return "", err
	}
	workloads.Store(dir, true)
	program, err := build(dir)
	if err != nil {
		return "", err
	}
	img, err := image.FromProgram(program)
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "image.tar")
	return out, image.WriteArchive(img, name, out)
}

// alone starts a node without a cluster, with the workload's image.
func alone(t *testing.T, opts bed.Options) (*bed.Bed, *os.Process) {
	t.Helper()
	opts.Composition, opts.Disabled = "node", nodeAlone
	b := bed.New(t, opts)
	supervisor := b.Start()
	b.WaitReady()
	importProbe(t, b)
	return b, supervisor
}

// machine starts a whole one-machine Staddle, with the workload's image.
func machine(t *testing.T, opts bed.Options) (*bed.Bed, *os.Process) {
	t.Helper()
	b := bed.New(t, opts)
	supervisor := b.Start()
	b.WaitReady()
	importProbe(t, b)
	return b, supervisor
}

func importProbe(t *testing.T, b *bed.Bed) {
	t.Helper()
	importFrom(t, b, archive)
}

func importFrom(t *testing.T, b *bed.Bed, archive func() (string, error)) {
	t.Helper()
	tar, err := archive()
	if err != nil {
		t.Fatal(err)
	}
	b.OK("--node-socket", b.HostSocket(), "image", "import", tar)
}

// probe is a container of the workload's image.
func probe(name string, args ...string) *resourcev1.ContainerSpec {
	return &resourcev1.ContainerSpec{Name: name, Image: bed.ProbeImage, Args: args}
}

// spec is a sandbox that should run, with a short grace.
func spec(restart resourcev1.RestartPolicy, containers ...*resourcev1.ContainerSpec) *resourcev1.SandboxSpec {
	return &resourcev1.SandboxSpec{
		Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING, Containers: containers, RestartPolicy: restart,
	}
}

const (
	never  = resourcev1.RestartPolicy_RESTART_POLICY_NEVER
	always = resourcev1.RestartPolicy_RESTART_POLICY_ALWAYS
)

// ensure accepts a local wish and returns its uid.
func ensure(t *testing.T, b *bed.Bed, name string, s *resourcev1.SandboxSpec) string {
	t.Helper()
	uid := string(id.NewSandbox())
	r := &sandboxhostv1.EnsureSandboxRequest{Uid: uid, Name: name, Generation: 1, Manager: "local", Spec: s}
	if _, err := b.Host().EnsureSandbox(t.Context(), r); err != nil {
		t.Fatalf("ensure sandbox %s: %v", name, err)
	}
	return uid
}

// remove ends a local wish, waits until it is torn down, forgets it, and returns
// its last status.
func remove(t *testing.T, b *bed.Bed, uid string) *resourcev1.SandboxStatus {
	t.Helper()
	if _, err := b.Host().RemoveSandbox(t.Context(), &sandboxhostv1.RemoveSandboxRequest{Uid: uid, Manager: "local"}); err != nil {
		t.Fatal(err)
	}
	last := await(t, b, uid, "torn down", func(s *resourcev1.SandboxStatus) bool { return s.GetTornDownAt() != nil })
	if _, err := b.Host().ForgetSandbox(t.Context(), &sandboxhostv1.ForgetSandboxRequest{Uid: uid, Manager: "local"}); err != nil {
		t.Fatal(err)
	}
	return last
}

// await waits until the status of a sandbox is as wanted and returns it.
func await(t *testing.T, b *bed.Bed, uid, what string, ok func(*resourcev1.SandboxStatus) bool) *resourcev1.SandboxStatus {
	t.Helper()
	var last *resourcev1.SandboxStatus
	bed.Eventually(t, time.Minute, "sandbox "+what, func(ctx context.Context) (bool, string) {
		r, err := b.Host().GetSandbox(ctx, &sandboxhostv1.GetSandboxRequest{Uid: uid})
		if err != nil {
			return false, err.Error()
		}
		last = r.GetSandbox().GetStatus()
		return ok(last), last.String()
	})
	return last
}

func running(s *resourcev1.SandboxStatus) bool {
	return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
}

func ended(s *resourcev1.SandboxStatus) bool {
	return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED || s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
}

// pids are the main processes of a sandbox's containers, by name.
func pids(s *resourcev1.SandboxStatus) map[string]uint32 {
	all := map[string]uint32{}
	for _, c := range s.GetContainers() {
		all[c.GetName()] = c.GetPid()
	}
	return all
}

// output reads all that a container wrote to standard output in one attempt, and
// fails the test if there is a gap.
func output(t *testing.T, b *bed.Bed, uid, container string, attempt uint64) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := b.Host().ReadLogs(ctx, &sandboxhostv1.ReadLogsRequest{
		Uid: uid, Container: container, Attempt: attempt, Stream: sandboxhostv1.LogStream_LOG_STREAM_STDOUT,
	})
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatalf("read logs: %v", err)
		}
		if m.GetOffset() != int64(all.Len()) {
			t.Fatalf("a gap in the logs: %d bytes read, the next chunk begins at %d", all.Len(), m.GetOffset())
		}
		all.Write(m.GetData())
	}
}

// counted checks that the output of "probe count" has every number once, in
// order, and returns how many there are.
func counted(t *testing.T, text string) int {
	t.Helper()
	lines := strings.Split(text, "\n")
	for i, line := range lines[:len(lines)-1] {
		if line != strconv.Itoa(i) {
			t.Fatalf("line %d is %q: output was lost or repeated", i, line)
		}
	}
	return len(lines) - 1
}

// settled waits until nothing of any sandbox is left.
func settled(t *testing.T, b *bed.Bed) {
	t.Helper()
	bed.Eventually(t, 30*time.Second, "nothing left of any sandbox", func(context.Context) (bool, string) {
		left := b.SandboxRemains()
		return left.Empty(), sprint(left)
	})
}
