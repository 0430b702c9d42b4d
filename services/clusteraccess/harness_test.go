package clusteraccess

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fdstore"
	"staddle.internal/kit/id"
	"staddle.internal/kit/process"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/run"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/clusteraccess/internal/coordinatortest"
)

const limit = 20 * time.Second

var quiet = slog.New(slog.DiscardHandler)

// members runs members until stop is called.
func members(t *testing.T, all ...run.Member) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	up, done := make(chan struct{}), make(chan error, 1)
	all = append(all, run.Member{Name: "up", Run: func(ctx context.Context, ready func()) error {
		ready()
		close(up)
		<-ctx.Done()
		return context.Cause(ctx)
	}})
	go func() { done <- run.Members(ctx, all...) }()
	select {
	case <-up:
	case err := <-done:
		t.Fatalf("start members: %v", err)
	case <-time.After(limit):
		t.Fatal("members are not ready")
	}
	var stopped bool
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-done
		}
	}
	t.Cleanup(stop)
	return stop
}

// coordinator serves a fake over mutual TLS.
type coordinator struct {
	*coordinatortest.Coordinator

	authority *coordinatortest.Authority
	address   string
	stop      func()
}

func newCoordinator(t *testing.T) *coordinator {
	t.Helper()
	authority, err := coordinatortest.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	c := &coordinator{Coordinator: coordinatortest.New(), authority: authority, address: "127.0.0.1:0"}
	c.start(t)
	return c
}

// start serves, on the same address as before.
func (c *coordinator) start(t *testing.T) {
	t.Helper()
	cert, err := c.authority.Issue("spiffe://staddle.test/coordinator/c1", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	server, err := rpc.NewServer(rpc.ServerConfig{Process: "coordinator", Log: quiet, Peers: rpc.NewPeers(config.Users{}), TLS: &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		ClientCAs: c.authority.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.Register(server.GRPC())
	l, err := net.Listen("tcp", c.address)
	if err != nil {
		t.Fatal(err)
	}
	c.address = l.Addr().String()
	server.Status().SetReady()
	c.stop = members(t, server.Member(l))
}

// node is clusteraccess as it runs on a node, in this process.
type node struct {
	root   string
	client clusteraccessv1.ClusterAccessServiceClient
	conn   *grpc.ClientConn
	stop   func()
}

func newRoot(t *testing.T) string {
	t.Helper()
	root, err := os.MkdirTemp("", "ca") // short: paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	return root
}

func startNode(t *testing.T, root, coordinator string) *node {
	t.Helper()
	return startNodeAt(t, root, coordinator, "")
}

// startNodeAt starts a node with a gateway at an address.
func startNodeAt(t *testing.T, root, coordinator, gateway string) *node {
	t.Helper()
	paths := config.Paths{Root: root}
	cfg := config.DefaultNode()
	cfg.Name, cfg.Coordinator.Address, cfg.ListenAddress = "node1", coordinator, gateway
	cfg.Resolve(paths)
	for _, dir := range []string{paths.Run(), paths.Var(Name)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	server, err := rpc.NewServer(rpc.ServerConfig{Process: Name, Log: quiet, Peers: rpc.NewPeers(cfg.Users)})
	if err != nil {
		t.Fatal(err)
	}
	built, err := build(t.Context(), &process.Process{
		Name: Name, Paths: paths, Config: &cfg, Log: quiet, Server: server, Status: server.Status(), FDs: fdstore.New(),
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := rpc.Listen(paths.Socket(Name), rpc.DefaultSocketMode)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{root: root, stop: members(t, append([]run.Member{server.Member(l)}, built...)...)}
	server.Status().SetReady()
	n.conn, err = rpc.Dial(paths.Socket(Name), rpc.DialConfig{Process: "presence"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.conn.Close(); err != nil {
			t.Error(err)
		}
	})
	n.client = clusteraccessv1.NewClusterAccessServiceClient(n.conn)
	return n
}

// enrolled is a root that holds the credentials of node1.
func enrolled(t *testing.T, c *coordinator) string {
	t.Helper()
	root := newRoot(t)
	if err := c.authority.WriteNode(filepath.Join(root, "etc", "pki"), "spiffe://staddle.test/node/node1"); err != nil {
		t.Fatal(err)
	}
	return root
}

func (n *node) list(t *testing.T) *clusteraccessv1.ListResourcesResponse {
	t.Helper()
	resp, err := n.client.ListResources(t.Context(), &clusteraccessv1.ListResourcesRequest{Kind: resourcev1.Kind_KIND_SANDBOX})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// awaitMirror waits until the mirror is as ok says.
func (n *node) awaitMirror(t *testing.T, what string, ok func(*clusteraccessv1.ListResourcesResponse) bool) *clusteraccessv1.ListResourcesResponse {
	t.Helper()
	var last *clusteraccessv1.ListResourcesResponse
	await(t, what, func() any { return last }, func() bool { last = n.list(t); return ok(last) })
	return last
}

func await(t *testing.T, what string, last func() any, ok func() bool) {
	t.Helper()
	end := time.NewTimer(limit)
	defer end.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !ok() {
		select {
		case <-again.C:
		case <-end.C:
			t.Fatalf("await %s: last seen: %v", what, last())
		}
	}
}

func live(r *clusteraccessv1.ListResourcesResponse) bool { return r.GetMirror().GetLive() }

func sandbox(name string) *resourcev1.Resource {
	return &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_SANDBOX, Name: name, Uid: string(id.NewSandbox()), Generation: 1},
		Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{
			Spec: &resourcev1.SandboxSpec{
				Desired:    resourcev1.DesiredState_DESIRED_STATE_RUNNING,
				Containers: []*resourcev1.ContainerSpec{{Name: "c", Image: "x"}},
			},
			Placement: &resourcev1.SandboxPlacement{Node: "node1"},
		}},
	}
}

func contains(s string, all ...string) bool {
	for _, part := range all {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}
