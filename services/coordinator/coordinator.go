// Package coordinator is the process that holds the cluster together: the
// records of what people ask for, the sessions of nodes, and the decision where
// sandboxes run.
//
// It owns nothing on a node and keeps nothing in memory that etcd does not have:
// any number of it may serve one etcd. It must never start, stop or move a
// workload itself; it writes records, and nodes act on them. In the trail it is
// where a person's request enters, and what every node follows.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/process"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/rpc/validate"
	"staddle.internal/kit/run"
	"staddle.internal/kit/version"

	"staddle.internal/services/coordinator/internal/admit"
	"staddle.internal/services/coordinator/internal/api"
	"staddle.internal/services/coordinator/internal/etcd"
	"staddle.internal/services/coordinator/internal/mirror"
	"staddle.internal/services/coordinator/internal/pki"
	"staddle.internal/services/coordinator/internal/secret"
	"staddle.internal/services/coordinator/internal/session"
	"staddle.internal/services/coordinator/internal/settings"
	"staddle.internal/services/coordinator/internal/store"
)

// probePeriod is how often a running coordinator asks its store for its health.
const probePeriod = 10 * time.Second

// Main runs the coordinator and returns its exit code.
func Main() int {
	var cfg settings.Settings
	frame := process.Frame{
		Name: "coordinator",
		File: "coordinator.yaml",
		Load: func(path string) (err error) {
			cfg, err = settings.Load(path)
			return err
		},
		OwnGate: true, // it waits for nobody on this machine
	}
	return frame.Main(func(_ context.Context, p *process.Process) ([]run.Member, error) {
		return build(p, cfg)
	})
}

// parts are what the members share.
type parts struct {
	*process.Process
	cfg       settings.Settings
	authority *pki.Authority
	backend   *etcd.Backend
	records   *store.Store // made when etcd answers, before anything uses it
	mirror    *mirror.Mirror
}

// build makes the members: identities, the store, the copy in memory, the loops
// of the leader, and the API.
func build(p *process.Process, cfg settings.Settings) ([]run.Member, error) {
	s := &parts{Process: p, cfg: cfg}
	s.authority = pki.New(identities(p, cfg), pki.Deps{Log: p.Log})
	s.backend = etcd.New(etcd.Config{
		Dir:       filepath.Join(p.Paths.Var(p.Name), "etcd"),
		Endpoints: cfg.Etcd.Endpoints, CA: cfg.Etcd.CA, Certificate: cfg.Etcd.Certificate, Key: cfg.Etcd.Key,
	}, etcd.Deps{Log: p.Log, NotReady: func(reason string) { p.Status.SetExternal(reason, "etcd") }})
	s.mirror = mirror.New(mirror.Config{}, mirror.Deps{
		Store: lateStore{s.store}, Log: p.Log, NotReady: s.block("mirror"),
	})
	server, err := s.server()
	if err != nil {
		return nil, err
	}
	return []run.Member{
		{Name: "pki", Run: s.authority.Run},
		{Name: "etcd", Run: s.runStore, StopTimeout: 20 * time.Second},
		{Name: "mirror", Run: s.mirror.Run},
		{Name: "leader", Run: s.leader().Run, StopTimeout: 15 * time.Second},
		{Name: "probe", Run: s.probe},
		s.listener(server),
	}, nil
}

func (s *parts) store() *store.Store { return s.records }

// runStore opens etcd and lays the store over it before it is ready.
func (s *parts) runStore(ctx context.Context, ready func()) error {
	return s.backend.Run(ctx, func() {
		s.records = store.New(s.backend.Client(), s.cfg.Etcd.Prefix)
		ready()
	})
}

// block tells the status of one cause; an empty reason takes it back.
func (s *parts) block(source string) func(string) {
	return func(reason string) {
		if reason == "" {
			s.Status.Unblock(source)
			return
		}
		s.Status.Block(source, reason)
	}
}

