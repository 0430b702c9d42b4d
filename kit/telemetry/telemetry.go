// Package telemetry sends traces and metrics over OTLP where an operator asks
// for it by the standard OTEL_* variables, and costs nothing where nobody does.
//
// It owns the process-wide providers of OpenTelemetry and their shutdown. It must
// never hold up a start or a stop: exporters connect in the background, and a
// collector that is away loses telemetry, not work.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"staddle.internal/kit/config"
)

// stopTimeout bounds the last export: a stop never waits longer for a collector.
const stopTimeout = 2 * time.Second

var enabled atomic.Bool

// Enabled reports whether Start installed an exporter. kit/rpc instruments
// connections only then.
func Enabled() bool { return enabled.Load() }

// choice is what the environment asks for.
type choice struct{ traces, metrics bool }

// choose reads the standard variables: an endpoint turns a signal on, the
// exporter "none" or OTEL_SDK_DISABLED turns it off.
func choose(env func(string) string) (choice, error) {
	if env("OTEL_SDK_DISABLED") == "true" {
		return choice{}, nil
	}
	wants := func(signal string) (bool, error) {
		endpoint := env("OTEL_EXPORTER_OTLP_ENDPOINT") + env("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT")
		if endpoint == "" || env("OTEL_"+signal+"_EXPORTER") == "none" {
			return false, nil
		}
		for _, name := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL"} {
			if p := env(name); p != "" && p != "grpc" {
				return false, config.Wrong(name, "protocol %q is not built in; write grpc, or unset it", p)
			}
		}
		return true, nil
	}
	traces, err := wants("TRACES")
	if err != nil {
		return choice{}, err
	}
	metrics, err := wants("METRICS")
	return choice{traces, metrics}, err
}

// Start installs the exporters that the environment asks for and returns the
// function that flushes and ends them within two seconds. Without a request for
// any it installs nothing and stop does nothing.
func Start(ctx context.Context, process, version string) (stop func(context.Context) error, err error) {
	c, err := choose(os.Getenv)
	if err != nil {
		return nil, err
	}
	if !c.traces && !c.metrics {
		return func(context.Context) error { return nil }, nil
	}
	res, err := resource.Merge(resource.Default(), resource.NewSchemaless(
		attribute.String("service.namespace", "staddle"),
		attribute.String("service.name", "staddle-"+process),
		attribute.String("service.version", version),
	))
	if err != nil {
		return nil, fmt.Errorf("describe process %s: %w", process, err)
	}
	stops, err := install(ctx, c, res)
	if err != nil {
		return nil, err
	}
	enabled.Store(true)
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		var errs []error
		for _, s := range stops {
			errs = append(errs, s(ctx))
		}
		return errors.Join(errs...)
	}, nil
}

func install(ctx context.Context, c choice, res *resource.Resource) ([]func(context.Context) error, error) {
	var stops []func(context.Context) error
	if c.traces {
		exporter, err := otlptracegrpc.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("make trace exporter: %w", err)
		}
		provider := trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(res))
		otel.SetTracerProvider(provider)
		otel.SetTextMapPropagator(propagation.TraceContext{})
		stops = append(stops, provider.Shutdown)
	}
	if c.metrics {
		exporter, err := otlpmetricgrpc.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("make metric exporter: %w", err)
		}
		provider := metric.NewMeterProvider(metric.WithReader(metric.NewPeriodicReader(exporter)), metric.WithResource(res))
		otel.SetMeterProvider(provider)
		stops = append(stops, provider.Shutdown)
	}
	return stops, nil
}
