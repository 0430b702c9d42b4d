// Package clusteraccess is the process that holds the node's link to the
// coordinator: the mirror of the node's records, the way of statuses to the
// coordinator, and the node's authority; and the gateway, by which others reach the
// node.
//
// It is ready when its socket serves and its mirror is open; whether the
// coordinator is reached is the second health name "link", whether the gateway takes
// calls the third, "gateway". It must never touch
// containers or the host's network, and never decide what its records ask for. In
// the trail of a sandbox it stands between the coordinator and sandbox-agent.
package clusteraccess

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/listening"
	"staddle.internal/kit/process"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/rpc/validate"
	"staddle.internal/kit/run"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"

	"staddle.internal/services/clusteraccess/internal/api"
	"staddle.internal/services/clusteraccess/internal/authority"
	"staddle.internal/services/clusteraccess/internal/credentials"
	"staddle.internal/services/clusteraccess/internal/gateway"
	"staddle.internal/services/clusteraccess/internal/link"
	"staddle.internal/services/clusteraccess/internal/mirror"
	"staddle.internal/services/clusteraccess/internal/refusal"
	"staddle.internal/services/clusteraccess/internal/report"
)

// Name of the process.
const Name = "clusteraccess"

// Health names beside readiness: whether the coordinator is reached, and whether the
// gateway takes calls.
const (
	healthLink    = "link"
	healthGateway = "gateway"
)

// gatewaySocket is the name under which whoever supervises passes the gateway's
// listener, or keeps it.
const gatewaySocket = "clusteraccess.tcp"

// Main runs the process and returns its exit code.
func Main() int { return process.Main(Name, build) }

func build(_ context.Context, p *process.Process) ([]run.Member, error) {
	bootID, err := boottime.ID()
	if err != nil {
		return nil, err
	}
	cfg := p.Config.Coordinator
	files := credentials.Files{CA: cfg.CA, Certificate: cfg.Certificate, Key: cfg.Key}
	conn, err := link.Dial(cfg.Address, files, p.Log)
	if err != nil {
		return nil, err
	}
	coordinator := link.NewCoordinator(conn, link.Self{Instance: instance(bootID), Labels: p.Config.Labels})
	reporter := report.New(coordinator, p.Log)
	copied := mirror.New(mirror.Config{Path: filepath.Join(p.Paths.Var(Name), "mirror.db"), BootID: bootID}, mirror.Deps{
		Log: p.Log,
		LinkChanged: func(live bool, _ string) {
			p.Status.SetHealth(healthLink, live)
			if live {
				reporter.Hurry()
			}
		},
	})
	until := authority.Open(authority.Config{Path: filepath.Join(p.Paths.Run(), Name, "authority"), BootID: bootID}, p.Log)

	refused := refusal.Open(refusal.Config{Path: filepath.Join(p.Paths.Var(Name), "refused")}, p.Log)
	checks, err := validate.New(requests()...)
	if err != nil {
		return nil, err
	}
	p.Server.Use(checks)
	clusteraccessv1.RegisterClusterAccessServiceServer(p.Server.GRPC(), api.New(api.Deps{
		Mirror: copied, Coordinator: coordinator, Reporter: reporter, Authority: until, Refusals: refused,
	}))
	p.Status.SetHealth(healthLink, false)
	follower := link.NewFollower(link.Config{Address: cfg.Address, Instance: instance(bootID)}, link.Deps{Conn: conn, Mirror: copied, Log: p.Log})
	members := []run.Member{
		connection(conn),
		{Name: "mirror", Run: copied.Run},
		{Name: "report", Run: reporter.Run},
		{Name: "link", Run: follower.Run},
	}
	passed := listening.Passed(p.FDs, gatewaySocket, p.Config.ListenAddress, p.Log)
	if p.Config.ListenAddress != "" {
		members = append(members, door(p, files, passed, refused))
	}
	return members, nil
}

// door is the member that takes calls from other machines for the node's processes.
func door(p *process.Process, files credentials.Files, passed net.Listener, refused *refusal.List) run.Member {
	p.Status.SetHealth(healthGateway, false)
	g := gateway.New(gateway.Config{Address: p.Config.ListenAddress}, gateway.Deps{
		Files: files, Listener: passed, Keep: listening.Keeper(p.FDs, gatewaySocket, p.Log), Refusals: refused, Log: p.Log,
		Serving: func(ok bool) { p.Status.SetHealth(healthGateway, ok) },
		Dial: func(name string) (*grpc.ClientConn, error) {
			return rpc.Dial(p.Paths.Socket(name), rpc.DialConfig{
				Process: Name, Log: p.Log, FailFast: true, Verbatim: true, Options: []grpc.DialOption{gateway.CallOptions()},
			})
		},
	})
	return run.Member{Name: "gateway", Run: g.Run, StopTimeout: gateway.StopTimeout}
}

// connection closes the connection to the coordinator after all who use it.
func connection(conn *grpc.ClientConn) run.Member {
	return run.Member{Name: "connection", Run: func(ctx context.Context, ready func()) error {
		ready()
		<-ctx.Done()
		if err := conn.Close(); err != nil {
			return fmt.Errorf("close connection to the coordinator: %w", err)
		}
		return context.Cause(ctx)
	}}
}

// instance names this machine in this boot. A machine without an id of its own
// is still told apart by its boot.
func instance(bootID string) string {
	machine, err := os.ReadFile("/etc/machine-id")
	if id := strings.TrimSpace(string(machine)); err == nil && len(id) >= 8 && len(id) <= 64 {
		return id + "/" + bootID
	}
	return "unknown/" + bootID
}
