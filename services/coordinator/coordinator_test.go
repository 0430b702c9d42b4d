package coordinator_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"
)

const (
	kindNode    = resourcev1.Kind_KIND_NODE
	kindSandbox = resourcev1.Kind_KIND_SANDBOX
	kindDisk    = resourcev1.Kind_KIND_DISK
	kindLease   = resourcev1.Kind_KIND_DISK_LEASE
)

func sandbox(name string, disks ...string) *resourcev1.Resource {
	c := &resourcev1.ContainerSpec{Name: "main", Image: "example.test/app:1"}
	for _, d := range disks {
		c.Disks = append(c.Disks, &resourcev1.DiskMount{Disk: d, Path: "/" + d})
	}
	return &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: kindSandbox, Name: name},
		Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{Spec: &resourcev1.SandboxSpec{
			Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING, Containers: []*resourcev1.ContainerSpec{c},
		}}},
	}
}

func disk(name string) *resourcev1.Resource {
	return &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: kindDisk, Name: name},
		Kind: &resourcev1.Resource_Disk{Disk: &resourcev1.Disk{Spec: &resourcev1.DiskSpec{}}},
	}
}

// join opens a session for a node and makes it ready for work.
func join(t *testing.T, c client, name string) *coordinatorv1.RenewSessionResponse {
	t.Helper()
	resp, err := c.RenewSession(t.Context(), &coordinatorv1.RenewSessionRequest{Ttl: durationpb.New(5 * time.Second), Instance: c.machine})
	if err != nil {
		t.Fatal(err)
	}
	report(t, c, &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: kindNode, Name: name, Uid: resp.GetNodeUid()},
		Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{Status: &resourcev1.NodeStatus{
			Seq:        1,
			Conditions: []*resourcev1.Condition{{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_TRUE}},
			Capacity:   &resourcev1.NodeCapacity{MemoryBytes: 1 << 30, Sandboxes: 500},
		}}},
	})
	return resp
}

func report(t *testing.T, c client, r *resourcev1.Resource) {
	t.Helper()
	if _, err := c.UpdateResourceStatus(t.Context(), &coordinatorv1.UpdateResourceStatusRequest{Instance: c.machine, Resource: r}); err != nil {
		t.Fatal(err)
	}
}

// sandboxStatus is a report about a sandbox.
func sandboxStatus(r *resourcev1.Resource, seq uint64, tornDown bool) *resourcev1.Resource {
	s := &resourcev1.SandboxStatus{Seq: seq, ObservedGeneration: 1, Attempt: 1, Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING}
	if tornDown {
		s.TornDownAt = timestamppb.Now()
	}
	return &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: kindSandbox, Name: r.GetMeta().GetName(), Uid: r.GetMeta().GetUid()},
		Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{Status: s}},
	}
}

func placed(t *testing.T, c client, name string) *resourcev1.Resource {
	t.Helper()
	return eventually(t, name+" is placed", func() *resourcev1.Resource { return c.get(t, kindSandbox, name) },
		func(r *resourcev1.Resource) bool { return r.GetSandbox().GetPlacement().GetNode() != "" })
}

func gone(t *testing.T, c client, kind resourcev1.Kind, name string) {
	t.Helper()
	eventually(t, name+" is gone", func() error { return c.exists(t, kind, name) }, func(err error) bool { return errors.Is(err, fault.NotFound) })
}

