// Package sandboxhost holds the two processes of this module: sandboxhost, which
// keeps the sandboxes of the node, and sandbox-agent, which makes them match what
// the cluster wishes for.
//
// It is where parts are joined: engine, journal, host and API for the one, the
// neighbours and the loop for the other. It must hold no rule about sandboxes. In
// the trail it stands before everything; a command's main calls Main or AgentMain.
package sandboxhost

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/config"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/process"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/rpc/validate"
	"staddle.internal/kit/run"
	"staddle.internal/services/sandboxhost/internal/api"
	"staddle.internal/services/sandboxhost/internal/copying"
	"staddle.internal/services/sandboxhost/internal/dns"
	"staddle.internal/services/sandboxhost/internal/engine/containerd"
	"staddle.internal/services/sandboxhost/internal/event"
	"staddle.internal/services/sandboxhost/internal/exec"
	"staddle.internal/services/sandboxhost/internal/forward"
	"staddle.internal/services/sandboxhost/internal/grant"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/logs"
	"staddle.internal/services/sandboxhost/internal/permit"
	"staddle.internal/services/sandboxhost/internal/secret"
	"staddle.internal/services/sandboxhost/internal/stats"

	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Name is the name of the process sandboxhost.
const Name = "sandboxhost"

// Sources of not being ready, for Status.
const (
	sourceEngine   = "engine"
	sourceAdoption = "adoption"
	sourceNames    = "names"
)

// Main runs the process sandboxhost and returns its exit code.
func Main() int { return process.Main(Name, build) }

// build joins the parts. They start in this order: the engine reaches containerd
// and finds its network again, the journal is opened, names are answered for, the host
// adopts what there is, and then grants are returned as sandboxes end, and the node's
// authority is followed.
func build(_ context.Context, p *process.Process) ([]run.Member, error) {
	boot, err := boottime.ID()
	if err != nil {
		return nil, err
	}
	cluster, err := p.Dial("clusteraccess")
	if err != nil {
		return nil, err
	}
	rules, err := newRules()
	if err != nil {
		return nil, err
	}
	notes := &kept{options: journal.Options{
		Path: filepath.Join(p.Paths.Var(Name), host.JournalFile), Kind: host.JournalKind, Version: host.JournalVersion, Log: p.Log,
	}}
	initProgram, err := p.Paths.Binary("init")
	if err != nil {
		return nil, fmt.Errorf("find the first process of containers: %w", err)
	}
	eng := newEngine(p, initProgram)
	happenings := event.New(filepath.Join(p.Paths.Var(Name), event.FileName), p.Log)
	grants := grant.New(notes, p.Log)
	short := newMonitor(p, eng)
	access := clusteraccessv1.NewClusterAccessServiceClient(cluster)
	h := host.New(
		host.Config{
			Node:       p.Config.Name,
			BootID:     boot,
			Folder:     p.Paths.Var(Name),
			Rules:      rulesOf(p.Config),
			BootHold:   time.Duration(p.Config.Sandboxes.BootHold),
			TidyPeriod: time.Duration(p.Config.Sandboxes.TidyPeriod),
		},
		host.Deps{
			Engine: eng, Journal: notes, Log: p.Log, Now: boottime.Now, Disks: grants.Disks, Refusal: short.Refusal,
			Secrets:  secret.NewFetcher(eng.Secrets(), access),
			Note:     happenings.Note,
			NotReady: func(reason string) { p.Status.Block(sourceAdoption, reason) },
		})
	eng.Logs().OnTrouble(func(t logs.Trouble) { h.Warn(t.Of.UID, t.Of.Container, t.Reason, t.Message) })
	p.Server.Use(rules)
	api.Register(p.Server.GRPC(), h, eng.Logs())
	api.RegisterGrants(p.Server.GRPC(), grants)
	api.RegisterHolds(p.Server.GRPC(), h)
	api.RegisterCheck(p.Server.GRPC(), h)
	api.RegisterEvents(p.Server.GRPC(), happenings)
	api.RegisterPressure(p.Server.GRPC(), short, eng)
	services := newServices(p, notes, h, eng)
	api.RegisterServices(p.Server.GRPC(), services)
	names := dns.NewNames()
	people := exec.New(h, eng, eng.Logs(), p.Log)
	people.Register(p.Server.GRPC())
	ports := forward.New(h, eng, p.Log)
	ports.Register(p.Server.GRPC())
	copies := copying.New(h, eng, p.Log)
	copies.Register(p.Server.GRPC())
	images := newImages(p, eng, h)
	sandboxhostv1.RegisterImageServiceServer(p.Server.GRPC(), images.server)
	short.Relieve(newRelief(p, eng, images))
	usage := stats.New(stats.Deps{
		Engine: eng, Sandboxes: h.List, Machine: func() *sandboxhostv1.Usage { return stats.Machine("/proc") }, CPUs: runtime.NumCPU(), Log: p.Log,
	})
	api.RegisterStats(p.Server.GRPC(), usage)
	exports := newExports(p, h, eng)
	series, err := newMetrics(p, h, usage, exports, eng.Logs())
	if err != nil {
		return nil, err
	}
	follow := authority{client: access, boot: boot, log: p.Log, tell: h.SetAuthority}
	members := []run.Member{
		{Name: "engine", Run: eng.Run},
		{Name: "journal", Run: notes.run},
		{Name: "events", Run: happenings.Run},
		{Name: "grants", Run: func(ctx context.Context, ready func()) error {
			if err := grants.Load(); err != nil {
				return err
			}
			ready()
			<-ctx.Done()
			return context.Cause(ctx)
		}},
		{Name: "pressure", Run: short.Run},
		{Name: "wishes for services", Run: services.Load},
		{Name: "names", Run: runNames(p, h, names, services)},
		{Name: "host", Run: func(ctx context.Context, ready func()) error {
			return h.Run(ctx, func() {
				p.Status.Unblock(sourceAdoption)
				ready()
			})
		}},
		{Name: "services", Run: func(ctx context.Context, ready func()) error {
			return services.Run(ctx, func() {
				names.Adopted() // who is behind services is known now, too
				ready()
			})
		}},
		{Name: "exec", Run: people.Run},
		{Name: "forward", Run: ports.Run},
		{Name: "copying", Run: copies.Run},
		{Name: "images", Run: images.run},
		{Name: "stats", Run: usage.Run},
		{Name: "metrics", Run: series},
		{Name: "returns", Run: func(ctx context.Context, ready func()) error { return grants.Run(ctx, h, ready) }},
		{Name: "authority", Run: follow.run},
	}
	for _, e := range exports {
		members = append(members, run.Member{Name: "export of logs over " + e.Name(), Run: e.Run})
	}
	return members, nil
}

