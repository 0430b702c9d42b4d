package coordinator_test

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/rpc"
)

// freeURL is an address of loopback that nobody listens on now.
func freeURL(t *testing.T) url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	return url.URL{Scheme: "http", Host: l.Addr().String()}
}

// startEtcd runs an etcd that serves clients at a URL.
func startEtcd(t *testing.T, client url.URL) {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = "outside", t.TempDir()
	peer := freeURL(t)
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(limit):
		t.Fatalf("etcd is not ready after %s", limit)
	}
}

// Two coordinators over one etcd: both serve, one acts, and the other goes on
// when that one dies.
func TestCluster_AnotherCoordinatorGoesOn(t *testing.T) {
	t.Parallel()
	at := freeURL(t)
	startEtcd(t, at)
	more := "etcd: {endpoints: [\"" + at.String() + "\"]}\n"
	first := prepare(t, more)
	first.start()
	second := prepare(t, more)
	if err := os.CopyFS(filepath.Join(second.root, "etc", "pki"), os.DirFS(filepath.Join(first.root, "etc", "pki"))); err != nil {
		t.Fatal(err)
	}
	second.start()

	w := second.operator().watch(t, &coordinatorv1.WatchResourcesRequest{Kinds: []resourcev1.Kind{kindDisk}})
	w.expect("synced")
	first.operator().create(t, disk("d1"))
	w.expect("changed d1")

	join(t, first.node1(), "n1")
	second.operator().create(t, sandbox("before"))
	placed(t, second.operator(), "before")
	first.kill()
	n1 := second.node1()
	if _, err := renew(n1, 0, "machine-n1"); err != nil {
		t.Fatal(err)
	}
	admin := second.operator()
	admin.create(t, sandbox("after"))
	eventually(t, "another coordinator places", func() string {
		if _, err := renew(n1, 0, "machine-n1"); err != nil {
			t.Fatal(err)
		}
		return admin.get(t, kindSandbox, "after").GetSandbox().GetPlacement().GetNode()
	}, func(node string) bool { return node == "n1" })
}

// What lies outside the machine is waited for, with the reason told.
func TestCluster_WaitsForItsEtcd(t *testing.T) {
	t.Parallel()
	at := freeURL(t)
	r := prepare(t, "etcd: {endpoints: [\""+at.String()+"\"]}\n")
	r.spawn()
	conn, err := rpc.Dial(filepath.Join(r.root, "run", "coordinator.sock"), rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "the reason is told", func() *processv1.GetStatusResponse {
		resp, err := processv1.NewProcessServiceClient(conn).GetStatus(t.Context(), &processv1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}, func(s *processv1.GetStatusResponse) bool {
		return s.GetExternal() && strings.Contains(s.GetReason(), "waiting for etcd")
	})
	startEtcd(t, at)
	r.await()
	r.operator().create(t, disk("d1"))
}