func remove(t *testing.T, c client, kind resourcev1.Kind, name string) *resourcev1.Resource {
	t.Helper()
	resp, err := c.DeleteResource(t.Context(), &coordinatorv1.DeleteResourceRequest{Kind: kind, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetResource()
}

func TestCoordinator_LifeOfASandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin, n1 := r.operator(), r.node1()
	made := admin.create(t, sandbox("web"))
	waiting := eventually(t, "the reason is stated", func() *resourcev1.Resource { return admin.get(t, kindSandbox, "web") },
		func(r *resourcev1.Resource) bool { return r.GetSandbox().GetPlacement().GetReason() != "" })
	if got := waiting.GetSandbox().GetPlacement().GetReason(); got != "there is no node" {
		t.Errorf("got reason %q, want that there is no node", got)
	}
	joined := join(t, n1, "n1")
	web := placed(t, admin, "web")
	if p := web.GetSandbox().GetPlacement(); p.GetNodeUid() != joined.GetNodeUid() || p.GetReason() != "" || web.GetMeta().GetGeneration() != 1 {
		t.Errorf("got %v, want placed on %s without reason, in generation 1", web, joined.GetNodeUid())
	}
	report(t, n1, sandboxStatus(made, 1, false))
	if marked := remove(t, admin, kindSandbox, "web"); marked.GetMeta().GetDeletingAt() == nil {
		t.Error("the deleted record is not marked")
	}
	if err := admin.exists(t, kindSandbox, "web"); err != nil {
		t.Errorf("before the node is done: got %v, want the record", err)
	}
	report(t, n1, sandboxStatus(made, 2, true))
	gone(t, admin, kindSandbox, "web")
	_, err := n1.UpdateResourceStatus(t.Context(), &coordinatorv1.UpdateResourceStatusRequest{Instance: n1.machine, Resource: sandboxStatus(made, 3, true)})
	if !errors.Is(err, fault.NotFound) {
		t.Errorf("status of a gone record: got %v, want NotFound", err)
	}
}

// DESIGN §4: who writes what, and what refuses to be written twice.
func TestCoordinator_StatusOnlyGrows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin, n1 := r.operator(), r.node1()
	join(t, n1, "n1")
	made := admin.create(t, sandbox("web"))
	placed(t, admin, "web")
	report(t, n1, sandboxStatus(made, 5, false))
	before := admin.get(t, kindSandbox, "web")
	report(t, n1, sandboxStatus(made, 5, false))
	if after := admin.get(t, kindSandbox, "web"); !proto.Equal(before, after) {
		t.Errorf("an equal seq changed %v to %v", before, after)
	}
	_, err := n1.UpdateResourceStatus(t.Context(), &coordinatorv1.UpdateResourceStatusRequest{Instance: n1.machine, Resource: sandboxStatus(made, 4, false)})
	if !errors.Is(err, fault.Conflict) || fault.Reason(err) != "STALE_STATUS" {
		t.Errorf("a lower seq: got %v, want Conflict with reason STALE_STATUS", err)
	}
	if n := admin.get(t, kindNode, "n1").GetNode(); n.GetPlacement().GetRegisteredAt() == nil {
		t.Error("the first READY did not register the node")
	}
}

// UDS-6: the kinds of errors are the same on this side of the connection.
func TestCoordinator_ErrorKindsCrossTheWire(t *testing.T) {
	t.Parallel()
	admin := newRig(t).operator()
	admin.create(t, disk("d1"))
	stale := admin.get(t, kindDisk, "d1")
	change := proto.CloneOf(stale)
	change.Meta.Labels = map[string]string{"a": "1"}
	if _, err := admin.UpdateResource(t.Context(), &coordinatorv1.UpdateResourceRequest{Resource: change}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.UpdateResource(t.Context(), &coordinatorv1.UpdateResourceRequest{Resource: change}); err != nil {
		t.Errorf("the same update again: got %v, want OK", err)
	}
	stale.Meta.Labels = map[string]string{"a": "2"}
	other := sandbox("x")
	other.Meta.Kind = kindDisk
	withStatus := sandbox("x")
	withStatus.GetSandbox().Status = &resourcev1.SandboxStatus{Seq: 1}
	badName := disk("Not_A_Name")
	lease := &resourcev1.Resource{Meta: &resourcev1.Metadata{Kind: kindLease, Name: "l"}, Kind: &resourcev1.Resource_DiskLease{DiskLease: &resourcev1.DiskLease{}}}
	unknown := disk("u")
	unknown.GetDisk().GetSpec().ProtoReflect().SetUnknown([]byte{0xf8, 0x3f, 0x01})
	create := func(r *resourcev1.Resource) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := admin.CreateResource(ctx, &coordinatorv1.CreateResourceRequest{Resource: r})
			return err
		}
	}
	for _, c := range []struct {
		name   string
		call   func(context.Context) error
		kind   fault.Kind
		reason string
	}{
		{"name taken", create(disk("d1")), fault.Exists, ""},
		{"kind is not the content's", create(other), fault.Invalid, ""},
		{"status in a new record", create(withStatus), fault.Invalid, ""},
		{"no DNS label", create(badName), fault.Invalid, ""},
		{"field of a newer contract", create(unknown), fault.Invalid, ""},
		{"lease by an operator", create(lease), fault.Denied, ""},
		{"overtaken update", func(ctx context.Context) error {
			_, err := admin.UpdateResource(ctx, &coordinatorv1.UpdateResourceRequest{Resource: stale})
			return err
		}, fault.Conflict, "REVISION"},
		{"delete of another revision", func(ctx context.Context) error {
			_, err := admin.DeleteResource(ctx, &coordinatorv1.DeleteResourceRequest{Kind: kindDisk, Name: "d1", Revision: stale.GetMeta().GetRevision()})
			return err
		}, fault.Conflict, "REVISION"},
		{"nobody there", func(ctx context.Context) error {
			_, err := admin.GetResource(ctx, &coordinatorv1.GetResourceRequest{Kind: kindDisk, Which: &coordinatorv1.GetResourceRequest_Name{Name: "none"}})
			return err
		}, fault.NotFound, ""},
		{"page token from nowhere", func(ctx context.Context) error {
			_, err := admin.ListResources(ctx, &coordinatorv1.ListResourcesRequest{Kind: kindDisk, PageToken: "zzz"})
			return err
		}, fault.Invalid, ""},
		{"status by an operator", func(ctx context.Context) error {
			_, err := admin.UpdateResourceStatus(ctx, &coordinatorv1.UpdateResourceStatusRequest{Resource: sandboxStatus(sandbox("x"), 1, false)})
			return err
		}, fault.Denied, ""},
		{"session of an operator", func(ctx context.Context) error {
			_, err := admin.RenewSession(ctx, &coordinatorv1.RenewSessionRequest{Ttl: durationpb.New(5 * time.Second), Instance: "i"})
			return err
		}, fault.Denied, ""},
	} {
		err := c.call(t.Context())
		if !errors.Is(err, c.kind) || fault.Reason(err) != c.reason {
			t.Errorf("%s: got %v (%v, %q), want %v, %q", c.name, err, fault.KindOf(err), fault.Reason(err), c.kind, c.reason)
		}
	}
}

