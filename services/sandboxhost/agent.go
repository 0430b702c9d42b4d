package sandboxhost

import (
	"context"
	"sync/atomic"
	"time"

	"staddle.internal/kit/process"
	"staddle.internal/kit/run"

	"staddle.internal/services/sandboxhost/internal/agent"
)

// AgentName is the name of the process sandbox-agent.
const AgentName = "sandbox-agent"

const (
	// healthHistory is the health name that says whether the coordinator's history
	// knows of every sandbox and service here: those that it does not know of are kept.
	healthHistory = "history"
	// healthServices is the health name that says whether this node has all services of
	// the cluster.
	healthServices = "services"
	// agentResync is how often the agent looks at everything without a cause.
	agentResync = 5 * time.Minute
)

// AgentMain runs the process sandbox-agent and returns its exit code.
func AgentMain() int { return process.Frame{Name: AgentName, Processors: 1}.Main(buildAgent) }

func buildAgent(_ context.Context, p *process.Process) ([]run.Member, error) {
	records, err := p.Dial("clusteraccess")
	if err != nil {
		return nil, err
	}
	sandboxes, err := p.Dial("sandboxhost")
	if err != nil {
		return nil, err
	}
	cluster, host := agent.Neighbours(records, sandboxes)
	p.Status.SetHealth(healthHistory, true)
	p.Status.SetHealth(healthServices, true)
	var foreignSandboxes, foreignServices atomic.Int64
	foreign := func(of *atomic.Int64) func(int) {
		return func(n int) {
			of.Store(int64(n))
			p.Status.SetHealth(healthHistory, foreignSandboxes.Load()+foreignServices.Load() == 0)
		}
	}
	loop := agent.New(agent.Config{
		Node: p.Config.Name, Resync: agentResync,
	}, agent.Deps{
		Cluster: cluster, Host: host, Log: p.Log,
		Foreign: foreign(&foreignSandboxes),
	})
	serviceRecords, serviceHost := agent.ServiceNeighbours(records, sandboxes)
	services := agent.NewServices(agentResync, agent.ServiceDeps{
		Records: serviceRecords, Host: serviceHost, Log: p.Log,
		Foreign: foreign(&foreignServices), Refused: func(n int) { p.Status.SetHealth(healthServices, n == 0) },
	})
	return []run.Member{{Name: "agent", Run: loop.Run}, {Name: "services", Run: services.Run}}, nil
}
