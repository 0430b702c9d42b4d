package command_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a text with the file of that name in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; run with -update and read the difference; first: %s", path, firstDifference(string(want), got))
	}
}

func firstDifference(want, got string) string {
	wants, gots := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(wants), len(gots)) {
		if wants[i] != gots[i] {
			return fmt.Sprintf("line %d is %q, want %q", i+1, gots[i], wants[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(gots), len(wants))
}

// TestHelp is the whole of what a person can read about the commands.
func TestHelp(t *testing.T) {
	var all strings.Builder
	for _, name := range []string{
		"", "up", "down", "shutdown", "status", "doctor", "upgrade", "component", "component ls", "component start", "component stop", "component restart",
		"component logs", "component events", "log-level", "run", "ps", "top", "describe", "explain", "events", "wait", "logs", "exec", "port-forward", "cp", "stop", "start", "rm", "image", "image pull", "image import", "image ls", "image rm",
		"get", "apply", "delete", "disk", "disk create", "disk ls", "disk rm", "node", "node ls",
		"node cordon", "node uncordon", "node drain", "version",
	} {
		got := cli(t, append(strings.Fields(name), "--help")...)
		want(t, got, 0)
		fmt.Fprintf(&all, "$ staddle %s\n%s\n", strings.TrimSpace(name+" --help"), got.out)
	}
	golden(t, "help.golden", all.String())
}

// TestOutput_OfRecords is the form of each kind in each output.
func TestOutput_OfRecords(t *testing.T) {
	c := newCluster(t)
	at := &timestamppb.Timestamp{Seconds: 1} // so long ago that its age is told in days, which are cut out below
	c.change(func(revision uint64) {
		for _, r := range goldenRecords(at) {
			r.Meta.Revision, r.Meta.CreatedAt = revision, at
			c.records[keyOf(r.GetMeta())] = r
		}
	})
	var all bytes.Buffer
	for _, kind := range []string{"sandbox", "service", "disk", "disklease", "node"} {
		for _, format := range []string{"table", "name", "json", "yaml"} {
			got := cli(t, c.flags("get", kind, "-o", format)...)
			want(t, got, 0)
			fmt.Fprintf(&all, "$ staddle get %s -o %s\n%s\n", kind, format, withoutAges(got.out))
		}
	}
	golden(t, "records.golden", all.String())
}

// withoutAges replaces the one thing that differs from day to day.
func withoutAges(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		for _, word := range strings.Fields(line) {
			var days int
			if n, err := fmt.Sscanf(word, "%dd", &days); n == 1 && err == nil && days > 10000 {
				lines[i] = strings.ReplaceAll(lines[i], word, "<age>")
			}
		}
	}
	return strings.Join(lines, "\n")
}

func goldenRecords(at *timestamppb.Timestamp) []*resourcev1.Resource {
	meta := func(kind resourcev1.Kind, name, last string) *resourcev1.Metadata {
		return &resourcev1.Metadata{Kind: kind, Name: name, Uid: "01ARZ3NDEKTSV4RRFFQ69G5FA" + last, Generation: 1}
	}
	exit := &resourcev1.ContainerExit{Container: "main", Attempt: 2, Code: 137, Signal: 9, OomKilled: true, ExitedAt: at}
	return []*resourcev1.Resource{
		{Meta: meta(kindSandbox, "job", "0"), Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{
			Spec: &resourcev1.SandboxSpec{
				Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING, RestartPolicy: resourcev1.RestartPolicy_RESTART_POLICY_NEVER,
				Containers: []*resourcev1.ContainerSpec{{Name: "main", Image: "registry.example/job:1", Args: []string{"a b", "yes", "1"}}},
			},
			Placement: &resourcev1.SandboxPlacement{Node: "node1"},
			Status: &resourcev1.SandboxStatus{ObservedGeneration: 1, Attempt: 2, Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED,
				Message: "container main used more memory than its limit", Exits: []*resourcev1.ContainerExit{exit}},
		}}},
		{Meta: meta(kindSandbox, "unplaced", "1"), Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{
			Spec:      &resourcev1.SandboxSpec{Containers: []*resourcev1.ContainerSpec{{Name: "main", Image: "img"}}},
			Placement: &resourcev1.SandboxPlacement{Reason: "no node is ready"},
		}}},
		{Meta: meta(resourcev1.Kind_KIND_SERVICE, "web", "6"), Kind: &resourcev1.Resource_Service{Service: &resourcev1.Service{
			Spec: &resourcev1.ServiceSpec{
				Selector: map[string]string{"app": "web", "tier": "1"}, Affinity: durationpb.New(10 * time.Minute),
				Ports: []*resourcev1.ServicePort{{Name: "http", Port: 80, TargetPort: 8080, NodePort: 30080}, {Name: "dns", Protocol: "udp", Port: 53}},
			},
			Placement: &resourcev1.ServicePlacement{Address: "10.78.128.7"},
		}}},
		{Meta: meta(kindDisk, "data", "2"), Kind: &resourcev1.Resource_Disk{Disk: &resourcev1.Disk{
			Spec:      &resourcev1.DiskSpec{},
			Placement: &resourcev1.DiskPlacement{Node: "node1", Holder: "01ARZ3NDEKTSV4RRFFQ69G5FA0", Epoch: 1},
			Status:    &resourcev1.DiskStatus{Phase: resourcev1.DiskPhase_DISK_PHASE_ATTACHED},
		}}},
		{Meta: meta(resourcev1.Kind_KIND_DISK_LEASE, "lease", "3"), Kind: &resourcev1.Resource_DiskLease{DiskLease: &resourcev1.DiskLease{
			Spec:   &resourcev1.DiskLeaseSpec{Disk: "data", SandboxUid: "01ARZ3NDEKTSV4RRFFQ69G5FA0", Node: "node1"},
			Status: &resourcev1.DiskLeaseStatus{Phase: resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_BOUND},
		}}},
		{Meta: meta(resourcev1.Kind_KIND_NODE, "node1", "4"), Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{
			Spec:      &resourcev1.NodeSpec{Cordoned: true},
			Placement: &resourcev1.NodePlacement{SessionId: 7},
			Status: &resourcev1.NodeStatus{Version: "v1", Addresses: []string{"192.0.2.1"}, Conditions: []*resourcev1.Condition{
				{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_FALSE, Reason: "storage: recovering 3 volumes"},
			}},
		}}},
		{Meta: meta(resourcev1.Kind_KIND_NODE, "node2", "5"), Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{
			Placement: &resourcev1.NodePlacement{SessionId: 8},
			Status: &resourcev1.NodeStatus{Version: "v1", Cordoned: true, CordonReason: "new disks", Holding: true, Conditions: []*resourcev1.Condition{
				{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_TRUE},
			}},
		}}},
	}
}
