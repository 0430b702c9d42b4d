package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/rpc"
	"staddle.internal/services/sandboxhost/internal/api"
	"staddle.internal/services/sandboxhost/internal/engine/mem"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/logs"
	"staddle.internal/services/sandboxhost/internal/permit"

	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// roleKey is the metadata by which a test says who it is: bufconn has no peer
// credentials.
const roleKey = "test-role"

// door is a served host with a client.
type door struct {
	t      *testing.T
	client sandboxhostv1.SandboxHostServiceClient
	engine *mem.Engine
	short  error // why no new sandbox is taken
}

// inBubble serves a host over bufconn with fake time.
func inBubble(t *testing.T, source fakeLogs, f func(d *door)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		j, _, err := journal.Open(journal.Options{
			Path: filepath.Join(t.TempDir(), "journal.db"), Kind: host.JournalKind, Version: host.JournalVersion,
		})
		if err != nil {
			t.Fatal(err)
		}
		d := &door{t: t, engine: mem.New()}
		booted := time.Now().Add(-time.Hour)
		h := host.New(host.Config{Node: "node1", BootID: "boot", Rules: permit.Rules{SandboxNetwork: true}, Limit: 3}, host.Deps{
			Engine: d.engine, Journal: j, Log: slog.New(slog.DiscardHandler),
			Now:     func() time.Duration { return time.Since(booted) },
			Refusal: func() error { return d.short },
		})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		ready := make(chan struct{})
		go func() { ended <- h.Run(ctx, func() { close(ready) }) }() // waited for below
		<-ready
		server, conn := serve(t, h, source)
		d.client = sandboxhostv1.NewSandboxHostServiceClient(conn)
		f(d)
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
}

func serve(t *testing.T, h api.Host, source fakeLogs) (*grpc.Server, *grpc.ClientConn) {
	t.Helper()
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(fault.UnaryServer, func(
			ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler,
		) (any, error) {
			role := optionsv1.Role_ROLE_OPERATOR
			if slices.Contains(metadata.ValueFromIncomingContext(ctx, roleKey), "agent") {
				role = optionsv1.Role_ROLE_SANDBOX_AGENT
			}
			return next(rpc.WithCaller(ctx, rpc.Identity{Role: role}), req)
		}),
		grpc.StreamInterceptor(fault.StreamServer))
	api.Register(server, h, source)
	l := bufconn.Listen(1 << 20)
	go func() { _ = server.Serve(l) }() // ends with server.Stop, which returns nil here
	conn, err := grpc.NewClient("passthrough:host",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(fault.UnaryClient), grpc.WithStreamInterceptor(fault.StreamClient))
	if err != nil {
		t.Fatal(err)
	}
	return server, conn
}

func (d *door) as(role string) context.Context {
	return metadata.AppendToOutgoingContext(d.t.Context(), roleKey, role)
}

func request(name string) *sandboxhostv1.EnsureSandboxRequest {
	return &sandboxhostv1.EnsureSandboxRequest{
		Uid: string(id.NewSandbox()), Name: name, Generation: 1, Manager: host.ManagerLocal,
		Spec: &resourcev1.SandboxSpec{
			Desired:    resourcev1.DesiredState_DESIRED_STATE_RUNNING,
			Containers: []*resourcev1.ContainerSpec{{Name: "main", Image: mem.Image, Command: []string{"sleep"}}},
		},
	}
}

func (d *door) ensure(req *sandboxhostv1.EnsureSandboxRequest) {
	d.t.Helper()
	if _, err := d.client.EnsureSandbox(d.as("operator"), req); err != nil {
		d.t.Fatalf("ensure: %v", err)
	}
}

// await watches one sandbox until it is as asked.
func (d *door) await(uid string, is func(*sandboxhostv1.WatchSandboxesResponse) bool) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	defer cancel()
	stream, err := d.client.WatchSandboxes(ctx, &sandboxhostv1.WatchSandboxesRequest{Uid: uid})
	if err != nil {
		d.t.Fatal(err)
	}
	var last proto.Message
	for {
		res, err := stream.Recv()
		if err != nil {
			d.t.Fatalf("watch: %v; last seen: %v", err, last)
		}
		if is(res) {
			return
		}
		last = res
	}
}

func (d *door) awaitPhase(uid string, phase resourcev1.SandboxPhase) {
	d.t.Helper()
	d.await(uid, func(r *sandboxhostv1.WatchSandboxesResponse) bool {
		return r.GetChanged().GetStatus().GetPhase() == phase
	})
}

