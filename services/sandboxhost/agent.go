package sandboxhost

import (
	"context"
	"time"

	"staddle.internal/kit/process"
	"staddle.internal/kit/run"

	"staddle.internal/services/sandboxhost/internal/agent"
)

// AgentName is the name of the process sandbox-agent.
const AgentName = "sandbox-agent"

const (
	// healthHistory is the health name that says whether the coordinator's history
	// knows of every sandbox here: those that it does not know of are kept.
	healthHistory = "history"
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
	loop := agent.New(agent.Config{
		Node: p.Config.Name, Resync: agentResync,
	}, agent.Deps{
		Cluster: cluster, Host: host, Log: p.Log,
		Foreign: func(n int) { p.Status.SetHealth(healthHistory, n == 0) },
	})
	return []run.Member{{Name: "agent", Run: loop.Run}}, nil
}
