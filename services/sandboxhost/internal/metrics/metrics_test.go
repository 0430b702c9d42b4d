package metrics

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/telemetry"
	"staddle.internal/services/sandboxhost/internal/stats"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

var update = flag.Bool("update", false, "write the golden file anew")

const (
	full  = "01JQ0000000000000000000001"
	spare = "01JQ0000000000000000000002"
)

func ptr(n uint64) *uint64 { return &n }

func allOf(n uint64) *sandboxhostv1.Usage {
	return &sandboxhostv1.Usage{
		CpuUsageNanoseconds: ptr(n * 1e9), MemoryWorkingSetBytes: ptr(n), MemoryUsageBytes: ptr(n), MemoryLimitBytes: ptr(n),
		Pids: ptr(n), IoReadBytes: ptr(n), IoWrittenBytes: ptr(n), OomKills: ptr(n),
	}
}

// round has one sandbox of which all is known, and one of which nothing is.
func round() stats.Round {
	return stats.Round{
		Node: &sandboxhostv1.NodeStats{Machine: allOf(8), Workloads: allOf(4), Cpus: 2},
		Sandboxes: []*sandboxhostv1.SandboxStats{
			{
				Uid: full, Name: "web", Attempt: 3, Usage: allOf(2),
				Network:    &sandboxhostv1.NetworkUsage{ReceivedBytes: 10, SentBytes: 11, ReceivedPackets: 12, SentPackets: 13, DroppedPackets: 14},
				Containers: []*sandboxhostv1.ContainerStats{{Name: "main", Id: "c", Usage: allOf(1)}},
			},
			{Uid: spare, Name: "bare", Attempt: 1, Containers: []*sandboxhostv1.ContainerStats{{Name: "main"}}},
		},
	}
}

func source(t *testing.T, r stats.Round, err error) Source {
	t.Helper()
	return Source{
		Node: "n1", Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Usage: func(context.Context, id.Sandbox) (stats.Round, error) { return r, err },
		Sandboxes: func() (map[id.Sandbox]*sandboxhostv1.SandboxState, error) {
			return map[id.Sandbox]*sandboxhostv1.SandboxState{
				full:  {Status: &resourcev1.SandboxStatus{Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING}},
				spare: {Status: &resourcev1.SandboxStatus{Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING}},
			}, nil
		},
	}
}

// complete is a source that has all there is.
func complete(t *testing.T) Source {
	t.Helper()
	s := source(t, round(), nil)
	s.LogsLost = map[string]func() int64{"cri": func() int64 { return 7 }}
	s.Dropped = func() int64 { return 11 }
	return s
}

// scrape is what Prometheus is answered.
func scrape(t *testing.T, s Source) string {
	t.Helper()
	h, err := (&Endpoint{Source: s, Log: s.Log}).handler()
	if err != nil {
		t.Fatal(err)
	}
	got := httptest.NewRecorder()
	h.ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), http.MethodGet, Path, nil))
	if got.Code != http.StatusOK {
		t.Fatalf("answered %d: %s", got.Code, got.Body)
	}
	return got.Body.String()
}

// Dashboards and alerts of people stand on these names.
func TestScrape_NamesAndTheirMeaningStay(t *testing.T) {
	var lines []string
	for line := range strings.Lines(scrape(t, complete(t))) {
		if strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	got := strings.Join(lines, "")
	const golden = "testdata/names.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil { //nolint:gosec // a file of the sources
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the series are other ones than in %s; if that is meant, run the test with -update\ngot:\n%s", golden, got)
	}
}

