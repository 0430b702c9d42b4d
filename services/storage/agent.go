package storage

import (
	"context"
	"time"

	"staddle.internal/kit/process"
	"staddle.internal/kit/run"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	storagev1 "staddle.internal/proto/gen/staddle/storage/v1"
	"staddle.internal/services/storage/internal/agent"
)

// AgentMain runs the process storage-agent until a signal and returns its exit
// code. It is ready when its loop runs.
func AgentMain() int { return process.Frame{Name: "storage-agent", Processors: 1}.Main(buildAgent) }

func buildAgent(_ context.Context, p *process.Process) ([]run.Member, error) {
	cluster, err := p.Dial("clusteraccess")
	if err != nil {
		return nil, err
	}
	volumes, err := p.Dial("storage")
	if err != nil {
		return nil, err
	}
	host, err := p.Dial("sandboxhost")
	if err != nil {
		return nil, err
	}
	loop := agent.New(p.Config.Name, agent.Deps{
		Log:     p.Log,
		Cluster: clusteraccessv1.NewClusterAccessServiceClient(cluster),
		Storage: storagev1.NewStorageServiceClient(volumes),
		Grants:  sandboxhostv1.NewGrantServiceClient(host),
		Hosts:   sandboxhostv1.NewSandboxHostServiceClient(host),
	})
	return []run.Member{{Name: "loop", Run: loop.Run, StopTimeout: 5 * time.Second}}, nil
}