func (d *door) remove(uid string) {
	d.t.Helper()
	_, err := d.client.RemoveSandbox(d.as("operator"), &sandboxhostv1.RemoveSandboxRequest{Uid: uid, Manager: host.ManagerLocal})
	if err != nil {
		d.t.Fatalf("remove: %v", err)
	}
	d.await(uid, func(r *sandboxhostv1.WatchSandboxesResponse) bool {
		return r.GetChanged().GetStatus().GetTornDownAt() != nil
	})
}

func TestServer_Life(t *testing.T) {
	inBubble(t, nil, func(d *door) {
		req := request("web")
		d.ensure(req)
		d.ensure(req)
		d.awaitPhase(req.GetUid(), resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING)
		forget := &sandboxhostv1.ForgetSandboxRequest{Uid: req.GetUid(), Manager: host.ManagerLocal}
		if _, err := d.client.ForgetSandbox(d.as("operator"), forget); fault.Reason(err) != "NOT_TORN_DOWN" {
			t.Errorf("forget a running sandbox: got %v", err)
		}
		d.remove(req.GetUid())
		for range 2 {
			if _, err := d.client.ForgetSandbox(d.as("operator"), forget); err != nil {
				t.Errorf("forget: %v", err)
			}
		}
		_, err := d.client.GetSandbox(d.t.Context(), &sandboxhostv1.GetSandboxRequest{Uid: req.GetUid()})
		if !errors.Is(err, fault.NotFound) {
			t.Errorf("get a forgotten sandbox: got %v, want NotFound", err)
		}
	})
}

func TestServer_EnsureRules(t *testing.T) {
	type setup func(d *door) *sandboxhostv1.EnsureSandboxRequest
	known := func(change func(*sandboxhostv1.EnsureSandboxRequest)) setup {
		return func(d *door) *sandboxhostv1.EnsureSandboxRequest {
			req := request("web")
			req.Generation = 5
			d.ensure(req)
			req = proto.CloneOf(req)
			change(req)
			return req
		}
	}
	tests := []struct {
		name   string
		role   string
		make   setup
		kind   fault.Kind
		reason string
	}{
		{"lower generation", "", known(func(r *sandboxhostv1.EnsureSandboxRequest) { r.Generation = 4 }), fault.Conflict, "STALE_GENERATION"},
		{"other spec", "", known(func(r *sandboxhostv1.EnsureSandboxRequest) { r.Spec.Hostname = "x" }), fault.Conflict, "SPEC_CHANGED"},
		{"other name", "", known(func(r *sandboxhostv1.EnsureSandboxRequest) { r.Name, r.Generation = "x", 6 }), fault.Conflict, "SPEC_CHANGED"},
		{"name taken", "", known(func(r *sandboxhostv1.EnsureSandboxRequest) { r.Uid = string(id.NewSandbox()) }), fault.Conflict, "NAME_TAKEN"},
		{"too large", "", func(*door) *sandboxhostv1.EnsureSandboxRequest {
			r := request("web")
			r.Spec.Containers[0].Args = []string{strings.Repeat("x", 128<<10), strings.Repeat("x", 128<<10)}
			return r
		}, fault.Invalid, ""},
		{"host network", "", func(*door) *sandboxhostv1.EnsureSandboxRequest {
			r := request("web")
			r.Spec.Network = resourcev1.NetworkMode_NETWORK_MODE_HOST
			return r
		}, fault.Denied, "HOST_NETWORK_NOT_ALLOWED"},
		{"operator for the cluster", "", func(*door) *sandboxhostv1.EnsureSandboxRequest {
			r := request("web")
			r.Manager = host.ManagerCluster
			return r
		}, fault.Denied, "MANAGER_MISMATCH"},
		{"agent for the node", "agent", known(func(*sandboxhostv1.EnsureSandboxRequest) {}), fault.Denied, "MANAGER_MISMATCH"},
		{"agent takes over", "agent", known(func(r *sandboxhostv1.EnsureSandboxRequest) { r.Manager, r.Generation = host.ManagerCluster, 6 }),
			fault.Denied, "MANAGER_MISMATCH"},
		{"full", "", func(d *door) *sandboxhostv1.EnsureSandboxRequest {
			for i := range 3 {
				d.ensure(request(fmt.Sprintf("web%d", i)))
			}
			return request("more")
		}, fault.Exhausted, "NODE_FULL"},
		{"short of memory", "", func(d *door) *sandboxhostv1.EnsureSandboxRequest {
			d.short = fault.WithReason(fault.New(fault.Exhausted, "short of memory"), "MEMORY_PRESSURE")
			return request("web")
		}, fault.Exhausted, "MEMORY_PRESSURE"},
		{"removed", "", func(d *door) *sandboxhostv1.EnsureSandboxRequest {
			r := request("web")
			d.ensure(r)
			d.remove(r.GetUid())
			return r
		}, fault.Conflict, "TOMBSTONE"},
		{"never seen, but removed", "", func(d *door) *sandboxhostv1.EnsureSandboxRequest {
			r := request("web")
			_, err := d.client.RemoveSandbox(d.as(""), &sandboxhostv1.RemoveSandboxRequest{Uid: r.GetUid(), Manager: r.GetManager()})
			if err != nil {
				d.t.Fatal(err)
			}
			return r
		}, fault.Conflict, "TOMBSTONE"},
		{"being removed", "", func(d *door) *sandboxhostv1.EnsureSandboxRequest {
			r := request("web")
			r.Spec.Containers[0].Command = []string{mem.CommandIgnoreTerm}
			d.ensure(r)
			d.awaitPhase(r.GetUid(), resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING)
			_, err := d.client.RemoveSandbox(d.as(""), &sandboxhostv1.RemoveSandboxRequest{Uid: r.GetUid(), Manager: r.GetManager()})
			if err != nil {
				d.t.Fatal(err)
			}
			return r
		}, fault.Conflict, "BEING_REMOVED"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, nil, func(d *door) {
				_, err := d.client.EnsureSandbox(d.as(tt.role), tt.make(d))
				if !errors.Is(err, tt.kind) || fault.Reason(err) != tt.reason {
					d.t.Errorf("got %v (%s), want %v %s", err, fault.Reason(err), tt.kind, tt.reason)
				}
			})
		})
	}
}

