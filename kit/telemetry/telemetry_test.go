package telemetry

import (
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

func TestChoose(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  map[string]string
		want choice
		says string
	}{
		{"nothing asked", nil, choice{}, ""},
		{"one endpoint for all", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, choice{true, true}, ""},
		{"traces only", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, choice{traces: true}, ""},
		{"metrics turned off", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_METRICS_EXPORTER": "none"}, choice{traces: true}, ""},
		{"all turned off", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, choice{}, ""},
		{"protocol without endpoint", map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, choice{}, ""},
		{"other protocol", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, choice{}, "http/json"},
	} {
		got, err := choose(func(k string) string { return tc.env[k] })
		if tc.says != "" {
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: got %v", tc.name, err)
			}
			continue
		}
		if err != nil || got != tc.want {
			t.Errorf("%s: got %+v, %v, want %+v", tc.name, got, err, tc.want)
		}
	}
}

func clearEnv(t *testing.T) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
}

func TestStart_CostsNothingUnlessAsked(t *testing.T) {
	clearEnv(t)
	stop, err := Start(t.Context(), "storage", "v1")
	if err != nil || Enabled() {
		t.Fatalf("enabled %v, %v", Enabled(), err)
	}
	if err := stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// collector is a trace collector on loopback.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []string // "service/span"
}

func (c *collector) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range req.GetResourceSpans() {
		service := ""
		for _, a := range r.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, s := range r.GetScopeSpans() {
			for _, span := range s.GetSpans() {
				c.spans = append(c.spans, service+"/"+span.GetName())
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func TestStart_SendsTracesAndStopsInTime(t *testing.T) {
	clearEnv(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, c := grpc.NewServer(), &collector{}
	collectorv1.RegisterTraceServiceServer(server, c)
	var wg sync.WaitGroup
	wg.Go(func() { // ends by Stop below
		if err := server.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://"+l.Addr().String())
	stop, err := Start(t.Context(), "storage", "v1")
	if err != nil || !Enabled() {
		t.Fatalf("enabled %v, %v", Enabled(), err)
	}
	defer enabled.Store(false)
	_, span := otel.Tracer("test").Start(t.Context(), "mount")
	span.End()
	if err := stop(t.Context()); err != nil {
		t.Error(err)
	}
	server.Stop()
	wg.Wait()
	if len(c.spans) != 1 || c.spans[0] != "staddle-storage/mount" {
		t.Errorf("the collector got %v", c.spans)
	}
}

func TestStart_ACollectorThatIsAwayHoldsNothingUp(t *testing.T) {
	clearEnv(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
	begin := time.Now()
	stop, err := Start(t.Context(), "storage", "v1")
	if err != nil {
		t.Fatal(err)
	}
	defer enabled.Store(false)
	_, span := otel.Tracer("test").Start(t.Context(), "mount")
	span.End()
	if err := stop(t.Context()); err == nil {
		t.Error("the loss of telemetry is not told")
	}
	if took := time.Since(begin); took > 2*stopTimeout+time.Second {
		t.Errorf("took %s", took)
	}
}
