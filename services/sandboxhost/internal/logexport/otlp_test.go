package logexport

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// collector takes logs as one of OpenTelemetry does.
type collector struct {
	collectorv1.UnimplementedLogsServiceServer
	address string

	mu       sync.Mutex
	answer   func(n int) (*collectorv1.ExportLogsServiceResponse, error) // to the n-th request; nil takes all
	requests []*collectorv1.ExportLogsServiceRequest                     // all that came
	headers  metadata.MD
}

func (c *collector) Export(ctx context.Context, req *collectorv1.ExportLogsServiceRequest) (*collectorv1.ExportLogsServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, req)
	c.headers, _ = metadata.FromIncomingContext(ctx)
	if c.answer != nil {
		return c.answer(len(c.requests))
	}
	return &collectorv1.ExportLogsServiceResponse{}, nil
}

func (c *collector) came() []*collectorv1.ExportLogsServiceRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests[:len(c.requests):len(c.requests)]
}

// serve serves until the test ends, or until stop is called.
func (c *collector) serve(t *testing.T, address string, opts ...grpc.ServerOption) (stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	must(t, err)
	c.address = l.Addr().String()
	s := grpc.NewServer(opts...)
	collectorv1.RegisterLogsServiceServer(s, c)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return s.Stop
}

func value(all []*commonv1.KeyValue, key string) *commonv1.AnyValue {
	for _, a := range all {
		if a.GetKey() == key {
			return a.GetValue()
		}
	}
	return nil
}

// byOffset joins what came of both streams. One record may come again, and is the same
// then: again says how many did. Offsets without a gap are demanded.
func byOffset(t *testing.T, requests []*collectorv1.ExportLogsServiceRequest) (out [2]string, again int) {
	t.Helper()
	seen := [2]map[int64]string{{}, {}}
	for _, req := range requests {
		for _, l := range req.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords() {
			i := 0
			if value(l.GetAttributes(), keyStream).GetStringValue() == "stderr" {
				i = 1
			}
			line := l.GetBody().GetStringValue() + string(l.GetBody().GetBytesValue())
			if !value(l.GetAttributes(), keyPartial).GetBoolValue() {
				line += "\n"
			}
			offset := value(l.GetAttributes(), keyOffset).GetIntValue()
			if old, ok := seen[i][offset]; ok {
				if again++; old != line {
					t.Errorf("at offset %d came %q and then %q", offset, old, line)
				}
			}
			seen[i][offset] = line
		}
	}
	for i := range out {
		for {
			line, ok := seen[i][int64(len(out[i]))]
			if !ok {
				break
			}
			delete(seen[i], int64(len(out[i])))
			out[i] += line
		}
		if len(seen[i]) > 0 {
			t.Errorf("%d records of stream %d are behind a gap at %d", len(seen[i]), i, len(out[i]))
		}
	}
	return out, again
}

func (p *place) otlp(c *collector) *Export {
	return NewOTLP(OTLP{Endpoint: c.address, Insecure: true, Node: "n1"}, p.deps())
}

