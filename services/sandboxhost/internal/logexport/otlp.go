package logexport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/logs"
)

// OTLP says where records go over OTLP.
type OTLP struct {
	// Endpoint is host:port of a collector.
	Endpoint string
	// CA is a file with the certificates that its own is checked against. Empty means those
	// of the system.
	CA string
	// HeadersFile holds what is sent along, "name: value" a line. It is read for each batch.
	// Empty means nothing.
	HeadersFile string
	// Insecure speaks without TLS.
	Insecure bool
	// Node is the name of this one.
	Node string
}

const (
	// otlpLine is how much text a record has at most.
	otlpLine = 64 << 10
	// batchBytes and batchRecords end a batch. A collector takes 4 MiB by default; and each
	// attempt holds one while the collector is away.
	batchBytes   = 128 << 10
	batchRecords = 1000
	// linger is how long a batch that is not full is gathered, after the one before.
	linger = time.Second
	// sendLimit bounds one try.
	sendLimit = 10 * time.Second
	// maxSends is how many batches are under way at once.
	maxSends = 4
	// maxRetry bounds for how long a collector may put off the next try.
	maxRetry = 5 * time.Minute
)

// NewOTLP returns the export over OTLP. It connects to nothing until there is something
// to send.
func NewOTLP(cfg OTLP, deps Deps) *Export {
	k := &otlpKind{cfg: cfg, deps: deps, turn: make(chan struct{}, maxSends)}
	e := newExport(k, deps)
	k.export = e
	return e
}

type otlpKind struct {
	cfg    OTLP
	deps   Deps
	export *Export
	turn   chan struct{} // one element per batch under way
	held   atomic.Bool   // it was told that the collector takes nothing

	mu     sync.Mutex
	conn   *grpc.ClientConn
	client collectorv1.LogsServiceClient
}

func (k *otlpKind) name() string                    { return "otlp" }
func (k *otlpKind) most() int                       { return otlpLine }
func (k *otlpKind) remove(logs.Attempt) error       { return nil } // its note goes with the output
func (k *otlpKind) sweep(map[id.Sandbox]bool) error { return nil }
func (k *otlpKind) open(a logs.Attempt) sink {
	return &otlpSink{kind: k, of: a, note: note{k.deps.Source, a, "otlp.json"}}
}

// otlpSink sends the records of one attempt.
//
// The note moves on once the collector has taken a batch. Who is killed in between sends
// its records again: each has its offset, by which a second one is known.
type otlpSink struct {
	kind *otlpKind
	of   logs.Attempt
	note note

	name  logs.Name
	at    offsets // how far batch goes
	batch []*logsv1.LogRecord
	size  int
	noted bool // the note could be written last time
}

func (s *otlpSink) begin(context.Context) (offsets, bool, error) {
	noted, _, err := s.note.load()
	if err != nil || noted.Done && s.kind.deps.Source.Ended(s.of) {
		return noted.at(), noted.Done, err
	}
	s.at, s.noted = noted.at(), true
	if s.name, err = s.kind.deps.Name(s.of.UID); err != nil {
		return offsets{}, false, fmt.Errorf("find the name of sandbox %s: %w", s.of.UID, err)
	}
	return s.at, false, nil
}

func (s *otlpSink) take(ctx context.Context, r record) error {
	i := of(r.stderr)
	if r.offset > s.at[i] {
		s.kind.export.missing(s.of, r, s.at[i], gone)
	}
	s.batch = append(s.batch, otlpRecord(r))
	s.size += len(r.text)
	s.at[i] = r.next()
	if s.size < batchBytes && len(s.batch) < batchRecords {
		return nil
	}
	return s.send(ctx, false)
}

// idle sends what was gathered, and lets the next batch gather.
func (s *otlpSink) idle(ctx context.Context) error {
	if len(s.batch) == 0 {
		return nil
	}
	if err := s.send(ctx, false); err != nil {
		return err
	}
	return backoff.Wait(ctx, linger)
}

func (s *otlpSink) finish(ctx context.Context) error { return s.send(ctx, true) }

// close lets go of what was not sent: it is read again.
func (s *otlpSink) close() error { return nil }

// send sends the batch until the collector takes it or says that it never will, and then
// notes how far that is.
func (s *otlpSink) send(ctx context.Context, done bool) error {
	if len(s.batch) > 0 {
		req := s.kind.request(s.of, s.name, s.batch)
		if err := s.kind.deliver(ctx, s.of, req, s.size); err != nil {
			return err
		}
		s.batch, s.size = nil, 0
	}
	n := state{Done: done}
	n.set(s.at)
	err := s.note.save(n)
	if err != nil && s.noted { // it only has an effect if we are killed: records are sent again then
		s.kind.deps.Log.Warn("offset of an export not kept", append(attrs(s.of, s.kind.name()), logging.Err(err))...)
	}
	s.noted = err == nil
	return nil
}

// deliver sends one request, the same one each time.
func (k *otlpKind) deliver(ctx context.Context, a logs.Attempt, req *collectorv1.ExportLogsServiceRequest, size int) error {
	for failed := 1; ; failed++ {
		res, err := k.try(ctx, req)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		refused := res.GetPartialSuccess()
		switch {
		case err == nil && refused.GetRejectedLogRecords() == 0:
		case err == nil: // to send it again is forbidden
			k.refused(a, req, refused.GetRejectedLogRecords(), size, refused.GetErrorMessage())
		case errors.Is(err, fault.Invalid):
			k.refused(a, req, int64(countOf(req)), size, err.Error())
		default:
			delay := max(again.Delay(failed, rand.Float64()), min(putOff(err), maxRetry)) //nolint:gosec // jitter
			if !k.held.Swap(true) {
				k.deps.Log.Warn("collector of logs takes nothing", logging.Path(k.cfg.Endpoint), logging.Err(err), logging.RetryIn(delay))
			}
			if err := backoff.Wait(ctx, delay); err != nil {
				return err
			}
			continue
		}
		if k.held.Swap(false) {
			k.deps.Log.Info("collector of logs goes on", logging.Path(k.cfg.Endpoint))
		}
		return nil
	}
}

// try sends a request once.
func (k *otlpKind) try(ctx context.Context, req *collectorv1.ExportLogsServiceRequest) (*collectorv1.ExportLogsServiceResponse, error) {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	client, err := k.connect()
	if err != nil {
		return nil, err
	}
	if ctx, err = withHeaders(ctx, k.cfg.HeadersFile); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	return client.Export(ctx, req)
}

// refused counts what a collector will never take. Of how many bytes it took the others it
// does not say: they are counted by their share.
func (k *otlpKind) refused(a logs.Attempt, req *collectorv1.ExportLogsServiceRequest, records int64, size int, why string) {
	n := int64(size)
	if all := int64(countOf(req)); records < all {
		n = n * records / all
	}
	k.export.lost.Add(n)
	k.deps.Log.Warn("output not exported", append(attrs(a, k.name()), slog.Int64("records", records), slog.Int64("bytes", n), logging.Reason(why))...)
}

func countOf(req *collectorv1.ExportLogsServiceRequest) int {
	return len(req.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords())
}

// putOff is how long a collector asks to be left alone.
func putOff(err error) time.Duration {
	for _, d := range fault.Details(err) {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}
