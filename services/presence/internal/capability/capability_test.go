package capability

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"staddle.internal/kit/config"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/watch"

	"staddle.internal/services/presence/internal/condition"
)

var quiet = slog.New(slog.DiscardHandler)

// serve runs a neighbour on a socket until it is stopped.
func serve(t *testing.T, path string) (*rpc.Status, func()) {
	t.Helper()
	server, err := rpc.NewServer(rpc.ServerConfig{Process: "storage", Log: quiet, Peers: rpc.NewPeers(config.Users{})})
	if err != nil {
		t.Fatal(err)
	}
	l, err := rpc.Listen(path, rpc.DefaultSocketMode)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Member(l).Run(ctx, func() {}) }()
	return server.Status(), func() { cancel(); <-done }
}

func TestCapability_FollowsANeighbourThroughItsLife(t *testing.T) {
	dir, err := os.MkdirTemp("", "cp") // short: paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "storage.sock")
	conn, err := rpc.Dial(path, rpc.DialConfig{Process: "presence"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	hub := watch.New[string, condition.Observation]()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	for name, health := range map[string]string{"process": "", "link": "link"} {
		go func() {
			Capability{Process: "storage", Health: health, Conn: conn}.Follow(ctx, func(o condition.Observation) { hub.Set(name, o) })
			done <- struct{}{}
		}()
	}
	await := func(what, name string, want condition.Answer, says string) {
		t.Helper()
		limit, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		_, err := watch.Await(limit, hub, name, func(o condition.Observation) bool {
			return o.Answer == want && strings.Contains(o.Reason, says)
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}

	await("no socket yet", "process", condition.Away, "does not answer")
	status, stop := serve(t, path)
	await("it starts", "process", condition.Away, "starting")
	status.SetNotReady("recovering 3 volumes")
	await("its reason changes", "process", condition.Away, "recovering 3 volumes")
	status.SetReady()
	await("it is ready", "process", condition.Serving, "")
	await("it has no link", "link", condition.Away, "no link")
	status.SetHealth("link", true)
	await("it has a link", "link", condition.Serving, "")
	status.Stopping()
	await("it was asked to stop", "process", condition.Gone, "stopping")
	stop()
	await("it has stopped", "process", condition.Away, "does not answer")
	await("its link with it", "link", condition.Away, "does not answer")
	status, stop = serve(t, path)
	defer stop()
	status.SetReady()
	await("it is back", "process", condition.Serving, "")
	cancel()
	<-done
	<-done
}