func TestScrape_TellsWhatWasRead(t *testing.T) {
	got := scrape(t, complete(t))
	web := `node="n1",sandbox="` + full + `",sandbox_name="web"`
	for _, want := range []string{
		`staddle_node_cpu_time_seconds_total{node="n1"} 8`,
		`staddle_node_cpus{node="n1"} 2`,
		`staddle_node_logs_not_exported_bytes_total{export="cri",node="n1"} 7`,
		`staddle_node_logs_dropped_bytes_total{node="n1"} 11`,
		`staddle_workloads_memory_working_set_bytes{node="n1"} 4`,
		`staddle_node_sandboxes{node="n1",phase="running"} 2`,
		`staddle_node_sandboxes{node="n1",phase="failed"} 0`,
		`staddle_sandbox_cpu_time_seconds_total{` + web + `} 2`,
		`staddle_sandbox_network_dropped_packets_total{` + web + `} 14`,
		`staddle_sandbox_attempts_total{` + web + `} 3`,
		`staddle_container_io_written_bytes_total{container="main",` + web + `} 1`,
	} {
		if !slices.Contains(strings.Split(got, "\n"), want) {
			t.Errorf("not told: %s", want)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

// Zero would be a value: what could not be measured is absent, and the rest is told.
func TestScrape_MET4_WhatIsNotKnownIsAbsent(t *testing.T) {
	for line := range strings.Lines(scrape(t, source(t, round(), nil))) {
		if strings.Contains(line, spare) && !strings.HasPrefix(line, "staddle_sandbox_attempts_total{") {
			t.Errorf("told of a sandbox of which nothing is known: %s", line)
		}
	}
	for _, err := range []error{fault.New(fault.Unavailable, "adopting"), errors.New("broken"), context.DeadlineExceeded} {
		if got := scrape(t, source(t, stats.Round{}, err)); strings.Contains(got, "staddle_") {
			t.Errorf("%v: told %s", err, got)
		}
	}
}

// The same series go over OTLP.
func TestRegister_FillsAnyMeter(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	if err := Register(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter(Meter), source(t, round(), nil)); err != nil {
		t.Fatal(err)
	}
	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	for _, m := range got.ScopeMetrics[0].Metrics {
		if m.Name == "staddle.sandbox.cpu.time" {
			sum, ok := m.Data.(metricdata.Sum[float64])
			if !ok || !sum.IsMonotonic || m.Unit != "s" || len(sum.DataPoints) != 1 || sum.DataPoints[0].Value != 2 {
				t.Errorf("got %+v", m)
			}
			return
		}
	}
	t.Errorf("no processor time among %+v", got)
}

// collector takes metrics over OTLP.
type collector struct {
	collectorv1.UnimplementedMetricsServiceServer
	names chan string
}

func (c *collector) Export(_ context.Context, req *collectorv1.ExportMetricsServiceRequest) (*collectorv1.ExportMetricsServiceResponse, error) {
	for _, r := range req.GetResourceMetrics() {
		for _, s := range r.GetScopeMetrics() {
			for _, m := range s.GetMetrics() {
				c.names <- m.GetName()
			}
		}
	}
	return &collectorv1.ExportMetricsServiceResponse{}, nil
}

// An operator who asks for OTLP by the standard variables gets them at a real collector.
func TestRegister_ReachesACollectorOverOTLP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, c := grpc.NewServer(), &collector{names: make(chan string, 1000)}
	collectorv1.RegisterMetricsServiceServer(server, c)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // ends by Stop below
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://"+l.Addr().String())
	stop, err := telemetry.Start(t.Context(), "sandboxhost", "v1")
	if err != nil || !telemetry.Enabled() {
		t.Fatalf("enabled %v, %v", telemetry.Enabled(), err)
	}
	if err := Register(otel.Meter(Meter), source(t, round(), nil)); err != nil {
		t.Fatal(err)
	}
	if err := stop(t.Context()); err != nil { // which sends what there is
		t.Error(err)
	}
	server.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	close(c.names)
	got := map[string]bool{}
	for name := range c.names {
		got[name] = true
	}
	for _, want := range []string{"staddle.node.cpus", "staddle.sandbox.cpu.time", "staddle.container.memory.working_set"} {
		if !got[want] {
			t.Errorf("the collector did not get %s, but %v", want, got)
		}
	}
}

// start runs an endpoint and returns once it is ready.
func start(t *testing.T, e *Endpoint) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- e.Run(ctx, func() { close(ready) }) }() // ended below
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case <-time.After(10 * time.Second):
		t.Fatal("not ready in 10 s")
	}
}

func get(t *testing.T, method, url string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// The process is ready although a stranger has the address, says who, and answers once it
// is free.
func TestEndpoint_WaitsForItsAddressAlone(t *testing.T) {
	stranger, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan netip.AddrPort, 100)
	s := source(t, round(), nil)
	kept := make(chan net.Listener, 1)
	start(t, &Endpoint{
		Address: stranger.Addr().String(), Source: s, Log: s.Log, Keep: func(l net.Listener) { kept <- l },
		Owner: func(at netip.AddrPort) string {
			asked <- at
			return "nginx (pid 7)"
		},
	})
	select {
	case at := <-asked:
		if at.String() != stranger.Addr().String() {
			t.Errorf("asked who has %s", at)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nobody asked who has the address in 10 s")
	}
	if err := stranger.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-kept:
	case <-time.After(30 * time.Second):
		t.Fatal("did not listen in 30 s")
	}
	if code, body := get(t, http.MethodGet, "http://"+stranger.Addr().String()+Path); code != http.StatusOK || !strings.Contains(body, "staddle_node_cpus") {
		t.Errorf("answered %d: %s", code, body)
	}
}

func TestEndpoint_HasOnePathToRead(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := source(t, round(), nil)
	start(t, &Endpoint{Address: l.Addr().String(), Listener: l, Source: s, Log: s.Log})
	for _, tc := range []struct {
		method, path string
		want         int
	}{
		{http.MethodGet, Path, http.StatusOK},
		{http.MethodPost, Path, http.StatusMethodNotAllowed},
		{http.MethodGet, "/", http.StatusNotFound},
		{http.MethodGet, "/debug/pprof/", http.StatusNotFound},
	} {
		if code, body := get(t, tc.method, "http://"+l.Addr().String()+tc.path); code != tc.want {
			t.Errorf("%s %s: answered %d, want %d: %.200s", tc.method, tc.path, code, tc.want, body)
		}
	}
}
