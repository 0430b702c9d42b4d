package etcd

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestBackend_KeepsWhatWasWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	for life := range 2 {
		b := New(Config{Dir: dir}, Deps{Log: slog.New(slog.DiscardHandler), NotReady: func(string) {}})
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- b.Run(ctx, func() { close(ready) }) }() // ends with cancel, waited for below
		select {
		case <-ready:
		case err := <-done:
			t.Fatal(err)
		case <-time.After(30 * time.Second):
			t.Fatal("etcd is not ready after 30 s")
		}
		got, err := b.Client().Get(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if int(got.Count) != life {
			t.Errorf("life %d: got %d keys, want %d", life, got.Count, life)
		}
		if err := Probe(t.Context(), b.Client()); err != nil {
			t.Error(err)
		}
		lease, err := b.Client().Grant(t.Context(), 5)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Client().KeepAliveOnce(t.Context(), lease.ID); err != nil {
			t.Error(err)
		}
		if _, err := b.Client().Put(t.Context(), "k", "v", clientv3.WithLease(0)); err != nil {
			t.Fatal(err)
		}
		cancel()
		<-done
	}
}