// What is taken has room for what coordinator and node have to say about it.
func TestCoordinator_TheLargestRecordLives(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin, node := r.operator(), r.node1()
	// The largest that is taken: what is larger by one byte is refused.
	low, high := 0, 128<<10
	for high-low > 1 {
		n := (low + high) / 2
		_, err := admin.CreateResource(t.Context(), &coordinatorv1.CreateResourceRequest{Resource: largeSandbox(fmt.Sprintf("try-%06d", n), n)})
		switch {
		case err == nil:
			low = n
		case errors.Is(err, fault.Invalid):
			high = n
		default:
			t.Fatal(err)
		}
	}
	large := fmt.Sprintf("try-%06d", low)
	join(t, node, "n1")
	admin.create(t, sandbox("next"))
	placed(t, admin, "next")
	status := sandboxStatus(placed(t, admin, large), 1, false)
	status.GetSandbox().GetStatus().Message = strings.Repeat("m", 4096)
	report(t, node, status)
}

// largeSandbox is a sandbox with 128 KiB and n bytes more in its environment.
func largeSandbox(name string, n int) *resourcev1.Resource {
	r := sandbox(name)
	r.GetSandbox().GetSpec().GetContainers()[0].Env = []*resourcev1.EnvironmentVariable{
		{Name: "A", Value: strings.Repeat("a", 128<<10)}, {Name: "B", Value: strings.Repeat("b", n)},
	}
	return r
}

