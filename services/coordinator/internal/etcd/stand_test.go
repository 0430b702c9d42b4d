package etcd

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// Alone it leads at once. Its clock here ticks so slowly that no election begins by
// itself before the limit.
func TestStand_OnlyMemberDoesNotWaitForAnElection(t *testing.T) {
	t.Parallel()
	b := New(Config{Dir: filepath.Join(t.TempDir(), "etcd")}, Deps{Log: slog.New(slog.DiscardHandler), NotReady: func(string) {}})
	for range 2 { // a new store, and one with a log to apply first
		cfg, err := b.embedConfig()
		if err != nil {
			t.Fatal(err)
		}
		cfg.TickMs, cfg.ElectionMs = 10_000, 50_000
		standOnce(t, b, cfg)
	}
}

func standOnce(t *testing.T, b *Backend, cfg *embed.Config) {
	t.Helper()
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
	defer cancel()
	if err := b.lead(ctx, server.Server); err != nil {
		t.Fatal(err)
	}
	if got, want := server.Server.Lead(), uint64(server.Server.MemberID()); got != want {
		t.Errorf("got leader %x, want the member itself, %x", got, want)
	}
}
