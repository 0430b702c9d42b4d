package agent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	storagev1 "staddle.internal/proto/gen/staddle/storage/v1"
	"staddle.internal/services/storage/internal/api"
	"staddle.internal/services/storage/internal/volume"
)

func TestDecideLease(t *testing.T) {
	const (
		none     = sandboxhostv1.GrantState_GRANT_STATE_UNSPECIFIED
		held     = sandboxhostv1.GrantState_GRANT_STATE_HELD
		revoked  = sandboxhostv1.GrantState_GRANT_STATE_REVOKED
		returned = sandboxhostv1.GrantState_GRANT_STATE_RETURNED
		idle     = sandboxhostv1.GrantState_GRANT_STATE_IDLE
		parked   = sandboxhostv1.GrantState_GRANT_STATE_PARKED
		bound    = resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_BOUND
		released = resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_RELEASED
	)
	for _, c := range []struct {
		name     string
		deleting bool
		phase    resourcev1.DiskLeasePhase
		grant    sandboxhostv1.GrantState
		user     User
		want     Move
	}{
		{"a new lease is bound", false, 0, none, Unknown, Bind},
		{"a bound lease is bound again after a loss", false, bound, none, Unknown, Bind},
		{"a bound lease that is granted stays so", false, bound, held, Unknown, Bind},
		{"a lease whose sandbox is gone waits for its end", false, bound, returned, Unknown, Rest},
		{"an idle disk is parked", false, bound, idle, Unknown, Park},
		{"a parked disk rests", false, bound, parked, Unknown, Rest},
		{"an ended lease of an idle disk is asked back", true, bound, idle, Unknown, Revoke},
		{"an ended lease of a parked disk is asked back", true, bound, parked, Unknown, Revoke},
		{"an ended lease in use is asked back", true, bound, held, Unknown, Revoke},
		{"an ended lease stays held until the host gives it back", true, bound, revoked, Unknown, Rest},
		{"a returned lease is released", true, bound, returned, Unknown, Release},
		{"a lost grant proves nothing", true, bound, none, Unknown, Rest},
		{"a lost grant of a sandbox that is here proves nothing", true, bound, none, Present, Rest},
		{"a sandbox that is gone uses nothing", true, bound, none, Gone, Release},
		{"a released lease rests", true, released, none, Gone, Rest},
		{"a released lease is never bound again", false, released, none, Gone, Rest},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &resourcev1.Resource{Meta: &resourcev1.Metadata{}, Kind: &resourcev1.Resource_DiskLease{DiskLease: &resourcev1.DiskLease{
				Status: &resourcev1.DiskLeaseStatus{Phase: c.phase},
			}}}
			if c.deleting {
				r.Meta.DeletingAt = timestamppb.Now()
			}
			var grant *sandboxhostv1.Grant
			if c.grant != none {
				grant = &sandboxhostv1.Grant{State: c.grant}
			}
			if got := DecideLease(r, grant, c.user); got != c.want {
				t.Fatalf("got %v, want %v", got, c.want)
			}
		})
	}
}

// noMounts stands for the kernel's table: this test is about the loop.
type noMounts struct {
	mu sync.Mutex
	at map[string]bool
}

func (m *noMounts) Bind(_, to string) error { return m.set(to, true) }
func (m *noMounts) Unbind(p string) error   { return m.set(p, false) }
func (m *noMounts) set(p string, on bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at[p] = on
	return nil
}
func (m *noMounts) Below(p string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at[p] {
		return []string{p}, nil
	}
	return nil, nil
}

// localStorage calls the real server without a wire.
type localStorage struct{ s *api.Server }

