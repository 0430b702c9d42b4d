package listening

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"staddle.internal/kit/fdstore"
)

const socket = "clusteraccess.tcp"

// A caller who comes while the process restarts is not refused: whoever supervises
// holds the listener open meanwhile.
func TestKeeper_TheListenerOutlivesTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	manager := fdstore.NewManager(fdstore.ManagerConfig{Path: path}, fdstore.ManagerDeps{
		Owner: func(pid int, _ uint32) (string, bool) { return "clusteraccess", pid == os.Getpid() },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- manager.Run(ctx, func() { close(ready) }) }() // ended below
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, manager.Close()); err != nil {
			t.Error(err)
		}
	})
	<-ready
	t.Setenv(fdstore.EnvNotify, path)
	fds, log := fdstore.New(), slog.New(slog.NewTextHandler(t.Output(), nil))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	Keeper(fds, socket, log)(l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
	if err != nil {
		t.Fatalf("a caller was refused: %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if kept := manager.All(); len(kept) != 1 || kept[0].Name != socket {
		t.Errorf("kept are %v, want %s", kept, socket)
	}
}

func TestKeeper_IsNoneWhereNobodyKeepsFiles(t *testing.T) {
	t.Setenv(fdstore.EnvNotify, "")
	if Keeper(fdstore.New(), socket, slog.New(slog.DiscardHandler)) != nil {
		t.Error("got a keeper that can keep nothing")
	}
}
