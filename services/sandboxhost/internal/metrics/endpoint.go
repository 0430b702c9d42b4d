package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"golang.org/x/net/netutil"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/listening"
	"staddle.internal/kit/logging"
)

// Path is where the series are.
const Path = "/metrics"

const (
	// maxSeries bounds one figure: past it the rest is one series that says so
	// (otel_metric_overflow). A machine is full long before.
	maxSeries = 10_000
	// maxConnections bounds who is connected: collectors keep one each.
	maxConnections = 16
	// maxScrapes bounds answers under way; others are told 503.
	maxScrapes = 4
	// maxHeader of a request, in bytes.
	maxHeader = 16 << 10
	// headerLimit, answerLimit and idleLimit bound a request's head, the whole of it, and
	// the time between two: longer than collectors usually wait (Prometheus: 1 min).
	headerLimit, answerLimit, idleLimit = 5 * time.Second, 30 * time.Second, 5 * time.Minute
	// drainLimit bounds the wait for answers under way when the process stops.
	drainLimit = time.Second
)

// listenAgain is how an address that is taken is tried again.
var listenAgain = backoff.Policy{Initial: time.Second, Cap: time.Minute}

// Endpoint answers Prometheus.
type Endpoint struct {
	// Address is host:port on loopback.
	Address string
	// Listener was passed by whoever supervises. Nil means that the endpoint makes its
	// own.
	Listener net.Listener
	// Keep is given a listener that the endpoint made itself. Nil means that it is not
	// kept for the next process.
	Keep func(net.Listener)
	// Owner says which program has an address; empty if that is not known.
	Owner func(at netip.AddrPort) string
	// Source is what is measured.
	Source Source
	// Log gets what went wrong.
	Log *slog.Logger
}

// Run answers until ctx ends. It is ready at once: that the address is taken holds
// nobody up, and is tried again.
func (e *Endpoint) Run(ctx context.Context, ready func()) error {
	handler, err := e.handler()
	if err != nil {
		return err
	}
	ready()
	l, err := e.listen(ctx)
	if err != nil {
		return err
	}
	e.Log.Info("metrics bound", logging.Path(l.Addr().String()))
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerLimit, ReadTimeout: answerLimit, WriteTimeout: answerLimit, IdleTimeout: idleLimit,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(e.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(netutil.LimitListener(l, maxConnections)) }() // ends with the server; waited for below
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainLimit)
	defer cancel()
	if err := server.Shutdown(limited); err != nil {
		_ = server.Close() // whoever asks learns of it by that
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		e.Log.Warn("listener lost", logging.Path(l.Addr().String()), logging.Err(err))
	}
	return context.Cause(ctx)
}

// handler makes series of their own for the endpoint, so that nothing else of the
// process is among them.
func (e *Endpoint) handler() (http.Handler, error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo(), otelprometheus.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("make the exporter for Prometheus: %w", err)
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter), sdkmetric.WithCardinalityLimit(maxSeries))
	if err := Register(provider.Meter(Meter), e.Source); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(e.Log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // what cannot be told leaves the rest
		MaxRequestsInFlight: maxScrapes,
	}))
	return mux, nil
}

// listen returns the listener that was passed, or its own once there is one.
func (e *Endpoint) listen(ctx context.Context) (net.Listener, error) {
	return listening.Place{
		Address: e.Address, Passed: e.Listener, Keep: e.Keep, Again: listenAgain,
		Failed: func(err error) {
			if owner := e.owner(); owner != "" {
				err = errors.Join(err, fmt.Errorf("%s has it; write another metrics.listen_address in node.yaml", owner))
			}
			e.Log.Warn("metrics not bound", logging.Path(e.Address), logging.Err(err))
		},
	}.Listen(ctx)
}

func (e *Endpoint) owner() string {
	at, err := netip.ParseAddrPort(e.Address)
	if err != nil {
		return ""
	}
	return e.Owner(at)
}