func (l localStorage) EnsureVolume(ctx context.Context, r *storagev1.EnsureVolumeRequest, _ ...grpc.CallOption) (*storagev1.EnsureVolumeResponse, error) {
	return l.s.EnsureVolume(ctx, r)
}
func (l localStorage) AttachVolume(ctx context.Context, r *storagev1.AttachVolumeRequest, _ ...grpc.CallOption) (*storagev1.AttachVolumeResponse, error) {
	return l.s.AttachVolume(ctx, r)
}
func (l localStorage) DetachVolume(ctx context.Context, r *storagev1.DetachVolumeRequest, _ ...grpc.CallOption) (*storagev1.DetachVolumeResponse, error) {
	return l.s.DetachVolume(ctx, r)
}
func (l localStorage) RemoveVolume(ctx context.Context, r *storagev1.RemoveVolumeRequest, _ ...grpc.CallOption) (*storagev1.RemoveVolumeResponse, error) {
	return l.s.RemoveVolume(ctx, r)
}
func (l localStorage) ListVolumes(ctx context.Context, r *storagev1.ListVolumesRequest, _ ...grpc.CallOption) (*storagev1.ListVolumesResponse, error) {
	return l.s.ListVolumes(ctx, r)
}
func (l localStorage) CheckVolumes(ctx context.Context, r *storagev1.CheckVolumesRequest, _ ...grpc.CallOption) (*storagev1.CheckVolumesResponse, error) {
	return l.s.CheckVolumes(ctx, r)
}

// stream delivers messages to a watch until its context ends.
type stream[T any] struct {
	grpc.ClientStream
	ctx context.Context //nolint:containedctx // a stream is its context
	ch  chan *T
}

func (s stream[T]) Recv() (*T, error) {
	select {
	case m := <-s.ch:
		return m, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// cluster is a mirror that takes status reports into its records.
type cluster struct {
	clusteraccessv1.ClusterAccessServiceClient
	ch      chan *clusteraccessv1.WatchResourcesResponse
	mu      sync.Mutex
	records map[string]*resourcev1.Resource
}

func (c *cluster) WatchResources(ctx context.Context, _ *clusteraccessv1.WatchResourcesRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[clusteraccessv1.WatchResourcesResponse], error) {
	return stream[clusteraccessv1.WatchResourcesResponse]{ctx: ctx, ch: c.ch}, nil
}

func (c *cluster) put(r *resourcev1.Resource) {
	c.mu.Lock()
	c.records[r.GetMeta().GetUid()] = r
	c.mu.Unlock()
	c.ch <- &clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Changed{Changed: r}}
}

func (c *cluster) live(live bool) {
	c.ch <- &clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Mirror{Mirror: &clusteraccessv1.MirrorState{Live: live}}}
}

func (c *cluster) ReportStatus(_ context.Context, r *clusteraccessv1.ReportStatusRequest, _ ...grpc.CallOption) (*clusteraccessv1.ReportStatusResponse, error) {
	for _, status := range r.GetResources() {
		c.mu.Lock()
		was := c.records[status.GetMeta().GetUid()]
		c.mu.Unlock()
		if status.GetDisk().GetSpec() != nil || status.GetDiskLease().GetSpec() != nil {
			return nil, fault.New(fault.Invalid, "a report says what the status is, and not what is asked for")
		}
		now := &resourcev1.Resource{Meta: was.GetMeta(), Kind: status.GetKind()}
		if d := now.GetDisk(); d != nil {
			d.Spec, d.Placement = was.GetDisk().GetSpec(), was.GetDisk().GetPlacement()
		}
		if l := now.GetDiskLease(); l != nil {
			l.Spec = was.GetDiskLease().GetSpec()
		}
		c.put(now)
	}
	return &clusteraccessv1.ReportStatusResponse{}, nil
}

func (c *cluster) phase(uid string) resourcev1.DiskLeasePhase {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.records[uid].GetDiskLease().GetStatus().GetPhase()
}

// host is a sandbox host with grants that a test gives back by hand.
type host struct {
	sandboxhostv1.GrantServiceClient
	sandboxhostv1.SandboxHostServiceClient
	ch    chan *sandboxhostv1.WatchGrantsResponse
	mu    sync.Mutex
	grant *sandboxhostv1.Grant
	known bool
}

func (h *host) WatchGrants(ctx context.Context, _ *sandboxhostv1.WatchGrantsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[sandboxhostv1.WatchGrantsResponse], error) {
	return stream[sandboxhostv1.WatchGrantsResponse]{ctx: ctx, ch: h.ch}, nil
}

