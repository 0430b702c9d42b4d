package command_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

// fakeGateway is the door of one node, with its presence behind it.
type fakeGateway struct {
	presencev1.UnimplementedPresenceServiceServer

	address string

	mu    sync.Mutex
	ready bool // guarded by mu
}

// newGateway serves the gateway of a node of the cluster.
func newGateway(t *testing.T, c *fakeCluster, name string) *fakeGateway {
	t.Helper()
	g := &fakeGateway{ready: true}
	g.address = serveGateway(t, c, name, g)
	return g
}

// serveGateway serves the presence of a node with that node's identity, and returns
// where.
func serveGateway(t *testing.T, c *fakeCluster, name string, p presencev1.PresenceServiceServer) string {
	t.Helper()
	key, cert := issue(t, c.caKey, c.caCert, "spiffe://staddle.local/node/"+name)
	pool := x509.NewCertPool()
	pool.AddCert(c.caCert)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
	})), grpc.UnaryInterceptor(fault.UnaryServer), grpc.StreamInterceptor(fault.StreamServer))
	presencev1.RegisterPresenceServiceServer(server, p)
	go func() { _ = server.Serve(l) }() // ends with Stop
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

func (g *fakeGateway) presence() *presencev1.Presence {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &presencev1.Presence{Ready: g.ready, NodeUid: "01JNODE0000000000000000001", Conditions: []*resourcev1.Condition{
		{Type: "Storage", State: resourcev1.ConditionState_CONDITION_STATE_TRUE},
		{Type: "AppArmor", State: resourcev1.ConditionState_CONDITION_STATE_FALSE, Reason: "the kernel has no AppArmor"},
	}}
	if !g.ready {
		p.Conditions[0].State, p.Conditions[0].Reason = resourcev1.ConditionState_CONDITION_STATE_FALSE, "recovering 3 volumes"
	}
	return p
}

func (g *fakeGateway) GetPresence(context.Context, *presencev1.GetPresenceRequest) (*presencev1.GetPresenceResponse, error) {
	return &presencev1.GetPresenceResponse{Presence: g.presence()}, nil
}

func (g *fakeGateway) WatchPresence(_ *presencev1.WatchPresenceRequest, stream grpc.ServerStreamingServer[presencev1.WatchPresenceResponse]) error {
	for _, ready := range []bool{true, false} {
		g.mu.Lock()
		g.ready = ready
		g.mu.Unlock()
		if err := stream.Send(&presencev1.WatchPresenceResponse{Presence: g.presence()}); err != nil {
			return err
		}
	}
	return fault.New(fault.Unavailable, "the process is stopping")
}

// addNode makes the cluster know a node, and where its gateway is.
func (c *fakeCluster) addNode(name, gateway string) string {
	uid := id.New()
	c.change(func(revision uint64) {
		r := &resourcev1.Resource{
			Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_NODE, Name: name, Uid: uid, Revision: revision},
			Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{Status: &resourcev1.NodeStatus{GatewayAddress: gateway}}},
		}
		c.records[keyOf(r.GetMeta())] = r
	})
	return uid
}

func TestNodeStatus_AsksTheNodeWhereTheCoordinatorSays(t *testing.T) {
	c := newCluster(t)
	g := newGateway(t, c, "node1")
	uid := c.addNode("node1", g.address)
	for _, ref := range []string{"node1", uid} {
		want(t, cli(t, c.flags("node", "status", ref)...), 0, "CONDITION", "Storage", "true", "Ready")
	}
	if got := cli(t, c.flags("node", "status", "node1", "-o", "json")...); got.code != 0 || !strings.Contains(got.out, `"ready": true`) {
		t.Errorf("exit code %d, prints %s%s", got.code, got.out, got.err)
	}
	g.mu.Lock()
	g.ready = false
	g.mu.Unlock()
	got := cli(t, c.flags("node", "status", "node1")...)
	want(t, got, 1, "recovering 3 volumes", "the kernel has no AppArmor", "because of Storage")
	if strings.Contains(got.out, "because of Storage, ") {
		t.Errorf("a node without AppArmor is not ready because of that: %s", got.out)
	}
	if got.err != "" {
		t.Errorf("a node that is not ready is no error of the command: %s", got.err)
	}
	want(t, cli(t, c.flags("node", "status", "--watch", "node1")...), 5, "recovering 3 volumes", "watch node node1", "stopping")
	if got := completed(t, c.flags("node", "status", "")...); strings.Join(got, " ") != "node1" {
		t.Errorf("offers %q, want node1", got)
	}
}

// With an address, a coordinator that is away is not missed.
func TestNodeStatus_WithoutACoordinator(t *testing.T) {
	c := newCluster(t)
	g := newGateway(t, c, "node1")
	flags := append(c.flags(), "--coordinator", "127.0.0.1:1", "node", "status", "--address", g.address)
	want(t, cli(t, append(flags, "node1")...), 0, "Ready")
	want(t, cli(t, append(c.flags(), "--coordinator", "127.0.0.1:1", "node", "status", "node1")...), 5, "reach coordinator 127.0.0.1:1")
}

func TestNodeStatus_SaysWhatIsWrong(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	g, foreign := newGateway(t, c, "node1"), newGateway(t, other, "node1")
	c.addNode("none", "")
	c.addNode("gone", "127.0.0.1:1")
	c.addNode("node2", g.address)
	for _, tt := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"none"}, 5, []string{"node none: it has told of no gateway", "try: write a listen_address"}},
		{[]string{"gone"}, 5, []string{"reach node gone at 127.0.0.1:1: connection refused", "try: check that the node runs"}},
		{[]string{"node2"}, 6, []string{"it is [spiffe://staddle.local/node/node1], not spiffe://staddle.local/node/node2", "try: "}},
		{[]string{"nobody"}, 3, []string{"nobody", "not found"}},
		{[]string{"node1", "--address", foreign.address}, 6, []string{"its certificate is not to be trusted", "try: "}},
		{[]string{"node1", "--address", "nonsense"}, 2, []string{"write host:port"}},
		{[]string{"node1", "--node-socket", "/x.sock"}, 2, []string{"without --node-socket"}},
		{nil, 2, []string{"an argument is missing"}},
	} {
		want(t, cli(t, c.flags(append([]string{"node", "status"}, tt.args...)...)...), tt.code, tt.says...)
	}
	stranger := append([]string{"--coordinator", c.address, "--ca", c.ca, "--cert", other.cert, "--key", other.key}, "node", "status", "node1", "--address", g.address)
	want(t, cli(t, stranger...), 6, "it does not take the certificate", "try: name an identity")
}
