package command_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/version"
	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	storagev1 "staddle.internal/proto/gen/staddle/storage/v1"
)

// patient is a node with one sandbox host and one storage, and what each finds.
type patient struct {
	processv1.UnimplementedProcessServiceServer
	sandboxhostv1.UnimplementedCheckServiceServer
	storagev1.UnimplementedStorageServiceServer
	root string

	mu      sync.Mutex // guards what follows
	fixes   []bool     // what was asked of the two
	hostErr error
	objects []*sandboxhostv1.Difference
	busy    []*sandboxhostv1.UncomparedSandbox
	folders []*storagev1.VolumeDifference
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	root, err := os.MkdirTemp("", "dr") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	p := &patient{root: root}
	paths := config.Paths{Root: root}
	for _, dir := range []string{paths.Etc(), paths.Run(), paths.Var("")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var file strings.Builder
	file.WriteString("version: 1\nname: node1\nsupervisor:\n  composition: node\n  components:\n")
	for _, name := range []string{"clusteraccess", "storage-agent", "sandbox-agent", "presence"} {
		file.WriteString("    - {name: " + name + ", disabled: true}\n")
	}
	if err := os.WriteFile(paths.NodeFile(), []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	runtime, err := net.Listen("unix", filepath.Join(paths.Run(), "containerd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runtime.Close() })
	for _, name := range []string{"sandboxhost", "storage"} {
		serve(t, paths.Socket(name), func(s *grpc.Server) {
			processv1.RegisterProcessServiceServer(s, p)
			if name == "storage" {
				storagev1.RegisterStorageServiceServer(s, p)
				return
			}
			sandboxhostv1.RegisterCheckServiceServer(s, p)
		})
	}
	return p
}

func (p *patient) GetStatus(context.Context, *processv1.GetStatusRequest) (*processv1.GetStatusResponse, error) {
	return &processv1.GetStatusResponse{State: processv1.ProcessState_PROCESS_STATE_READY, Version: version.String()}, nil
}

func (p *patient) CheckHost(_ context.Context, r *sandboxhostv1.CheckHostRequest) (*sandboxhostv1.CheckHostResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fixes = append(p.fixes, r.GetFix())
	if p.hostErr != nil {
		return nil, p.hostErr
	}
	return &sandboxhostv1.CheckHostResponse{Differences: p.objects, Uncompared: p.busy, Sandboxes: 3, Objects: 40, ContainerdVersion: "2.9.9"}, nil
}

func (p *patient) CheckVolumes(_ context.Context, r *storagev1.CheckVolumesRequest) (*storagev1.CheckVolumesResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fixes = append(p.fixes, r.GetFix())
	return &storagev1.CheckVolumesResponse{Differences: p.folders, Volumes: 2}, nil
}

// examined is what "doctor -o json" finds of this node, whatever ails the machine.
func (p *patient) examined(t *testing.T, more ...string) []map[string]any {
	t.Helper()
	r := cli(t, append([]string{"--root", p.root, "doctor", "-o", "json"}, more...)...)
	var all []map[string]any
	if err := json.Unmarshal([]byte(r.out), &all); err != nil {
		t.Fatalf("%v\n%s%s", err, r.out, r.err)
	}
	code := 0
	for _, f := range all {
		if f["state"] == "problem" {
			code = 7
		}
	}
	if r.code != code {
		t.Errorf("exit code %d, want %d\n%s", r.code, code, r.out)
	}
	return slices.DeleteFunc(all, func(f map[string]any) bool { return f["part"] == "machine" })
}

func TestDoctor_HealthyNode(t *testing.T) {
	p := newPatient(t)
	if found := p.examined(t); len(found) > 0 {
		t.Errorf("found %v on a node that lacks nothing", found)
	}
	r := cli(t, "--root", p.root, "doctor")
	for _, part := range []string{"containerd: version 2.9.9", "compared: sandboxes 3, objects 40", "volumes 2", "processes: 2 of 2 answer"} {
		if !strings.Contains(r.err, part) {
			t.Errorf("%q is missing in %q", part, r.err)
		}
	}
	if slices.Contains(p.fixes, true) {
		t.Errorf("asked to mend without --fix: %v", p.fixes)
	}
}

// Each difference is one line that says what, of whom, and what to do; only --fix asks
// for more than a look, and what it could not mend stays a problem.
func TestDoctor_DifferencesAreTold(t *testing.T) {
	p := newPatient(t)
	p.objects = []*sandboxhostv1.Difference{
		{Kind: sandboxhostv1.ObjectKind_OBJECT_KIND_TASK, Name: "task-1", Deviation: sandboxhostv1.Deviation_DEVIATION_LEFT_OVER, SandboxUid: "UID1", Remedy: sandboxhostv1.Remedy_REMEDY_FIX},
		{
			Kind: sandboxhostv1.ObjectKind_OBJECT_KIND_NAMESPACE, Name: "/pin", Deviation: sandboxhostv1.Deviation_DEVIATION_MISSING,
			SandboxUid: "UID2", SandboxName: "web", Remedy: sandboxhostv1.Remedy_REMEDY_RESTART_SANDBOX,
		},
	}
	p.busy = []*sandboxhostv1.UncomparedSandbox{{Uid: "UID3", Name: "busy", Reason: "it is in the middle of a step"}}
	p.folders = []*storagev1.VolumeDifference{
		{Fault: storagev1.VolumeFault_VOLUME_FAULT_NOT_MOUNTED, Path: "/mnt/a", Uid: "DISK1", Message: "sandbox UID2 has it"},
		{Fault: storagev1.VolumeFault_VOLUME_FAULT_MOUNT_LEFT, Path: "/mnt/b", Uid: "DISK2"},
		{Fault: storagev1.VolumeFault_VOLUME_FAULT_FOLDER_LEFT, Path: "/var/c", Uid: "DISK3"},
		{Fault: storagev1.VolumeFault_VOLUME_FAULT_BROKEN, Path: "/var/d", Uid: "DISK4", Message: "volume.json cannot be read"},
	}
	want(t, cli(t, "--root", p.root, "doctor"), 7,
		"task-1 of sandbox UID1 is left over", "staddle doctor --fix", "/pin of sandbox web is missing", "staddle stop web, then staddle start web",
		"busy was not compared: it is in the middle of a step", "volume DISK1 is not mounted at /mnt/a, and sandbox UID2 has it",
		"the mount at /mnt/b is left over", "the folder /var/c is left over", "volume.json cannot be read", "from a backup", "something has to be done")

	p.fixes = nil
	p.objects[0].Fixed, p.objects[1].Error = true, "it cannot be made while the containers run"
	p.folders[0].Fixed, p.folders[1].Error, p.folders[2].Fixed = true, "it is busy", true
	states := map[string]string{}
	for _, f := range p.examined(t, "--fix") {
		name, named := f["name"].(string)
		if named {
			states[name], _ = f["state"].(string)
		}
	}
	for name, state := range map[string]string{"task-1": "fixed", "/pin": "problem", "/mnt/a": "fixed", "/mnt/b": "problem", "/var/c": "fixed", "/var/d": "problem"} {
		if states[name] != state {
			t.Errorf("%s: %q after a fix, want %q", name, states[name], state)
		}
	}
	if len(p.fixes) != 2 || slices.Contains(p.fixes, false) {
		t.Errorf("asked %v, want both to mend, once", p.fixes)
	}
	want(t, cli(t, "--root", p.root, "doctor", "--fix"), 7, "not mended: it is busy")
}

// Who cannot be asked is a finding, and the others are asked all the same.
func TestDoctor_WhoCannotBeAskedIsAFinding(t *testing.T) {
	p := newPatient(t)
	p.hostErr = fault.New(fault.Unavailable, "sandboxes are not adopted yet")
	p.folders = []*storagev1.VolumeDifference{{Fault: storagev1.VolumeFault_VOLUME_FAULT_MOUNT_LEFT, Path: "/mnt/b"}}
	want(t, cli(t, "--root", p.root, "doctor", "--fix"), 7, "could not be compared with its notes", "not adopted yet", "the mount at /mnt/b is left over")
}
