// Package metrics gives what the node and its sandboxes use to collectors: to Prometheus,
// which asks at an address of the node, and over OTLP, where an operator wants that.
//
// It owns the names of the series and the listener. What could not be measured is absent,
// never 0, and never makes a whole answer fail. Nothing is read while nobody asks. It
// must never listen where other machines can reach it: who asks is not known. In the
// trail it stands behind package stats.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/stats"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Meter is the name of the meter, the instrumentation scope at OpenTelemetry.
const Meter = "staddle.internal/services/sandboxhost"

// readLimit bounds one reading: it takes milliseconds, and a collector that waits longer
// has given up (Prometheus by default after 10 s).
const readLimit = 5 * time.Second

// Source is what is measured.
type Source struct {
	// Node is the name of the node.
	Node string
	// Usage reads what all use; the method Ask of a *stats.Collector.
	Usage func(ctx context.Context, uid id.Sandbox) (stats.Round, error)
	// Sandboxes are all of this node, or fault.Unavailable while that is not known.
	Sandboxes func() (map[id.Sandbox]*sandboxhostv1.SandboxState, error)
	// LogsLost tells of each export of output, by its name, how many bytes it does not have
	// and never will, since this process began.
	LogsLost map[string]func() int64
	// Dropped is how many bytes of output were thrown away since this process began. Nil means
	// that nobody counts.
	Dropped func() int64
	// Log gets what could not be read.
	Log *slog.Logger
}

// Register makes all series at a meter. They are read when whoever is behind the meter
// collects them.
func Register(meter metric.Meter, source Source) error {
	var made maker
	node := instruments(&made, meter, ofNode())
	sandbox := instruments(&made, meter, ofSandbox())
	container := instruments(&made, meter, ofContainer())
	phases, err := meter.Int64ObservableGauge("staddle.node.sandboxes", metric.WithUnit(count),
		metric.WithDescription("Sandboxes of the node, by their phase."))
	made.take(phases, err)
	lost, err := meter.Int64ObservableCounter("staddle.node.logs.not_exported", metric.WithUnit(bytes),
		metric.WithDescription("Output of workloads that an export does not have and never will, by the export."))
	made.take(lost, err)
	dropped, err := meter.Int64ObservableCounter("staddle.node.logs.dropped", metric.WithUnit(bytes),
		metric.WithDescription("Output of workloads that was thrown away since the disk was full, or too slow for those who do not wait."))
	made.take(dropped, err)
	if err := errors.Join(made.errs...); err != nil {
		return fmt.Errorf("make series: %w", err)
	}
	_, err = meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		for export, of := range source.LogsLost {
			o.ObserveInt64(lost, of(), metric.WithAttributes(keyNode.String(source.Node), keyExport.String(export)))
		}
		if source.Dropped != nil {
			o.ObserveInt64(dropped, source.Dropped(), metric.WithAttributes(keyNode.String(source.Node)))
		}
		states, round, err := source.read(ctx)
		switch {
		case errors.Is(err, fault.Unavailable):
			return nil // not known yet: the series are absent until it is
		case err != nil:
			source.Log.Warn("metrics not read", logging.Err(err))
			return nil
		}
		for phase, n := range byPhase(states) {
			o.ObserveInt64(phases, n, metric.WithAttributes(keyNode.String(source.Node), keyPhase.String(phase)))
		}
		observe(o, node, round.Node, keyNode.String(source.Node))
		for _, s := range round.Sandboxes {
			of := []attribute.KeyValue{keyNode.String(source.Node), keySandbox.String(s.GetUid()), keyName.String(s.GetName())}
			observe(o, sandbox, s, of...)
			for _, c := range s.GetContainers() {
				observe(o, container, c, append(of[:len(of):len(of)], keyContainer.String(c.GetName()))...)
			}
		}
		return nil
	}, made.all...)
	if err != nil {
		return fmt.Errorf("register series: %w", err)
	}
	return nil
}

// read asks for all at once.
func (s Source) read(ctx context.Context) (map[id.Sandbox]*sandboxhostv1.SandboxState, stats.Round, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	states, err := s.Sandboxes()
	if err != nil {
		return nil, stats.Round{}, err
	}
	round, err := s.Usage(ctx, "")
	return states, round, err
}

// byPhase counts sandboxes. A phase that none is in counts 0.
func byPhase(states map[id.Sandbox]*sandboxhostv1.SandboxState) map[string]int64 {
	all := map[string]int64{}
	for value, name := range resourcev1.SandboxPhase_name {
		if value != 0 {
			all[phaseName(name)] = 0
		}
	}
	for _, s := range states {
		if phase := s.GetStatus().GetPhase(); phase != 0 {
			all[phaseName(phase.String())]++
		}
	}
	return all
}

func phaseName(name string) string {
	return strings.ToLower(strings.TrimPrefix(name, "SANDBOX_PHASE_"))
}

// maker collects instruments and what went wrong.
type maker struct {
	all  []metric.Observable
	errs []error
}

func (m *maker) take(made metric.Observable, err error) {
	m.all, m.errs = append(m.all, made), append(m.errs, err)
}

// instrument is a figure with its series.
type instrument[T any] struct {
	figure[T]
	series metric.Float64Observable
}

func instruments[T any](m *maker, meter metric.Meter, figures []figure[T]) []instrument[T] {
	var all []instrument[T]
	for _, f := range figures {
		made := instrument[T]{figure: f}
		var err error
		if f.grows {
			made.series, err = meter.Float64ObservableCounter(f.name, metric.WithUnit(f.unit), metric.WithDescription(f.help))
		} else {
			made.series, err = meter.Float64ObservableGauge(f.name, metric.WithUnit(f.unit), metric.WithDescription(f.help))
		}
		m.take(made.series, err)
		all = append(all, made)
	}
	return all
}

func observe[T any](o metric.Observer, all []instrument[T], whole T, of ...attribute.KeyValue) {
	labels := metric.WithAttributeSet(attribute.NewSet(of...))
	for _, i := range all {
		if value, known := i.of(whole); known {
			o.ObserveFloat64(i.series, value, labels)
		}
	}
}