func TestServer_List(t *testing.T) {
	inBubble(t, nil, func(d *door) {
		var want []string
		for i := range 3 {
			r := request(fmt.Sprintf("web%d", i))
			d.ensure(r)
			want = append(want, r.GetUid())
		}
		slices.Sort(want)
		var got []string
		for token := ""; ; {
			res, err := d.client.ListSandboxes(d.t.Context(), &sandboxhostv1.ListSandboxesRequest{PageSize: 2, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range res.GetSandboxes() {
				got = append(got, s.GetUid())
			}
			if token = res.GetNextPageToken(); token == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		_, err := d.client.ListSandboxes(d.t.Context(), &sandboxhostv1.ListSandboxesRequest{PageToken: "x"})
		if !errors.Is(err, fault.Invalid) {
			t.Errorf("foreign page token: got %v, want Invalid", err)
		}
	})
}

// crowd is a host that has what it is given.
type crowd struct {
	api.Host
	states map[id.Sandbox]*sandboxhostv1.SandboxState
}

func (c crowd) List() (map[id.Sandbox]*sandboxhostv1.SandboxState, error) { return c.states, nil }

// A page that holds large specs is shorter, and never too large for a message.
func TestServer_ListsLargeSpecs(t *testing.T) {
	large := request("web").GetSpec()
	large.GetContainers()[0].Args = []string{strings.Repeat("x", 100<<10), strings.Repeat("y", 100<<10)}
	all := crowd{states: map[id.Sandbox]*sandboxhostv1.SandboxState{}}
	for range 50 {
		uid := id.NewSandbox()
		all.states[uid] = &sandboxhostv1.SandboxState{Uid: string(uid), Spec: large}
	}
	server, conn := serve(t, all, nil)
	defer server.Stop()
	client := sandboxhostv1.NewSandboxHostServiceClient(conn)
	got := map[string]bool{}
	for token := ""; ; {
		res, err := client.ListSandboxes(t.Context(), &sandboxhostv1.ListSandboxesRequest{PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range res.GetSandboxes() {
			got[s.GetUid()] = true
		}
		if token = res.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(got) != 50 {
		t.Errorf("got %d different sandboxes, want 50", len(got))
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

// wasGone, wasWeb and wasTwo are removed sandboxes.
const wasGone, wasWeb, wasTwo = "01M8XA8B30K3HTSD5D5FV6N35S", "01M8XA8B30K3HTSD5D5FV6N35T", "01M8XA8B30K3HTSD5D5FV6N35Z"

// fakeLogs has what each attempt wrote; with follow a read ends at once, as it
// does for a container that has ended.
type fakeLogs map[uint64]string

func (f fakeLogs) Removed() ([]logs.Removed, error) {
	return []logs.Removed{
		{UID: wasWeb, Name: logs.Name{Manager: "local", Name: "web"}}, {UID: wasTwo, Name: logs.Name{Manager: "local", Name: "two"}},
		{UID: wasGone, Name: logs.Name{Manager: "local", Name: "gone"}},
	}, nil
}

func (f fakeLogs) Containers(uid id.Sandbox) ([]string, error) {
	if uid == wasTwo {
		return []string{"a", "b"}, nil
	}
	return []string{"main"}, nil
}

func (f fakeLogs) Attempts(id.Sandbox, string) ([]uint64, error) {
	var kept []uint64
	for n := range f {
		kept = append(kept, n)
	}
	slices.Sort(kept)
	return kept, nil
}

func (f fakeLogs) Read(_ context.Context, at logs.Position, _ logs.Mode, emit func(logs.Chunk) error) error {
	return emit(logs.Chunk{Offset: at.StdoutOffset, Data: []byte(f[at.Attempt][at.StdoutOffset:])})
}

func TestServer_ReadLogs(t *testing.T) {
	tests := []struct {
		name string
		req  *sandboxhostv1.ReadLogsRequest
		want string
		kind fault.Kind
	}{
		{"newest", &sandboxhostv1.ReadLogsRequest{}, "second", 0},
		{"older", &sandboxhostv1.ReadLogsRequest{Attempt: 1, Container: "main"}, "first", 0},
		{"resumed", &sandboxhostv1.ReadLogsRequest{StdoutOffset: 3}, "ond", 0},
		{"followed until removed", &sandboxhostv1.ReadLogsRequest{Follow: true}, "second", 0},
		{"none before", &sandboxhostv1.ReadLogsRequest{Previous: true}, "", fault.NotFound},
		{"no such container", &sandboxhostv1.ReadLogsRequest{Container: "x"}, "", fault.NotFound},
		{"no such attempt", &sandboxhostv1.ReadLogsRequest{Attempt: 9}, "", fault.NotFound},
		{"by name", &sandboxhostv1.ReadLogsRequest{Name: "web", Attempt: 1}, "first", 0},
		{"removed", &sandboxhostv1.ReadLogsRequest{Uid: wasGone}, "second", 0},
		{"removed, by name", &sandboxhostv1.ReadLogsRequest{Name: "gone", Container: "main", Attempt: 1}, "first", 0},
		{"removed, resumed", &sandboxhostv1.ReadLogsRequest{Name: "gone", Attempt: 2, StdoutOffset: 3}, "ond", 0},
		{"removed, followed", &sandboxhostv1.ReadLogsRequest{Name: "gone", Follow: true, Attempt: 2}, "second", 0},
		{"removed, the attempt before", &sandboxhostv1.ReadLogsRequest{Name: "gone", Previous: true}, "first", 0},
		{"removed, another of a name that is here", &sandboxhostv1.ReadLogsRequest{Uid: wasWeb}, "second", 0},
		{"removed, no such container", &sandboxhostv1.ReadLogsRequest{Name: "gone", Container: "x"}, "", fault.NotFound},
		{"removed, no such attempt", &sandboxhostv1.ReadLogsRequest{Name: "gone", Attempt: 3}, "", fault.NotFound},
		{"removed, of several containers", &sandboxhostv1.ReadLogsRequest{Name: "two"}, "", fault.Invalid},
		{"removed, one of several containers", &sandboxhostv1.ReadLogsRequest{Name: "two", Container: "b"}, "second", 0},
		{"unknown name", &sandboxhostv1.ReadLogsRequest{Name: "never"}, "", fault.NotFound},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, fakeLogs{1: "first", 2: "second"}, func(d *door) {
				r := request("web")
				d.ensure(r)
				if tt.req.Uid == "" && tt.req.Name == "" {
					tt.req.Uid = r.GetUid()
				}
				stream, err := d.client.ReadLogs(d.t.Context(), tt.req)
				if err != nil {
					d.t.Fatal(err)
				}
				got := ""
				for err == nil {
					var res *sandboxhostv1.ReadLogsResponse
					if res, err = stream.Recv(); err != nil {
						break
					}
					if got += string(res.GetData()); tt.req.GetFollow() && tt.req.GetUid() == r.GetUid() {
						d.remove(r.GetUid())
					}
				}
				if want := tt.kind; want == 0 && !errors.Is(err, io.EOF) || want != 0 && !errors.Is(err, want) {
					d.t.Errorf("ended with %v, want %v", err, want)
				}
				if got != tt.want {
					d.t.Errorf("got %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// An attempt that ends before it has a container has no output to wait for.
func TestServer_FollowsNothingOfAnAttemptThatEnded(t *testing.T) {
	inBubble(t, fakeLogs{}, func(d *door) {
		r := request("web")
		r.Spec.RestartPolicy = resourcev1.RestartPolicy_RESTART_POLICY_NEVER
		r.Spec.Containers[0].Image = "test.invalid/none:1"
		d.ensure(r)
		stream, err := d.client.ReadLogs(d.t.Context(), &sandboxhostv1.ReadLogsRequest{Uid: r.GetUid(), Attempt: 1, Follow: true})
		if err != nil {
			d.t.Fatal(err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			d.t.Errorf("got %v, want the end", err)
		}
	})
}