func (h *host) set(g *sandboxhostv1.Grant) {
	h.mu.Lock()
	h.grant = g
	h.mu.Unlock()
	h.ch <- &sandboxhostv1.WatchGrantsResponse{Event: &sandboxhostv1.WatchGrantsResponse_Changed{Changed: g}}
}

func (h *host) state() sandboxhostv1.GrantState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.grant.GetState()
}

func (h *host) GrantDisk(_ context.Context, r *sandboxhostv1.GrantDiskRequest, _ ...grpc.CallOption) (*sandboxhostv1.GrantDiskResponse, error) {
	if h.state() == sandboxhostv1.GrantState_GRANT_STATE_UNSPECIFIED {
		h.set(&sandboxhostv1.Grant{DiskUid: r.GetDiskUid(), Disk: r.GetDisk(), SandboxUid: r.GetSandboxUid(), Epoch: r.GetEpoch(), Path: r.GetPath(), State: sandboxhostv1.GrantState_GRANT_STATE_HELD})
	}
	return &sandboxhostv1.GrantDiskResponse{}, nil
}

func (h *host) move(to sandboxhostv1.GrantState) {
	h.mu.Lock()
	g := h.grant
	h.mu.Unlock()
	h.set(&sandboxhostv1.Grant{DiskUid: g.GetDiskUid(), Disk: g.GetDisk(), SandboxUid: g.GetSandboxUid(), Epoch: g.GetEpoch(), Path: g.GetPath(), State: to})
}

func (h *host) RevokeDisk(context.Context, *sandboxhostv1.RevokeDiskRequest, ...grpc.CallOption) (*sandboxhostv1.RevokeDiskResponse, error) {
	h.move(sandboxhostv1.GrantState_GRANT_STATE_REVOKED)
	return &sandboxhostv1.RevokeDiskResponse{}, nil
}

func (h *host) ParkDisk(context.Context, *sandboxhostv1.ParkDiskRequest, ...grpc.CallOption) (*sandboxhostv1.ParkDiskResponse, error) {
	h.move(sandboxhostv1.GrantState_GRANT_STATE_PARKED)
	return &sandboxhostv1.ParkDiskResponse{}, nil
}

func (h *host) ForgetGrant(context.Context, *sandboxhostv1.ForgetGrantRequest, ...grpc.CallOption) (*sandboxhostv1.ForgetGrantResponse, error) {
	h.mu.Lock()
	g := h.grant
	h.grant = nil
	h.mu.Unlock()
	h.ch <- &sandboxhostv1.WatchGrantsResponse{Event: &sandboxhostv1.WatchGrantsResponse_Forgotten{Forgotten: g}}
	return &sandboxhostv1.ForgetGrantResponse{}, nil
}

func (h *host) GetSandbox(context.Context, *sandboxhostv1.GetSandboxRequest, ...grpc.CallOption) (*sandboxhostv1.GetSandboxResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.known {
		return nil, fault.New(fault.NotFound, "no such sandbox")
	}
	return &sandboxhostv1.GetSandboxResponse{Sandbox: &sandboxhostv1.SandboxState{}}, nil
}

const (
	diskUID    = "01K00000000000000000000000"
	leaseUID   = "01K0000000000000000000000E"
	sandboxUID = "01K0000000000000000000000A"
)

func lease(deleting bool, status *resourcev1.DiskLeaseStatus) *resourcev1.Resource {
	r := &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_DISK_LEASE, Name: "lease", Uid: leaseUID},
		Kind: &resourcev1.Resource_DiskLease{DiskLease: &resourcev1.DiskLease{
			Spec:   &resourcev1.DiskLeaseSpec{DiskUid: diskUID, Disk: "data", SandboxUid: sandboxUID, Node: "node1", Epoch: 1},
			Status: status,
		}},
	}
	if deleting {
		r.Meta.DeletingAt = timestamppb.Now()
	}
	return r
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within 10 s: %s", what)
		case <-tick.C:
		}
	}
}