// server is the API over TCP. Domain services are served here only: whoever is
// local shows a certificate like everybody else.
func (s *parts) server() (*rpc.Server, error) {
	server, err := rpc.NewServer(rpc.ServerConfig{
		Process: s.Name, Version: version.String(), Log: s.Log, Level: s.Level, Status: s.Status,
		Peers: rpc.NewPeers(s.Config.Users), TLS: s.authority.Server(),
	})
	if err != nil {
		return nil, err
	}
	checks, err := validate.New(
		&coordinatorv1.CreateResourceRequest{}, &coordinatorv1.UpdateResourceRequest{}, &coordinatorv1.UpdateResourceStatusRequest{},
		&coordinatorv1.GetResourceRequest{}, &coordinatorv1.ListResourcesRequest{}, &coordinatorv1.DeleteResourceRequest{},
		&coordinatorv1.WatchResourcesRequest{}, &coordinatorv1.RenewSessionRequest{}, &coordinatorv1.EndSessionRequest{},
		&coordinatorv1.PutSecretRequest{}, &coordinatorv1.DeleteSecretRequest{}, &coordinatorv1.ListSecretsRequest{},
		&coordinatorv1.RotateSecretKeyRequest{}, &coordinatorv1.ResolveSecretsRequest{},
	)
	if err != nil {
		return nil, err
	}
	server.Use(checks)
	coordinatorv1.RegisterResourceServiceServer(server.GRPC(),
		api.New(api.Config{TrustDomain: s.cfg.TrustDomain, ServicePrefix: s.cfg.ServicePrefix}, api.Deps{Store: s.store, Mirror: s.mirror}))
	coordinatorv1.RegisterSessionServiceServer(server.GRPC(),
		session.New(session.Config{TrustDomain: s.cfg.TrustDomain, Refused: refused(s.cfg)}, session.Deps{Store: s.store}))
	coordinatorv1.RegisterSecretServiceServer(server.GRPC(), secret.New(
		secret.Config{KeyFile: filepath.Join(s.Paths.Var(s.Name), "secrets.keys")},
		secret.Deps{Store: s.store, Door: admit.Door{TrustDomain: s.cfg.TrustDomain, Mirror: s.mirror}, Log: s.Log}))
	return server, nil
}

// listener serves the API once everything before it is ready.
func (s *parts) listener(server *rpc.Server) run.Member {
	return run.Member{Name: "listener", Run: func(ctx context.Context, ready func()) error {
		l, err := s.listen(ctx)
		if err != nil {
			return err
		}
		s.Log.Info("API bound", logging.Path(l.Addr().String()))
		return server.Member(l).Run(ctx, ready)
	}}
}

// passedSocket is the name of the listening socket of the API where whoever
// supervises has made it: callers then wait for a restart instead of being refused.
const passedSocket = "coordinator.tcp"

// listen takes the socket that was passed, if it is at the configured address, or
// makes it.
func (s *parts) listen(ctx context.Context) (net.Listener, error) {
	if l, ok := s.FDs.Listener(passedSocket); ok {
		if rpc.ListensAt(l, s.cfg.ListenAddress) {
			return l, nil
		}
		s.Log.Warn("passed socket left", logging.Reason("it is at another address than the configured one"), logging.Path(l.Addr().String()))
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("leave passed socket: %w", err)
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.cfg.ListenAddress)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.cfg.ListenAddress, err)
	}
	return l, nil
}

// probe keeps the status true about the store while nobody calls.
func (s *parts) probe(ctx context.Context, ready func()) error {
	ready()
	tick := time.NewTicker(probePeriod)
	defer tick.Stop()
	block := s.block("store")
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			block("the store does not serve: " + err.Error())
		} else {
			block("")
		}
	}
}

// look asks the store for its health, and makes room where it can.
func (s *parts) look(ctx context.Context) error {
	err := etcd.Probe(ctx, s.backend.Client())
	if fault.Reason(err) != etcd.ReasonFull {
		return err
	}
	s.Log.Warn("store full", logging.Err(err))
	if relief := s.backend.Relieve(ctx); relief != nil {
		return errors.Join(err, relief)
	}
	return nil
}

// refused are the identities that are let in no more, as certificates say them.
func refused(cfg settings.Settings) []string {
	var all []string
	for _, who := range cfg.RefusedIdentities {
		all = append(all, "spiffe://"+cfg.TrustDomain+"/"+who)
	}
	return all
}

// identities are those that this machine holds.
func identities(p *process.Process, cfg settings.Settings) pki.Config {
	host, _, err := net.SplitHostPort(cfg.ListenAddress)
	names := append([]string{"localhost", "127.0.0.1", "::1"}, cfg.ServerNames...)
	if ip := net.ParseIP(host); err == nil && (ip == nil || !ip.IsUnspecified()) {
		names = append(names, host)
	}
	node := cfg.Bootstrap.Node
	if node == "" {
		node = p.Config.Name
	}
	keyOwner := cfg.Bootstrap.NodeKeyOwner
	if id, ok := p.Config.Users.ID("clusteraccess"); ok && keyOwner == 0 {
		keyOwner = id
	}
	out := pki.Config{
		Dir: filepath.Join(p.Paths.Etc(), "pki"), TrustDomain: cfg.TrustDomain, Name: p.Config.Name, ServerNames: names, Refused: refused(cfg),
		Identities: []pki.Identity{
			{Kind: "node", Name: node, File: "node", Owner: keyOwner},
			{Kind: "user", Name: cfg.Bootstrap.Operator, File: "operator", Owner: cfg.Bootstrap.OperatorKeyOwner},
		},
	}
	for _, n := range cfg.Bootstrap.Nodes {
		out.Identities = append(out.Identities, pki.Identity{Kind: "node", Name: n, File: filepath.Join("nodes", n, "node")})
	}
	return out
}
