// Package etcd owns the connection to the cluster's state: an etcd inside this
// process for one machine, or the cluster that the configuration names.
//
// The etcd inside listens nowhere: it is spoken to by function calls, so that
// nobody else on the machine reaches it. It must never know what the keys mean.
// In the trail it lies under the store and above the disk.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"staddle.internal/kit/logging"
)

const (
	// quota bounds the store on disk. Past it etcd refuses writes.
	quota = 2 << 30
	// retention is how long old revisions are kept for pages and watchers.
	retention = "1h"
	// startLimit bounds the wait for the etcd inside to lead itself.
	startLimit = time.Minute
)

// Config says where the state is.
type Config struct {
	// Dir is where the etcd inside keeps its files.
	Dir string
	// Endpoints of an etcd cluster, as URLs. Empty means the etcd inside.
	Endpoints []string
	// TLS files for the endpoints. Empty means none.
	CA, Certificate, Key string
	// Quota in bytes of the etcd inside. 0 means 2 GiB.
	Quota int64
}

// Deps is what a backend needs.
type Deps struct {
	Log *slog.Logger
	// NotReady is told why the state cannot be reached yet.
	NotReady func(reason string)
}

// Backend is the state of the cluster. Client may be used once Run is ready.
type Backend struct {
	cfg    Config
	deps   Deps
	client *clientv3.Client
	server *embed.Etcd // nil for a cluster elsewhere
}

// New returns a backend that is not open yet.
func New(cfg Config, deps Deps) *Backend {
	if cfg.Quota == 0 {
		cfg.Quota = quota
	}
	return &Backend{cfg: cfg, deps: deps}
}

// Embedded reports whether the etcd is inside this process, which is then the
// only coordinator.
func (b *Backend) Embedded() bool { return len(b.cfg.Endpoints) == 0 }

// Client returns the open connection; nil before Run was ready.
func (b *Backend) Client() *clientv3.Client { return b.client }

// Run opens the state, calls ready when it answers, and closes it when ctx ends.
func (b *Backend) Run(ctx context.Context, ready func()) error {
	if b.Embedded() {
		return b.runEmbedded(ctx, ready)
	}
	return b.runRemote(ctx, ready)
}

func (b *Backend) runEmbedded(ctx context.Context, ready func()) error {
	cfg, err := b.embedConfig()
	if err != nil {
		return err
	}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start etcd in %s: %w", b.cfg.Dir, err)
	}
	defer server.Close()
	if err := b.lead(ctx, server.Server); err != nil {
		return err
	}
	b.client, b.server = v3client.New(server.Server), server
	ready()
	select {
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), closeClient(b.client))
	case err := <-server.Err():
		return errors.Join(fmt.Errorf("run etcd: %w", err), closeClient(b.client))
	}
}

// lead returns nil once the etcd inside leads itself and answers.
func (b *Backend) lead(ctx context.Context, server *etcdserver.EtcdServer) error {
	limited, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not ready after %s", startLimit))
	defer cancel()
	if len(server.Cluster().Members()) == 1 {
		if err := stand(limited, server); err != nil {
			return fmt.Errorf("start etcd in %s: %w", b.cfg.Dir, err)
		}
	}
	select {
	case <-server.ReadyNotify():
		return nil
	case <-server.StopNotify():
		return fmt.Errorf("start etcd in %s: it stopped", b.cfg.Dir)
	case <-limited.Done():
		return fmt.Errorf("start etcd in %s: %w", b.cfg.Dir, context.Cause(limited))
	}
}

// embedConfig describes a cluster of one. The peer URL is a name that nobody
// listens on: it only identifies the member.
func (b *Backend) embedConfig() (*embed.Config, error) {
	if err := os.MkdirAll(b.cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder of etcd: %w", err)
	}
	cfg := embed.NewConfig()
	cfg.Name = "coordinator"
	cfg.Dir = b.cfg.Dir
	cfg.ListenPeerUrls, cfg.ListenClientUrls = nil, nil
	member := url.URL{Scheme: "http", Host: "localhost:1"}
	cfg.AdvertisePeerUrls = []url.URL{member}
	cfg.AdvertiseClientUrls = []url.URL{member}
	cfg.InitialCluster = cfg.Name + "=" + member.String()
	cfg.AutoCompactionMode = embed.CompactorModePeriodic
	cfg.AutoCompactionRetention = retention
	cfg.QuotaBackendBytes = b.cfg.Quota
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapLogger(b.deps.Log))
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure etcd: %w", err)
	}
	return cfg, nil
}

// redial keeps the wait for an endpoint that comes back short.
var redial = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: 2 * time.Second,
}

func (b *Backend) runRemote(ctx context.Context, ready func()) error {
	tls, err := clientTLS(b.cfg)
	if err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            b.cfg.Endpoints,
		TLS:                  tls,
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 5 * time.Second,
		DialOptions:          []grpc.DialOption{grpc.WithConnectParams(redial)},
		Logger:               zapLogger(b.deps.Log),
	})
	if err != nil {
		return fmt.Errorf("make client of etcd: %w", err)
	}
	if err := b.reach(ctx, client); err != nil {
		return errors.Join(err, closeClient(client))
	}
	b.client = client
	ready()
	<-ctx.Done()
	return errors.Join(context.Cause(ctx), closeClient(client))
}

// reach returns nil once etcd has answered a linearised read. What lies outside
// this machine is waited for without limit, with the reason told.
func (b *Backend) reach(ctx context.Context, client *clientv3.Client) error {
	began := time.Now()
	b.deps.NotReady("waiting for etcd")
	for {
		err := Probe(ctx, client)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		b.deps.NotReady(fmt.Sprintf("waiting for etcd for %s: %v", time.Since(began).Round(time.Second), err))
		b.deps.Log.Warn("etcd missed", logging.Err(err))
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

func closeClient(c *clientv3.Client) error {
	if err := c.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close client of etcd: %w", err)
	}
	return nil
}
