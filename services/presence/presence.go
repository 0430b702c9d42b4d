// Package presence is the process that registers the node and says whether it may
// be given work: an AND over the other capabilities and the link.
//
// It is ready when its loop runs and all required neighbours serve; whether the
// coordinator is reached is a condition of the node and not of this process. It
// must never become ready before every required capability does, and touches
// nothing but its notes. In the trail it is the last to start and the first to
// stop.
package presence

import (
	"context"
	"path/filepath"

	"google.golang.org/grpc"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/process"
	"staddle.internal/kit/rpc/validate"
	"staddle.internal/kit/run"
	"staddle.internal/kit/version"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"

	"staddle.internal/services/presence/internal/api"
	"staddle.internal/services/presence/internal/capability"
	"staddle.internal/services/presence/internal/condition"
	"staddle.internal/services/presence/internal/drain"
	"staddle.internal/services/presence/internal/node"
)

// Name of the process.
const Name = "presence"

// Neighbours that are asked for more than how they are.
const (
	clusteraccess = "clusteraccess"
	sandboxhost   = "sandboxhost"
)

// Main runs the process and returns its exit code. It waits for its neighbours
// after its loop has begun: that they are missing is what it has to tell.
func Main() int { return process.Frame{Name: Name, OwnGate: true, Processors: 1}.Main(build) }

func build(_ context.Context, p *process.Process) ([]run.Member, error) {
	bootID, err := boottime.ID()
	if err != nil {
		return nil, err
	}
	conn, err := p.Dial(clusteraccess)
	if err != nil {
		return nil, err
	}
	deps := node.Deps{
		Cluster: node.ClusterAt(conn), Log: p.Log,
		Link: capability.Capability{Process: clusteraccess, Health: "link", Conn: conn},
	}
	var hosts *grpc.ClientConn // nil on a node that runs no sandboxes
	for _, name := range p.Config.Neighbours(Name) {
		conn, err := p.Dial(name)
		if err != nil {
			return nil, err
		}
		if name == sandboxhost {
			hosts = conn
		}
		deps.Required = append(deps.Required, node.Required{
			Type: condition.TypeOf(name), Capability: capability.Capability{Process: name, Conn: conn},
		})
	}
	drains := drain.New(drain.Config{Journal: filepath.Join(p.Paths.Var(Name), "drain.db"), BootID: bootID},
		drain.Deps{Host: hostOf(hosts), Log: p.Log})
	deps.Admission = drains
	if hosts != nil {
		deps.Pressure = node.PressureAt(hosts)
	}
	n := node.New(node.Config{
		Name: p.Config.Name, Journal: filepath.Join(p.Paths.Var(Name), "presence.db"),
		TTL: p.Config.Presence.SessionTTL.Std(), HoldDown: p.Config.Presence.HoldDown.Std(),
		Version: version.String(), BootID: bootID, Bridge: p.Config.Network.Bridge, Gateway: p.Config.GatewayAddress,
	}, deps)
	rules, err := validate.New(&presencev1.DrainRequest{}, &presencev1.CordonRequest{})
	if err != nil {
		return nil, err
	}
	p.Server.Use(rules)
	presencev1.RegisterPresenceServiceServer(p.Server.GRPC(), api.New(n, drains))
	p.Server.AlwaysServe(presencev1.PresenceService_ServiceDesc.ServiceName)
	gate, err := p.Gate()
	if err != nil {
		return nil, err
	}
	return []run.Member{{Name: "drain", Run: drains.Run}, {Name: "node", Run: n.Run}, gate}, nil
}

// hostOf is sandboxhost as drains need it, or nothing.
func hostOf(conn *grpc.ClientConn) drain.Host {
	if conn == nil {
		return nil
	}
	return drain.HostAt(conn)
}
