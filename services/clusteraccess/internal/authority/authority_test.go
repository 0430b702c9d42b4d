package authority

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
)

var quiet = slog.New(slog.DiscardHandler)

// now returns the authority as a watcher first sees it.
func now(t *testing.T, a *Authority) *clusteraccessv1.WatchAuthorityResponse {
	t.Helper()
	var got *clusteraccessv1.WatchAuthorityResponse
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := a.Follow(ctx, func(w *clusteraccessv1.WatchAuthorityResponse) error { got = w; return enough })
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	return got
}

func TestAuthority_OnlyMovesForward(t *testing.T) {
	a := Open(Config{Path: filepath.Join(t.TempDir(), "ca", "authority"), BootID: "b1"}, quiet)
	if got := now(t, a); got.GetRenewedAt() != nil || got.GetBootId() != "b1" {
		t.Errorf("before any renewal: %v", got)
	}
	a.Renewed(20*time.Second, 15*time.Second)
	a.Renewed(10*time.Second, 15*time.Second) // an answer that came late
	if got := now(t, a).GetRenewedAt().AsDuration(); got != 20*time.Second {
		t.Errorf("authority is of %v, want 20s", got)
	}
}

func TestAuthority_OutlivesTheProcessAndEndsWithTheBoot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca", "authority")
	Open(Config{Path: path, BootID: "b1"}, quiet).Renewed(20*time.Second, 15*time.Second)
	again := Open(Config{Path: path, BootID: "b1"}, quiet)
	if got := now(t, again); got.GetRenewedAt().AsDuration() != 20*time.Second || got.GetTtl().AsDuration() != 15*time.Second {
		t.Errorf("after a restart: %v", got)
	}
	again.Renewed(10*time.Second, 15*time.Second)
	if got := now(t, again).GetRenewedAt().AsDuration(); got != 20*time.Second {
		t.Errorf("moved back to %v by a renewal of the life before", got)
	}
	booted := Open(Config{Path: path, BootID: "b2"}, quiet)
	if got := now(t, booted); got.GetRenewedAt() != nil || got.GetBootId() != "b2" {
		t.Errorf("after a reboot: %v", got)
	}
	booted.Renewed(3*time.Second, 15*time.Second)
	if got := now(t, booted).GetRenewedAt().AsDuration(); got != 3*time.Second {
		t.Errorf("first renewal after a reboot is of %v, want 3s", got)
	}
}

func TestAuthority_AGarbledFileIsNoAuthority(t *testing.T) {
	path := filepath.Join(t.TempDir(), "authority")
	if err := os.WriteFile(path, []byte("\xff\xffgarbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := now(t, Open(Config{Path: path, BootID: "b1"}, quiet)); got.GetRenewedAt() != nil {
		t.Errorf("a garbled file gave %v", got)
	}
}
