package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/config"
	"staddle.internal/kit/rpc"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const limit = 20 * time.Second

// Terms of histories.
const (
	termOne   = "01JT0000000000000000000001"
	termTwo   = "01JT0000000000000000000002"
	termThree = "01JT0000000000000000000003"
)

var quiet = slog.New(slog.DiscardHandler)

// world is an agent between its two neighbours, over real sockets.
type world struct {
	t       *testing.T
	dir     string
	cluster *fakeCluster
	host    *fakeHost
	foreign atomic.Int64
	log     *slog.Logger
	resync  time.Duration

	stopCluster, stopHost, stopAgent func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "sa") // short: paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &world{t: t, dir: dir, cluster: newFakeCluster(), host: newFakeHost(), log: quiet, resync: time.Hour}
}

// serve runs a neighbour until it is stopped.
func (w *world) serve(name string, register func(*grpc.Server)) (stop func()) {
	w.t.Helper()
	server, err := rpc.NewServer(rpc.ServerConfig{Process: name, Log: quiet, Peers: rpc.NewPeers(config.Users{})})
	if err != nil {
		w.t.Fatal(err)
	}
	register(server.GRPC())
	l, err := rpc.Listen(filepath.Join(w.dir, name+".sock"), rpc.DefaultSocketMode)
	if err != nil {
		w.t.Fatal(err)
	}
	server.Status().SetReady()
	return w.run(func(ctx context.Context, ready func()) error { return server.Member(l).Run(ctx, ready) })
}

func (w *world) run(run func(context.Context, func()) error) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	up, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- run(ctx, func() { close(up) }) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-done
		}
	}
	w.t.Cleanup(stop)
	select {
	case <-up:
	case err := <-done:
		stopped = true
		w.t.Fatalf("run: %v", err)
	case <-time.After(limit):
		w.t.Fatal("not ready")
	}
	return stop
}

func (w *world) startCluster() {
	w.t.Helper()
	w.stopCluster = w.serve("clusteraccess", func(s *grpc.Server) { clusteraccessv1.RegisterClusterAccessServiceServer(s, w.cluster) })
}

func (w *world) startHost() {
	w.t.Helper()
	w.stopHost = w.serve("sandboxhost", func(s *grpc.Server) { sandboxhostv1.RegisterSandboxHostServiceServer(s, w.host) })
}

func (w *world) startAgent() {
	w.t.Helper()
	dial := func(name string) *grpc.ClientConn {
		conn, err := rpc.Dial(filepath.Join(w.dir, name+".sock"), rpc.DialConfig{Process: "sandbox-agent"})
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() {
			if err := conn.Close(); err != nil {
				w.t.Error(err)
			}
		})
		return conn
	}
	cluster, host := Neighbours(dial("clusteraccess"), dial("sandboxhost"))
	a := New(Config{Node: "node1", Resync: w.resync}, Deps{
		Cluster: cluster, Host: host, Log: w.log, Foreign: func(n int) { w.foreign.Store(int64(n)) },
	})
	w.stopAgent = w.run(a.Run)
}

func (w *world) start() {
	w.t.Helper()
	w.startCluster()
	w.startHost()
	w.startAgent()
}

func (w *world) await(what string, ok func() bool) {
	w.t.Helper()
	end := time.NewTimer(limit)
	defer end.Stop()
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for !ok() {
		select {
		case <-again.C:
		case <-end.C:
			w.t.Fatalf("await %s: host holds %v, mirror is %v", what, w.host.hub.Snapshot(), w.cluster.state)
		}
	}
}

// settle waits until a sandbox that was put after everything else has come to the
// host: what was before it has been looked at by then, and had time to go wrong.
func (w *world) settle() {
	w.t.Helper()
	for range 3 {
		r := named("probe")
		w.cluster.put(r)
		w.await("probe", func() bool { return w.host.state(r.GetMeta().GetUid()) != nil })
	}
}