// A collector that is away, and an end of this process meanwhile, cost nothing.
func TestOTLP_SendsWhatWasWritten(t *testing.T) {
	p := newPlace(t, 16<<20)
	c := &collector{}
	stopCollector := c.serve(t, "127.0.0.1:0")
	stop := run(t, p.otlp(c))
	w := p.workload(3)
	want := [2]string{"first\n" + strings.Repeat("é", 40_000) + "\n\xff\xfe\n\nno end", "one\ntwo\n"}
	w.write(0, "first\n")
	eventually(t, "the first line came", func() (bool, string) { return len(c.came()) == 1, sprint(c.came()) })
	stopCollector()
	for i := range want {
		w.write(i, strings.TrimPrefix(want[i], "first\n"))
	}
	w.end()
	stop()
	stop = run(t, p.otlp(c))
	c.serve(t, c.address)
	eventually(t, "all came", func() (bool, string) {
		got, _ := byOffset(t, c.came())
		return got == want, sprint(len(got[0]), len(got[1]))
	})
	eventually(t, "that is noted", func() (bool, string) {
		raw, err := os.ReadFile(filepath.Join(p.store.AttemptDir(w.of), "otlp.json"))
		return err == nil && strings.Contains(string(raw), `"done":true`), sprint(string(raw), err)
	})
	stop()
	n := len(c.came())
	e := p.otlp(c)
	must(t, e.follow(t.Context(), w.of)) // nothing is left
	if _, again := byOffset(t, c.came()); len(c.came()) != n || again > 0 || e.Lost() > 0 {
		t.Errorf("%d requests after the end, %d records twice, %d bytes lost", len(c.came())-n, again, e.Lost())
	}
	r := c.came()[0].GetResourceLogs()[0]
	for key, want := range map[string]string{keyService: "web", keyNamespace: "local", keyHost: "n1", keySandbox: string(w.of.UID), keyContainer: "main"} {
		if got := value(r.GetResource().GetAttributes(), key).GetStringValue(); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if got := value(r.GetResource().GetAttributes(), keyAttempt).GetIntValue(); got != 3 {
		t.Errorf("the attempt is %d", got)
	}
	if l := r.GetScopeLogs()[0].GetLogRecords()[0]; time.Since(time.Unix(0, int64(l.GetTimeUnixNano()))) > time.Hour {
		t.Errorf("the time is %d", l.GetTimeUnixNano())
	}
}

// What the collector does not answer is sent again as it was; what it refuses for good is
// counted; and a process that is killed before its note sends again what has the same offsets.
func TestOTLP_AnswersOfTheCollector(t *testing.T) {
	p := newPlace(t, 16<<20)
	w := p.workload(1)
	w.write(0, "one\ntwo\n")
	w.end()
	c := &collector{}
	c.serve(t, "127.0.0.1:0")
	follow := func(answer func(int) (*collectorv1.ExportLogsServiceResponse, error)) (came []*collectorv1.ExportLogsServiceRequest, lost int64) {
		c.mu.Lock()
		c.answer, c.requests = answer, nil
		c.mu.Unlock()
		_ = os.Remove(filepath.Join(p.store.AttemptDir(w.of), "otlp.json"))
		e := p.otlp(c)
		must(t, e.follow(t.Context(), w.of))
		return c.came(), e.Lost()
	}
	first, lost := follow(func(n int) (*collectorv1.ExportLogsServiceResponse, error) {
		if n == 1 {
			return nil, status.Error(codes.Unavailable, "busy")
		}
		return &collectorv1.ExportLogsServiceResponse{}, nil
	})
	if len(first) != 2 || !proto.Equal(first[0], first[1]) || lost != 0 {
		t.Errorf("without an answer: %d requests, %d bytes lost, want 2 that are the same", len(first), lost)
	}
	second, lost := follow(func(int) (*collectorv1.ExportLogsServiceResponse, error) {
		return &collectorv1.ExportLogsServiceResponse{PartialSuccess: &collectorv1.ExportLogsPartialSuccess{RejectedLogRecords: 1, ErrorMessage: "no"}}, nil
	})
	if len(second) != 1 || !proto.Equal(second[0], first[0]) || lost != 3 {
		t.Errorf("one of two refused: %d requests, %d bytes lost, want the same request again and half of its text", len(second), lost)
	}
	third, lost := follow(func(int) (*collectorv1.ExportLogsServiceResponse, error) {
		return nil, status.Error(codes.InvalidArgument, "no")
	})
	if len(third) != 1 || lost != 6 {
		t.Errorf("all refused: %d requests, %d bytes lost", len(third), lost)
	}
}

// The end of a sandbox's output is sent before it goes.
func TestOTLP_SendsTheEndBeforeItGoes(t *testing.T) {
	p := newPlace(t, 16<<20)
	c := &collector{}
	c.serve(t, "127.0.0.1:0")
	stop := run(t, p.otlp(c))
	w := p.workload(1)
	w.write(0, "first\n")
	eventually(t, "the first line came", func() (bool, string) { return len(c.came()) == 1, sprint(c.came()) })
	w.write(0, "last\n") // while the next batch is gathered
	w.end()
	must(t, p.store.Remove(w.of.UID, webName))
	p.tend()
	c.cameWhole(t, p)
	stop()
}

// cameWhole waits until nothing is kept, and demands that all of it came.
func (c *collector) cameWhole(t *testing.T, p *place) {
	t.Helper()
	eventually(t, "nothing is kept", func() (bool, string) {
		all, err := p.store.ListAll()
		return err == nil && len(all) == 0, sprint(all, err)
	})
	if got, _ := byOffset(t, c.came()); got[0] != "first\nlast\n" {
		t.Errorf("came %q", got[0])
	}
}

// A collector that is away when a sandbox is removed, and an end of this process, cost
// nothing: what it wrote stays until all of it was sent.
func TestOTLP_GoesOnBehindTheRemoval(t *testing.T) {
	p := newPlace(t, 16<<20)
	c := &collector{}
	stopCollector := c.serve(t, "127.0.0.1:0")
	stop := run(t, p.otlp(c))
	p.tend()
	w := p.workload(1)
	w.write(0, "first\n")
	eventually(t, "the first line came", func() (bool, string) { return len(c.came()) == 1, sprint(c.came()) })
	stopCollector()
	w.write(0, "last\n")
	w.end()
	must(t, p.store.Remove(w.of.UID, webName))
	stop()
	must(t, p.store.Close())
	p.open(16 << 20)
	stop = run(t, p.otlp(c))
	p.tend()
	if all, err := p.store.ListAll(); err != nil || len(all) != 1 {
		t.Errorf("kept are %v, %v, want what was not sent", all, err)
	}
	c.serve(t, c.address)
	c.cameWhole(t, p)
	stop()
}

func TestOTLP_TLSAndHeaders(t *testing.T) {
	p := newPlace(t, 16<<20)
	w := p.workload(1)
	w.write(0, "secret\n")
	w.end()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	c := &collector{}
	c.serve(t, "127.0.0.1:0", grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13,
	})))
	ca, headers := filepath.Join(p.dir, "ca"), filepath.Join(p.dir, "headers")
	must(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(headers, []byte("# of the collector\nAuthorization: Bearer t:1\n\n"), 0o600))
	must(t, NewOTLP(OTLP{Endpoint: c.address, CA: ca, HeadersFile: headers, Node: "n1"}, p.deps()).follow(t.Context(), w.of))
	if got := c.headers.Get("authorization"); len(got) != 1 || got[0] != "Bearer t:1" {
		t.Errorf("the header is %q", got)
	}
	must(t, os.Remove(filepath.Join(p.store.AttemptDir(w.of), "otlp.json")))
	stranger := NewOTLP(OTLP{Endpoint: c.address, Node: "n1"}, p.deps())
	k := stranger.kind.(*otlpKind)
	if _, err := k.try(t.Context(), &collectorv1.ExportLogsServiceRequest{}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a collector that no system knows is answered with %v", err)
	}
	must(t, k.close())
	must(t, os.WriteFile(headers, []byte("token-without-name\n"), 0o600))
	if _, err := withHeaders(t.Context(), headers); err == nil || !strings.Contains(err.Error(), headers+":1") || strings.Contains(err.Error(), "token") {
		t.Errorf("a wrong header is answered with %v", err)
	}
}
