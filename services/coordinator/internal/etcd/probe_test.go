package etcd

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"staddle.internal/kit/fault"
)

// ETC-6: a full store is named, and works again once there is room, without a
// restart.
func TestBackend_RelievesAFullStore(t *testing.T) {
	const mib = 1 << 20
	b := New(Config{Dir: filepath.Join(t.TempDir(), "etcd"), Quota: 16 * mib},
		Deps{Log: slog.New(slog.DiscardHandler), NotReady: func(string) {}})
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- b.Run(ctx, func() { close(ready) }) }() // ends with cancel; the cleanup waits
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		t.Fatal("etcd is not ready after 30 s")
	}
	value := strings.Repeat("x", mib/4)
	var err error
	for range 200 {
		if _, err = b.Client().Put(t.Context(), "same", value); err != nil {
			break
		}
	}
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Fatalf("got %v, want the store full", err)
	}
	if err := Probe(t.Context(), b.Client()); fault.Reason(err) != ReasonFull {
		t.Fatalf("got %v, want the reason %s", err, ReasonFull)
	}
	if err := b.Relieve(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := Probe(t.Context(), b.Client()); err != nil {
		t.Errorf("got %v, want it to serve", err)
	}
	if _, err := b.Client().Put(t.Context(), "same", value); err != nil {
		t.Errorf("got %v, want to write again", err)
	}
}