// ETC-10: what is set to nothing is nothing afterwards, also after a restart.
func TestCoordinator_ZeroValuesStick(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin := r.operator()
	full := sandbox("web")
	full.Meta.Labels = map[string]string{"a": "1"}
	full.GetSandbox().Spec = &resourcev1.SandboxSpec{
		Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING, Network: resourcev1.NetworkMode_NETWORK_MODE_HOST,
		RestartPolicy: resourcev1.RestartPolicy_RESTART_POLICY_NEVER, TerminationGracePeriod: durationpb.New(3 * time.Second), Hostname: "h",
		Disconnect:   &resourcev1.DisconnectPolicy{StopAfter: durationpb.New(time.Minute)},
		NodeSelector: map[string]string{"zone": "a"},
		Containers: []*resourcev1.ContainerSpec{{
			Name: "main", Image: "i", Command: []string{"c"}, Args: []string{"a"}, WorkingDir: "/w", User: "1",
			Env:    []*resourcev1.EnvironmentVariable{{Name: "A", Value: "1"}},
			Limits: &resourcev1.ResourceLimits{MemoryLimitBytes: proto.Int64(1 << 28), CpuLimitMillicores: proto.Int64(100), PidsLimit: proto.Int64(10)},
		}},
	}
	admin.create(t, full)
	bare := admin.get(t, kindSandbox, "web")
	if !proto.Equal(bare.GetSandbox().GetSpec(), full.GetSandbox().GetSpec()) {
		t.Errorf("got %v, want %v", bare.GetSandbox().GetSpec(), full.GetSandbox().GetSpec())
	}
	want := &resourcev1.SandboxSpec{
		Desired: resourcev1.DesiredState_DESIRED_STATE_STOPPED, TerminationGracePeriod: durationpb.New(0),
		Containers: []*resourcev1.ContainerSpec{{Name: "main", Image: "i", Env: []*resourcev1.EnvironmentVariable{{Name: "A"}}}},
	}
	bare = eventually(t, "the update is taken", func() *resourcev1.Resource {
		next := admin.get(t, kindSandbox, "web")
		next.Meta.Labels = nil
		next.GetSandbox().Spec = proto.CloneOf(want)
		resp, err := admin.UpdateResource(t.Context(), &coordinatorv1.UpdateResourceRequest{Resource: next})
		if err != nil && fault.Reason(err) != "REVISION" {
			t.Fatal(err)
		}
		return resp.GetResource()
	}, func(r *resourcev1.Resource) bool { return r != nil })
	r.kill()
	r.start()
	got := r.operator().get(t, kindSandbox, "web")
	if !proto.Equal(got.GetSandbox().GetSpec(), want) || len(got.GetMeta().GetLabels()) != 0 || got.GetMeta().GetGeneration() != 2 {
		t.Errorf("got %v, want spec %v, no labels and generation 2", got, want)
	}
	if got.GetMeta().GetUid() != bare.GetMeta().GetUid() {
		t.Errorf("got uid %s, want %s", got.GetMeta().GetUid(), bare.GetMeta().GetUid())
	}
}

func TestCoordinator_NodesSeeOnlyTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin, n1, n2 := r.operator(), r.node1(), r.node2()
	join(t, n1, "n1")
	web := admin.create(t, sandbox("web"))
	placed(t, admin, "web")
	join(t, n2, "n2")
	for _, kind := range []resourcev1.Kind{kindSandbox, kindNode} {
		resp, err := n2.ListResources(t.Context(), &coordinatorv1.ListResourcesRequest{Kind: kind})
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range resp.GetResources() {
			if got.GetMeta().GetName() != "n2" {
				t.Errorf("n2 is shown %v", got.GetMeta())
			}
		}
	}
	if err := n2.exists(t, kindSandbox, "web"); !errors.Is(err, fault.Denied) {
		t.Errorf("get by another node: got %v, want Denied", err)
	}
	if _, err := n2.UpdateResourceStatus(t.Context(), &coordinatorv1.UpdateResourceStatusRequest{Instance: n2.machine, Resource: sandboxStatus(web, 1, false)}); !errors.Is(err, fault.Denied) {
		t.Errorf("status by another node: got %v, want Denied", err)
	}
	if _, err := n1.DeleteResource(t.Context(), &coordinatorv1.DeleteResourceRequest{Kind: kindSandbox, Name: "web"}); !errors.Is(err, fault.Denied) {
		t.Errorf("delete by a node: got %v, want Denied", err)
	}
}

