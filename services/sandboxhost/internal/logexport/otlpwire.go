package logexport

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcev1 "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/logs"
)

// scope is the instrumentation scope of all records.
const scope = "staddle"

// Keys of what records are told apart by. Those without a prefix are conventions of OpenTelemetry.
const (
	keyService   = "service.name"
	keyNamespace = "service.namespace"
	keyInstance  = "service.instance.id"
	keyHost      = "host.name"
	keySandbox   = "staddle.sandbox.uid"
	keyContainer = "staddle.container"
	keyAttempt   = "staddle.attempt"
	keyStream    = "log.iostream"
	keyOffset    = "staddle.offset"
	keyPartial   = "staddle.partial"
)

// request is a batch of one attempt.
func (k *otlpKind) request(a logs.Attempt, name logs.Name, batch []*logsv1.LogRecord) *collectorv1.ExportLogsServiceRequest {
	return &collectorv1.ExportLogsServiceRequest{ResourceLogs: []*logsv1.ResourceLogs{{
		Resource: &resourcev1.Resource{Attributes: []*commonv1.KeyValue{
			text(keyService, name.Name), text(keyNamespace, name.Manager), text(keyInstance, string(a.UID)), text(keyHost, k.cfg.Node),
			text(keySandbox, string(a.UID)), text(keyContainer, a.Container), number(keyAttempt, int64(a.Attempt)),
		}},
		ScopeLogs: []*logsv1.ScopeLogs{{Scope: &commonv1.InstrumentationScope{Name: scope}, LogRecords: batch}},
	}}}
}

// otlpRecord is a record on the wire. Nothing in it depends on when it is sent.
func otlpRecord(r record) *logsv1.LogRecord {
	stream := "stdout"
	if r.stderr {
		stream = "stderr"
	}
	l := &logsv1.LogRecord{
		Body:       &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: string(r.text)}},
		Attributes: []*commonv1.KeyValue{text(keyStream, stream), number(keyOffset, r.offset)},
	}
	if !utf8.Valid(r.text) {
		l.Body.Value = &commonv1.AnyValue_BytesValue{BytesValue: bytes.Clone(r.text)}
	}
	if !r.at.IsZero() {
		l.TimeUnixNano = uint64(r.at.UnixNano())
		l.ObservedTimeUnixNano = l.TimeUnixNano
	}
	if !r.whole {
		l.Attributes = append(l.Attributes, &commonv1.KeyValue{Key: keyPartial, Value: &commonv1.AnyValue{Value: &commonv1.AnyValue_BoolValue{BoolValue: true}}})
	}
	return l
}

func text(key, value string) *commonv1.KeyValue {
	return &commonv1.KeyValue{Key: key, Value: &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: value}}}
}

func number(key string, value int64) *commonv1.KeyValue {
	return &commonv1.KeyValue{Key: key, Value: &commonv1.AnyValue{Value: &commonv1.AnyValue_IntValue{IntValue: value}}}
}

// connect returns the connection for all attempts.
func (k *otlpKind) connect() (collectorv1.LogsServiceClient, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.client != nil {
		return k.client, nil
	}
	creds := insecure.NewCredentials()
	if !k.cfg.Insecure {
		roots, err := rootsIn(k.cfg.CA)
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
	}
	conn, err := grpc.NewClient("dns:///"+k.cfg.Endpoint, grpc.WithTransportCredentials(creds), grpc.WithUnaryInterceptor(fault.UnaryClient))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", k.cfg.Endpoint, err)
	}
	k.conn, k.client = conn, collectorv1.NewLogsServiceClient(conn)
	return k.client, nil
}

// close ends the connection. Batches under way fail.
func (k *otlpKind) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		return nil
	}
	err := k.conn.Close()
	k.conn, k.client = nil, nil
	return err
}

// rootsIn are the certificates in a file; nil means those of the system.
func rootsIn(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // that is how crypto/tls calls them
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read logs.otlp.ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("read logs.otlp.ca: %s has no certificate in PEM", file)
	}
	return pool, nil
}

// withHeaders adds what a file says.
func withHeaders(ctx context.Context, file string) (context.Context, error) {
	if file == "" {
		return ctx, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return ctx, fmt.Errorf("read logs.otlp.headers_file: %w", err)
	}
	line := 0
	for each := range strings.Lines(string(raw)) {
		line++
		each = strings.TrimSpace(each)
		if each == "" || strings.HasPrefix(each, "#") {
			continue
		}
		name, value, ok := strings.Cut(each, ":")
		name = strings.ToLower(strings.TrimSpace(name))
		if !ok || name == "" || strings.ContainsAny(name, " \t") { // the value is a secret
			return ctx, fmt.Errorf("read logs.otlp.headers_file: %s:%d is no header: write NAME: VALUE", file, line)
		}
		ctx = metadata.AppendToOutgoingContext(ctx, name, strings.TrimSpace(value))
	}
	return ctx, nil
}
