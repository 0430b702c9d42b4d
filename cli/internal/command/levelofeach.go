package command

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/graph"
	"staddle.internal/cli/internal/target"
)

// levelOfEach asks the processes of the installation at their own sockets, as the
// supervisor would, which is not there because of why.
func (a *app) levelOfEach(ctx context.Context, req *supervisorv1.SetLogLevelRequest, why error) (*supervisorv1.SetLogLevelResponse, error) {
	settings, err := a.settings()
	if err != nil {
		return nil, err
	}
	names, err := levelled(settings.Paths.NodeFile(), req.GetComponent(), why)
	if err != nil {
		return nil, err
	}
	wish := &processv1.SetLogLevelRequest{Level: req.GetLevel(), Period: req.GetPeriod()}
	outcomes := make([]*supervisorv1.LogLevelOutcome, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { outcomes[i] = levelOf(ctx, name, settings.Paths.Socket(name), wish) }) // waited for below
	}
	wg.Wait()
	return &supervisorv1.SetLogLevelResponse{Outcomes: outcomes}, nil
}

// levelled lists whose level is meant. Without an installation, and for the
// supervisor itself, what is wrong is that there is no supervisor.
func levelled(nodeFile, component string, why error) ([]string, error) {
	if _, err := os.Stat(nodeFile); component == graph.Supervisor || errors.Is(err, os.ErrNotExist) {
		return nil, why
	}
	node, err := config.LoadNode(nodeFile)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range node.Graph() {
		if c.Name != config.ContainerdName {
			names = append(names, c.Name)
		}
	}
	switch {
	case component == "":
		return names, nil
	case component == config.ContainerdName:
		return nil, fault.New(fault.Conflict, "set log level of component %s: it is no process of Staddle", component)
	case !slices.Contains(names, component):
		return nil, fault.New(fault.NotFound, "set log level of component %s: there is none of that name", component)
	}
	return []string{component}, nil
}

// levelOf sets one level. That it cannot is an outcome of this one process.
func levelOf(ctx context.Context, name, socket string, wish *processv1.SetLogLevelRequest) *supervisorv1.LogLevelOutcome {
	out := &supervisorv1.LogLevelOutcome{Component: name}
	conn, err := target.Socket(ctx, name, socket)
	if err == nil {
		var answer *processv1.SetLogLevelResponse
		answer, err = processv1.NewProcessServiceClient(conn).SetLogLevel(ctx, wish)
		out.Previous = answer.GetPrevious()
		err = target.Refused(name, socket, errors.Join(err, conn.Close()))
	}
	if err != nil {
		out.Failure = err.Error()
	}
	return out
}
