package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"staddle.internal/e2e/bed"
)

// logCollector takes logs over OTLP as a collector of OpenTelemetry does, of one sandbox.
type logCollector struct {
	collectorv1.UnimplementedLogsServiceServer

	mu      sync.Mutex
	away    bool
	refused int              // requests while it was away
	lines   map[int64]string // by their offset in standard output
	again   int              // records that came more than once
	wrong   []string
}

func (c *logCollector) Export(_ context.Context, req *collectorv1.ExportLogsServiceRequest) (*collectorv1.ExportLogsServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		c.refused++
		return nil, status.Error(codes.Unavailable, "away")
	}
	for _, r := range req.GetResourceLogs() {
		if name := otlpText(r.GetResource().GetAttributes(), "service.name"); name != "web" {
			c.wrong = append(c.wrong, "service.name is "+name)
		}
		for _, s := range r.GetScopeLogs() {
			for _, l := range s.GetLogRecords() {
				offset, text := int64(-1), l.GetBody().GetStringValue()
				for _, a := range l.GetAttributes() {
					if a.GetKey() == "staddle.offset" {
						offset = a.GetValue().GetIntValue()
					}
				}
				if old, ok := c.lines[offset]; ok {
					if c.again++; old != text {
						c.wrong = append(c.wrong, fmt.Sprintf("at %d came %q and %q", offset, old, text))
					}
				}
				c.lines[offset] = text
			}
		}
	}
	return &collectorv1.ExportLogsServiceResponse{}, nil
}

func otlpText(all []*commonv1.KeyValue, key string) string {
	for _, a := range all {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

func (c *logCollector) set(away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away, c.refused = away, 0
}

func (c *logCollector) count() (lines, refused int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.lines), c.refused
}

// A collector gets every line over kills of the host, and while it is away itself for a
// time; what comes again has the same offset. Workloads do not notice. (LOG-6)
func TestLogs_LOG6_EveryLineReachesTheCollector(t *testing.T) {
	const lines, rounds = 300, 100
	b := bed.New(t, bed.Options{Composition: "node", Disabled: nodeAlone})
	l := b.Listen()
	c := &logCollector{lines: map[int64]string{}}
	server := grpc.NewServer()
	collectorv1.RegisterLogsServiceServer(server, c)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	b.WriteConfig(fmt.Sprintf("logs: {otlp: {endpoint: %q, insecure: true}}", l.Addr()))
	b.Start()
	b.WaitReady()
	importProbe(t, b)
	uid := ensure(t, b, "web", spec(never, probe("main", "bursts", fmt.Sprint(lines), "30ms", fmt.Sprint(rounds))))
	far := func(n int) {
		t.Helper()
		bed.Eventually(t, time.Minute, fmt.Sprintf("%d lines came", n), func(context.Context) (bool, string) {
			got, refused := c.count()
			return got >= n, fmt.Sprint(got, " refused ", refused)
		})
	}
	for i := range 3 {
		far((i + 1) * lines * rounds / 8)
		b.Kill("sandboxhost")
		b.WaitReady()
	}
	c.set(true)
	bed.Eventually(t, waitLong, "it was tried again", func(context.Context) (bool, string) {
		_, refused := c.count()
		return refused > 1, fmt.Sprint(refused)
	})
	bed.Eventually(t, waitLong, "the workload goes on without a collector", func(context.Context) (bool, string) {
		r := b.CLI("--node-socket", b.HostSocket(), "logs", "web", "--tail", "1")
		return r.Stdout > fmt.Sprintf("%099d\n", lines*rounds), r.Stdout + r.Stderr
	})
	b.Kill("sandboxhost")
	b.WaitReady()
	c.set(false)
	far(lines*rounds + 3)
	remove(t, b, uid)
	c.mu.Lock()
	defer c.mu.Unlock()
	var all strings.Builder
	for _, offset := range slices.Sorted(maps.Keys(c.lines)) {
		if int64(all.Len()) != offset {
			t.Fatalf("behind %d came the offset %d", all.Len(), offset)
		}
		all.WriteString(c.lines[offset] + "\n")
	}
	numberedFrom(t, "the collector", all.String(), 0)
	if len(c.wrong) > 0 {
		t.Errorf("%d are wrong: %s", len(c.wrong), c.wrong[0])
	}
	t.Logf("%d lines, %d of them more than once", len(c.lines), c.again)
	settled(t, b)
}
