package clusteraccess

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	processv1 "staddle.internal/proto/gen/staddle/process/v1"
)

// presence is a presence that tells who asks.
type presence struct {
	presencev1.UnimplementedPresenceServiceServer
}

func (presence) GetPresence(ctx context.Context, _ *presencev1.GetPresenceRequest) (*presencev1.GetPresenceResponse, error) {
	id := rpc.Caller(ctx)
	md, _ := metadata.FromIncomingContext(ctx)
	return &presencev1.GetPresenceResponse{Presence: &presencev1.Presence{
		Ready: id.Remote, NodeUid: fmt.Sprint(id.Role, " ", id.Name, " ", len(md[rpc.CallerKey])+len(md[rpc.AsKey])),
	}}, nil
}

func (presence) WatchPresence(_ *presencev1.WatchPresenceRequest, stream grpc.ServerStreamingServer[presencev1.WatchPresenceResponse]) error {
	for i := range 3 {
		if err := stream.Send(&presencev1.WatchPresenceResponse{Presence: &presencev1.Presence{SessionId: int64(i)}}); err != nil {
			return err
		}
	}
	return nil
}

// freePort is a port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// servePresence serves presence at its socket below a root, until stop.
func servePresence(t *testing.T, root string) (stop func()) {
	t.Helper()
	server, err := rpc.NewServer(rpc.ServerConfig{Process: "presence", Log: quiet, Peers: rpc.NewPeers(config.Users{})})
	if err != nil {
		t.Fatal(err)
	}
	presencev1.RegisterPresenceServiceServer(server.GRPC(), presence{})
	l, err := rpc.Listen(config.Paths{Root: root}.Socket("presence"), rpc.DefaultSocketMode)
	if err != nil {
		t.Fatal(err)
	}
	server.Status().SetReady()
	return members(t, server.Member(l))
}

// remote calls a gateway from outside with an identity.
func remote(t *testing.T, c *coordinator, address, identity string) *grpc.ClientConn {
	t.Helper()
	cert, err := c.authority.Issue(identity)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(address, rpc.DialConfig{FailFast: true, TLS: &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// Through real servers with their access rules, sockets and peer credentials.
func TestGateway_TheProcessDecidesByTheIdentityOfTheCaller(t *testing.T) {
	c := newCoordinator(t)
	root := enrolled(t, c)
	address := freePort(t)
	if err := os.MkdirAll(filepath.Join(root, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	n := startNodeAt(t, root, c.address, address)
	stop := servePresence(t, root)
	health := healthv1.NewHealthClient(n.conn)
	await(t, "the gateway takes calls", func() any { return nil }, func() bool {
		r, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: healthGateway})
		return err == nil && r.GetStatus() == healthv1.HealthCheckResponse_SERVING
	})
	const alice = "spiffe://staddle.test/user/alice"
	conn := remote(t, c, address, alice)
	ctx := metadata.AppendToOutgoingContext(t.Context(), rpc.CallerKey, "spiffe://staddle.test/user/root", rpc.AsKey, "supervisor")

	got, err := presencev1.NewPresenceServiceClient(conn).GetPresence(ctx, &presencev1.GetPresenceRequest{})
	if want := "ROLE_OPERATOR " + alice + " 0"; err != nil || got.GetPresence().GetNodeUid() != want || !got.GetPresence().GetReady() {
		t.Errorf("an operator: %v, %v, want %q", got, err, want)
	}
	by := "spiffe://staddle.test/coordinator/c1"
	got, err = presencev1.NewPresenceServiceClient(remote(t, c, address, by)).GetPresence(ctx, &presencev1.GetPresenceRequest{})
	if want := "ROLE_COORDINATOR " + by + " 0"; err != nil || got.GetPresence().GetNodeUid() != want {
		t.Errorf("a coordinator: %v, %v, want %q", got, err, want)
	}
	_, err = presencev1.NewPresenceServiceClient(remote(t, c, address, "spiffe://staddle.test/node/node2")).GetPresence(ctx, &presencev1.GetPresenceRequest{})
	if fault.KindOf(err) != fault.Denied {
		t.Errorf("a node: %v, want Denied", err)
	}
	watchAll(t, conn)
	askEveryProcess(t, conn)

	stop()
	_, err = presencev1.NewPresenceServiceClient(conn).GetPresence(t.Context(), &presencev1.GetPresenceRequest{})
	if fault.KindOf(err) != fault.Unavailable || fault.Reason(err) != "PROCESS_DOWN" || !strings.Contains(err.Error(), "presence does not answer") {
		t.Errorf("presence is away: %v", err)
	}
	servePresence(t, root)
	await(t, "presence answers again", func() any { return err }, func() bool {
		_, err = presencev1.NewPresenceServiceClient(conn).GetPresence(t.Context(), &presencev1.GetPresenceRequest{})
		return err == nil
	})
}

func watchAll(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	stream, err := presencev1.NewPresenceServiceClient(conn).WatchPresence(t.Context(), &presencev1.WatchPresenceRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if msg, err := stream.Recv(); err != nil || msg.GetPresence().GetSessionId() != int64(i) {
			t.Errorf("message %d of the watch: %v, %v", i, msg, err)
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the end of the watch: %v", err)
	}
}

// askEveryProcess asks for what every process has: status, health, reflection.
func askEveryProcess(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	for name, want := range map[string]string{"": Name, Name: Name, "presence": "presence"} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		if name != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "staddle-process", name)
		}
		status, err := processv1.NewProcessServiceClient(conn).GetStatus(ctx, &processv1.GetStatusRequest{})
		if err != nil || status.GetProcess() != want {
			t.Errorf("status of %q: %v, %v", name, status, err)
		}
		health, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
		if err != nil || health.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", name, health, err)
		}
		stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "staddle.presence.v1.PresenceService"},
		}); err != nil {
			t.Fatal(err)
		}
		if msg, err := stream.Recv(); err != nil || msg.GetFileDescriptorResponse() == nil {
			t.Errorf("%q describes presence: %v, %v", name, msg, err)
		}
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "staddle-process", "storage")
	_, err := processv1.NewProcessServiceClient(conn).GetStatus(ctx, &processv1.GetStatusRequest{})
	if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "storage does not answer") {
		t.Errorf("status of a process that is not there: %v", err)
	}
}

// A call that began before the end of clusteraccess ends with the reason, soon.
func TestGateway_StopsWithTheProcess(t *testing.T) {
	c := newCoordinator(t)
	address := freePort(t)
	n := startNodeAt(t, enrolled(t, c), c.address, address)
	conn := remote(t, c, address, "spiffe://staddle.test/user/alice")
	stream, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	n.stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the stop took %s", took)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("the watch ended with %v, want Unavailable", err)
	}
}
