// Package authority owns the answer to "until when may this node act for the
// cluster": the time since boot at which the last acknowledged renewal of its
// session was sent.
//
// It is kept in a file that ends with the boot, so that a restart of this process
// forgets nothing and nothing is written to disk at rest. The time of sending is
// what counts, because the coordinator cannot have counted from earlier. It must
// never move back within one boot. In the trail it is what sandboxhost watches to
// obey a sandbox's disconnect policy.
package authority

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/logging"
	"staddle.internal/kit/watch"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
)

// Config says where the authority is kept.
type Config struct {
	// Path of the file, in a folder that is emptied by a reboot. The folder is
	// made if its parent exists.
	Path string
	// BootID of the running kernel.
	BootID string
}

// Authority is the node's authority. Its methods may be called from any goroutine.
type Authority struct {
	cfg Config
	log *slog.Logger
	hub *watch.Hub[struct{}, *clusteraccessv1.WatchAuthorityResponse]

	mu      sync.Mutex // guards what follows, and the order of writes
	newest  time.Duration
	writing bool // the last write succeeded, or there was none
}

// Open reads what this boot knows already.
func Open(cfg Config, log *slog.Logger) *Authority {
	a := &Authority{cfg: cfg, log: log, hub: watch.New[struct{}, *clusteraccessv1.WatchAuthorityResponse](), writing: true}
	known := &clusteraccessv1.WatchAuthorityResponse{BootId: cfg.BootID}
	kept, err := a.read()
	switch {
	case err == nil && kept.GetBootId() == cfg.BootID:
		known = kept
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		log.Warn("authority not read", logging.Path(cfg.Path), logging.Err(err))
	}
	a.newest = known.GetRenewedAt().AsDuration()
	a.hub.Set(struct{}{}, known)
	return a
}

// Renewed says that a renewal sent at a time since boot was acknowledged.
func (a *Authority) Renewed(sentAt, ttl time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if sentAt <= a.newest {
		return
	}
	a.newest = sentAt
	now := &clusteraccessv1.WatchAuthorityResponse{
		BootId: a.cfg.BootID, RenewedAt: durationpb.New(sentAt), Ttl: durationpb.New(ttl),
	}
	a.hub.Set(struct{}{}, now)
	err := a.write(now)
	if err != nil && a.writing {
		a.log.Warn("authority not kept", logging.Path(a.cfg.Path), logging.Err(err))
	}
	a.writing = err == nil
}

// Follow calls tell with the authority now and after each change, until ctx ends
// or tell fails. A slow one skips states.
func (a *Authority) Follow(ctx context.Context, tell func(*clusteraccessv1.WatchAuthorityResponse) error) error {
	for ev := range a.hub.Subscribe(ctx) {
		if ev.Kind == watch.Synced {
			continue
		}
		if err := tell(ev.Value); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

func (a *Authority) read() (*clusteraccessv1.WatchAuthorityResponse, error) {
	raw, err := os.ReadFile(a.cfg.Path)
	if err != nil {
		return nil, err
	}
	kept := &clusteraccessv1.WatchAuthorityResponse{}
	return kept, proto.Unmarshal(raw, kept)
}

// write replaces the file. It is not synced: it need not survive the kernel.
func (a *Authority) write(now *clusteraccessv1.WatchAuthorityResponse) error {
	raw, err := proto.Marshal(now)
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Dir(a.cfg.Path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	fresh := a.cfg.Path + ".new"
	if err := os.WriteFile(fresh, raw, 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, a.cfg.Path)
}
