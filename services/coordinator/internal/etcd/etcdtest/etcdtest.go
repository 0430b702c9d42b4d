// Package etcdtest gives tests a real etcd of their own, in a folder that goes
// with the test. It must never be imported by what is shipped. In the trail it
// stands where the backend does.
package etcdtest

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"staddle.internal/services/coordinator/internal/etcd"
)

// Limit is how long a test waits for anything.
const Limit = 30 * time.Second

// Start returns a client of a fresh etcd, which ends with the test.
func Start(t *testing.T) *clientv3.Client {
	t.Helper()
	b := etcd.New(etcd.Config{Dir: filepath.Join(t.TempDir(), "etcd")},
		etcd.Deps{Log: slog.New(slog.DiscardHandler), NotReady: func(string) {}})
	Run(t, "etcd", b.Run)
	return b.Client()
}

// Run starts a part and waits until it is ready; it ends with the test.
func Run(t *testing.T, name string, part func(context.Context, func()) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- part(ctx, sync.OnceFunc(func() { close(ready) })) }() // ends with cancel; the cleanup waits
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(Limit):
			t.Errorf("%s still runs after %s", name, Limit)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("%s ended: %v", name, err)
	case <-time.After(Limit):
		t.Fatalf("%s is not ready after %s", name, Limit)
	}
}

// Eventually waits until ok, and prints the last value if it never is.
func Eventually[T any](t *testing.T, what string, ask func() T, ok func(T) bool) T {
	t.Helper()
	end := time.Now().Add(Limit)
	for {
		v := ask()
		if ok(v) {
			return v
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not after %s, last value %+v", what, Limit, v)
		}
		pause := time.NewTimer(10 * time.Millisecond)
		<-pause.C
	}
}
