package sandboxhost

import (
	"context"
	"net/netip"

	"go.opentelemetry.io/otel"

	"staddle.internal/kit/listening"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/process"
	"staddle.internal/kit/telemetry"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/hostport"
	"staddle.internal/services/sandboxhost/internal/logexport"
	"staddle.internal/services/sandboxhost/internal/logs"
	"staddle.internal/services/sandboxhost/internal/metrics"
	"staddle.internal/services/sandboxhost/internal/stats"
)

// metricsSocket is the name under which whoever supervises keeps the listener of the
// metrics.
const metricsSocket = "metrics.tcp"

// newMetrics makes the series, for OTLP if an operator asks for that, and returns what
// answers Prometheus.
func newMetrics(p *process.Process, h *host.Host, usage *stats.Collector, exports []*logexport.Export, output *logs.Store) (run func(context.Context, func()) error, err error) {
	source := metrics.Source{Node: p.Config.Name, Usage: usage.Ask, Sandboxes: h.List, Log: p.Log, LogsLost: lostOf(exports), Dropped: output.Lost}
	if telemetry.Enabled() {
		if err := metrics.Register(otel.Meter(metrics.Meter), source); err != nil {
			return nil, err
		}
	}
	at := p.Config.Metrics.ListenAddress
	passed := listening.Passed(p.FDs, metricsSocket, at, p.Log)
	if at == "" {
		return func(ctx context.Context, ready func()) error {
			ready()
			<-ctx.Done()
			return context.Cause(ctx)
		}, nil
	}
	return (&metrics.Endpoint{
		Address: at, Listener: passed, Keep: listening.Keeper(p.FDs, metricsSocket, p.Log), Source: source, Log: p.Log,
		Owner: func(at netip.AddrPort) string {
			owner, err := hostport.Owner(hostport.TCP, at)
			if err != nil {
				p.Log.Debug("owner of a port not found", logging.Err(err))
			}
			return owner
		},
	}).Run, nil
}

// lostOf tells how much each export lacks.
func lostOf(exports []*logexport.Export) map[string]func() int64 {
	all := map[string]func() int64{}
	for _, e := range exports {
		all[e.Name()] = e.Lost
	}
	return all
}