// world is an agent between a real store and fakes.
type world struct {
	t       *testing.T
	store   *volume.Store
	cluster *cluster
	host    *host
}

// start runs an agent until the test ends.
func start(t *testing.T) *world {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	mounts := &noMounts{at: map[string]bool{}}
	store := volume.New(filepath.Join(dir, "volumes"), filepath.Join(dir, "attached"), mounts, log)
	if err := store.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := &cluster{ch: make(chan *clusteraccessv1.WatchResourcesResponse, 100), records: map[string]*resourcev1.Resource{}}
	h := &host{ch: make(chan *sandboxhostv1.WatchGrantsResponse, 100), known: true}
	a := New("node1", Deps{Log: log, Cluster: c, Storage: localStorage{api.New(store)}, Grants: h, Hosts: h})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx, func() {}) }() // ends with cancel; the cleanup waits
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("run ended with %v", err)
		}
	})
	return &world{t, store, c, h}
}

func (w *world) attached() string {
	w.t.Helper()
	volumes, err := w.store.List()
	if err != nil {
		w.t.Fatal(err)
	}
	if len(volumes) == 0 {
		return "no volume"
	}
	return string(volumes[0].Holder)
}

func (h *host) synced() {
	h.ch <- &sandboxhostv1.WatchGrantsResponse{Event: &sandboxhostv1.WatchGrantsResponse_Synced{Synced: true}}
}

func TestAgent_GrantTriangle(t *testing.T) {
	w := start(t)
	c, h, attached := w.cluster, w.host, w.attached
	c.put(lease(false, nil))
	h.synced()
	// A mirror that is not live moves nothing: the state below is worked off first.
	c.live(false)
	eventually(t, "events taken", func() bool { return len(c.ch) == 0 && len(h.ch) == 0 })
	if got := attached(); got != "no volume" {
		t.Fatalf("acted without a live mirror: %s", got)
	}
	c.live(true)
	eventually(t, "bound", func() bool { return c.phase(leaseUID) == resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_BOUND })
	if attached() != sandboxUID || h.state() != sandboxhostv1.GrantState_GRANT_STATE_HELD {
		t.Fatalf("bound, but attached for %q, grant %v", attached(), h.state())
	}

	c.put(lease(true, &resourcev1.DiskLeaseStatus{Seq: 1, Phase: resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_BOUND}))
	eventually(t, "revoked", func() bool { return h.state() == sandboxhostv1.GrantState_GRANT_STATE_REVOKED })
	if attached() != sandboxUID {
		t.Fatal("unmounted while the sandbox may still use it")
	}
	h.move(sandboxhostv1.GrantState_GRANT_STATE_RETURNED)
	eventually(t, "released", func() bool { return c.phase(leaseUID) == resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_RELEASED })
	if attached() != "" {
		t.Fatalf("released, but attached for %q", attached())
	}
}

// The disk of a held sandbox is unmounted and stays its own.
func TestAgent_ParksTheDiskOfAHeldSandbox(t *testing.T) {
	w := start(t)
	w.cluster.put(lease(false, nil))
	w.host.synced()
	w.cluster.live(true)
	eventually(t, "bound", func() bool { return w.cluster.phase(leaseUID) == resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_BOUND })
	parked := func() bool {
		volumes, err := w.store.List()
		return err == nil && len(volumes) == 1 && volumes[0].Parked && volumes[0].Path == ""
	}
	w.host.move(sandboxhostv1.GrantState_GRANT_STATE_IDLE)
	eventually(t, "parked", func() bool { return w.host.state() == sandboxhostv1.GrantState_GRANT_STATE_PARKED && parked() })
	if got := w.attached(); got != sandboxUID {
		t.Errorf("the parked volume belongs to %q, want its sandbox", got)
	}
	if got := w.cluster.phase(leaseUID); got != resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_BOUND {
		t.Errorf("the lease of a parked disk is %v, want bound", got)
	}
	if _, err := w.host.ForgetGrant(t.Context(), nil); err != nil { // the hold is lifted
		t.Fatal(err)
	}
	eventually(t, "granted again", func() bool {
		return w.host.state() == sandboxhostv1.GrantState_GRANT_STATE_HELD && !parked()
	})
}

