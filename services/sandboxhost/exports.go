package sandboxhost

import (
	"errors"
	"path/filepath"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/process"
	"staddle.internal/services/sandboxhost/internal/engine/containerd"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/logexport"
	"staddle.internal/services/sandboxhost/internal/logs"
)

// newExports makes the exports of output that this node is configured to have.
func newExports(p *process.Process, h *host.Host, eng *containerd.Engine) []*logexport.Export {
	deps := logexport.Deps{
		Source: eng.Logs(), Log: p.Log,
		Name: func(uid id.Sandbox) (logs.Name, error) {
			state, err := h.Get(uid)
			if name, ok := eng.Logs().WasCalled(uid); errors.Is(err, fault.NotFound) && ok {
				return name, nil
			}
			if err != nil {
				return logs.Name{}, err
			}
			return logs.Name{Manager: state.GetManager(), Name: state.GetName()}, nil
		},
	}
	var all []*logexport.Export
	if cri := p.Config.Logs.CRI; cri.Directory != "" {
		all = append(all, logexport.NewCRI(logexport.CRI{
			Dir: cri.Directory, Notes: filepath.Join(p.Paths.Var(Name), "cri"), MaxSize: int64(cri.MaxSize), MaxFiles: cri.MaxFiles,
		}, deps))
	}
	if o := p.Config.Logs.OTLP; o.Endpoint != "" {
		all = append(all, logexport.NewOTLP(logexport.OTLP{
			Endpoint: o.Endpoint, CA: o.CA, HeadersFile: o.HeadersFile, Insecure: o.Insecure, Node: p.Config.Name,
		}, deps))
	}
	return all
}