// newRules are the rules for what people and other nodes ask for.
func newRules() (rpc.Interceptor, error) {
	return validate.New(&sandboxhostv1.EnsureSandboxRequest{}, &sandboxhostv1.EnsureHoldRequest{}, &sandboxhostv1.EnsureServiceRequest{}, &sandboxhostv1.ExecRequest{},
		&sandboxhostv1.ForwardRequest{}, &sandboxhostv1.CopyOutRequest{}, &sandboxhostv1.CopyInRequest{},
		&sandboxhostv1.GetStatsRequest{}, &sandboxhostv1.WatchStatsRequest{}, &sandboxhostv1.ReadEventsRequest{})
}

// rulesOf are what this node allows sandboxes.
func rulesOf(c *config.Node) permit.Rules {
	return permit.Rules{
		HostNetwork: c.AllowHostNetwork, SandboxNetwork: !c.Network.Disable,
		Privileged: c.AllowPrivileged, Unconfined: c.AllowUnconfined, HostPaths: c.AllowHostPaths,
		Devices: c.AllowDevices, Capabilities: c.AllowCapabilities, Sysctls: c.AllowSysctls,
		UserNamespaces: c.UserNamespaces.Ranges > 0,
	}
}

func newEngine(p *process.Process, initProgram string) *containerd.Engine {
	return containerd.New(
		containerd.Config{
			Address:        p.Config.Containerd.Address,
			Namespace:      p.Config.Containerd.Namespace,
			State:          filepath.Join(p.Paths.Run(), config.ContainerdName),
			Paths:          p.Paths,
			CgroupParent:   p.Config.Sandboxes.CgroupParent,
			Network:        p.Config.Network,
			Images:         p.Config.Images,
			Logs:           p.Config.Logs,
			Node:           p.Config.Name,
			Rules:          rulesOf(p.Config),
			Init:           initProgram,
			UserNamespaces: p.Config.UserNamespaces,
		},
		containerd.Deps{
			Log: p.Log, FDs: p.FDs,
			NotReady: func(reason string) {
				if reason == "" {
					p.Status.Unblock(sourceEngine)
					return
				}
				p.Status.Block(sourceEngine, reason, "containerd")
			},
		})
}