func TestOutlived(t *testing.T) {
	for _, c := range []struct {
		name   string
		disk   *resourcev1.DiskPlacement
		volume *storagev1.Volume
		want   bool
	}{
		{"attached for its holder", &resourcev1.DiskPlacement{Epoch: 2, Holder: "s"}, &storagev1.Volume{Epoch: 2, Holder: "s"}, false},
		{"not attached", &resourcev1.DiskPlacement{Epoch: 3}, &storagev1.Volume{Epoch: 2}, false},
		{"freed", &resourcev1.DiskPlacement{Epoch: 2}, &storagev1.Volume{Epoch: 2, Holder: "s"}, true},
		{"given to another", &resourcev1.DiskPlacement{Epoch: 3, Holder: "t"}, &storagev1.Volume{Epoch: 2, Holder: "s"}, true},
		{"a record that is older than the volume", &resourcev1.DiskPlacement{Epoch: 1}, &storagev1.Volume{Epoch: 2, Holder: "s"}, false},
	} {
		if got := Outlived(c.disk, c.volume); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// A node that was removed has had its leases ended without its word. When it is let
// in again, what is still attached is taken back once nobody uses it, and the next
// holder gets the disk.
func TestAgent_TakesBackWhatWasEndedWithoutItsWord(t *testing.T) {
	const next = "01K0000000000000000000000B"
	disk := func(deleting bool, p *resourcev1.DiskPlacement) *resourcev1.Resource {
		r := &resourcev1.Resource{
			Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_DISK, Name: "data", Uid: diskUID},
			Kind: &resourcev1.Resource_Disk{Disk: &resourcev1.Disk{Placement: p}},
		}
		if deleting {
			r.Meta.DeletingAt = timestamppb.Now()
		}
		return r
	}
	before := func(w *world) {
		t.Helper()
		if _, err := w.store.Ensure(diskUID); err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.Attach(diskUID, sandboxUID, 1); err != nil {
			t.Fatal(err)
		}
		w.host.set(&sandboxhostv1.Grant{DiskUid: diskUID, Disk: "data", SandboxUid: sandboxUID, Epoch: 1, State: sandboxhostv1.GrantState_GRANT_STATE_HELD})
		w.host.synced()
	}
	t.Run("given to another", func(t *testing.T) {
		w := start(t)
		before(w)
		l := lease(false, nil)
		l.GetDiskLease().Spec.SandboxUid, l.GetDiskLease().Spec.Epoch = next, 2
		w.cluster.put(l)
		w.cluster.put(disk(false, &resourcev1.DiskPlacement{Node: "node1", Holder: next, Epoch: 2, LeaseUid: leaseUID}))
		w.cluster.live(true)
		eventually(t, "pending", func() bool { return w.cluster.phase(leaseUID) == resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_PENDING })
		// Who is here still goes by its own record, and is not asked to.
		if got, state := w.attached(), w.host.state(); got != sandboxUID || state != sandboxhostv1.GrantState_GRANT_STATE_HELD {
			t.Fatalf("attached for %q, %v, while the sandbox before may still use it", got, state)
		}
		w.host.move(sandboxhostv1.GrantState_GRANT_STATE_RETURNED)
		eventually(t, "bound", func() bool { return w.cluster.phase(leaseUID) == resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_BOUND })
		if got := w.attached(); got != next {
			t.Errorf("attached for %q, want %q", got, next)
		}
	})
	t.Run("deleted", func(t *testing.T) {
		w := start(t)
		before(w)
		w.cluster.put(disk(true, &resourcev1.DiskPlacement{Node: "node1", Epoch: 1}))
		w.cluster.live(true)
		w.host.move(sandboxhostv1.GrantState_GRANT_STATE_RETURNED)
		eventually(t, "removed", func() bool { return w.attached() == "no volume" })
	})
}