func TestCoordinator_DiskHasOneHolder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	admin, n1 := r.operator(), r.node1()
	join(t, n1, "n1")
	admin.create(t, disk("d1"))
	first := admin.create(t, sandbox("first", "d1"))
	placed(t, admin, "first")
	held := admin.get(t, kindDisk, "d1").GetDisk().GetPlacement()
	if held.GetHolder() != first.GetMeta().GetUid() || held.GetEpoch() != 1 || held.GetNode() != "n1" {
		t.Fatalf("got %v, want held by %s in epoch 1 on n1", held, first.GetMeta().GetUid())
	}
	second := admin.create(t, sandbox("second", "d1"))
	eventually(t, "the second waits", func() string {
		return admin.get(t, kindSandbox, "second").GetSandbox().GetPlacement().GetReason()
	}, func(reason string) bool { return strings.Contains(reason, "is held by sandbox") })
	if _, err := admin.DeleteResource(t.Context(), &coordinatorv1.DeleteResourceRequest{Kind: kindDisk, Name: "d1"}); fault.Reason(err) != "IN_USE" {
		t.Errorf("delete of a held disk: got %v, want reason IN_USE", err)
	}

	remove(t, admin, kindSandbox, "first")
	report(t, n1, sandboxStatus(first, 1, true))
	gone(t, admin, kindSandbox, "first")
	lease := strings.ToLower(held.GetLeaseUid())
	revoked := eventually(t, "the lease is revoked", func() *resourcev1.Resource { return n1.get(t, kindLease, lease) },
		func(r *resourcev1.Resource) bool { return r.GetMeta().GetDeletingAt() != nil })
	if h := admin.get(t, kindDisk, "d1").GetDisk().GetPlacement().GetHolder(); h != first.GetMeta().GetUid() {
		t.Errorf("before the node gave it back: got holder %q, want %s", h, first.GetMeta().GetUid())
	}
	report(t, n1, &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: kindLease, Name: lease, Uid: revoked.GetMeta().GetUid()},
		Kind: &resourcev1.Resource_DiskLease{DiskLease: &resourcev1.DiskLease{Status: &resourcev1.DiskLeaseStatus{
			Seq: 1, Phase: resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_RELEASED,
		}}},
	})
	placed(t, admin, "second")
	if p := admin.get(t, kindDisk, "d1").GetDisk().GetPlacement(); p.GetHolder() != second.GetMeta().GetUid() || p.GetEpoch() != 2 {
		t.Errorf("got %v, want held by %s in epoch 2", p, second.GetMeta().GetUid())
	}
	gone(t, admin, kindLease, lease)
}

// ETC-5: pages are one view, whatever is deleted meanwhile.
func TestCoordinator_PagesAreOneView(t *testing.T) {
	t.Parallel()
	admin := newRig(t).operator()
	for i := range 250 {
		r := disk(fmt.Sprintf("d%03d", i))
		r.Meta.Labels = map[string]string{"parity": fmt.Sprint(i % 2)}
		admin.create(t, r)
	}
	count, token, revision := 0, "", uint64(0)
	for {
		resp, err := admin.ListResources(t.Context(), &coordinatorv1.ListResourcesRequest{Kind: kindDisk, PageSize: 30, PageToken: token, LabelSelector: "parity=1"})
		if err != nil {
			t.Fatal(err)
		}
		if revision != 0 && resp.GetRevision() != revision {
			t.Errorf("got a page as of %d, want %d", resp.GetRevision(), revision)
		}
		revision, token = resp.GetRevision(), resp.GetNextPageToken()
		count += len(resp.GetResources())
		if token == "" {
			break
		}
		remove(t, admin, kindDisk, fmt.Sprintf("d%03d", 249-count))
	}
	if count != 125 {
		t.Errorf("got %d records, want 125", count)
	}
}

func TestCoordinator_RefusesStrangers(t *testing.T) {
	t.Parallel()
	r, other := newRig(t), newRig(t)
	anonymous := r.tls("")
	foreign := r.tls("")
	foreign.Certificates = other.tls("operator").Certificates
	for name, cfg := range map[string]*tls.Config{"no certificate": anonymous, "certificate of another CA": foreign} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := r.dial(cfg).ListResources(ctx, &coordinatorv1.ListResourcesRequest{Kind: kindNode})
		cancel()
		if err == nil {
			t.Errorf("%s: got an answer, want to be refused", name)
		}
	}
}

func TestCoordinator_AnswersOnItsSocket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	conn, err := rpc.Dial(filepath.Join(r.root, "run", "coordinator.sock"), rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "it is ready", func() processv1.ProcessState {
		resp, err := processv1.NewProcessServiceClient(conn).GetStatus(t.Context(), &processv1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetState()
	}, func(s processv1.ProcessState) bool { return s == processv1.ProcessState_PROCESS_STATE_READY })
	if _, err := coordinatorv1.NewResourceServiceClient(conn).ListResources(t.Context(), &coordinatorv1.ListResourcesRequest{Kind: kindNode}); err == nil {
		t.Error("records are served on the socket, want them over TLS only")
	}
	if err := r.stop(); err != nil {
		t.Errorf("stop: got %v, want exit code 0", err)
	}
}

func TestCoordinator_NamesABrokenKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.kill()
	key := filepath.Join(r.root, "etc", "pki", "coordinator.key")
	if err := os.Truncate(key, 20); err != nil {
		t.Fatal(err)
	}
	r.log = &output{}
	r.cmd = nil
	code, text := r.runToEnd()
	if code != 1 || !strings.Contains(text, key) {
		t.Errorf("got exit code %d and %s, want 1 and the file named", code, text)
	}
}
