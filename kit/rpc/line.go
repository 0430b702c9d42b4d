package rpc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	calllog "github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"google.golang.org/grpc"

	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// Fields by which the interceptor hands over an error and a duration as they are.
// The fields that it makes itself have keys that are not ours, and are not written.
const (
	errorField    = "error"
	durationField = "duration"
)

// lineOptions let the interceptor tell of the end of a call only, never of a
// message.
func lineOptions() []calllog.Option {
	return []calllog.Option{
		calllog.WithLogOnEvents(calllog.FinishCall),
		calllog.WithLevels(fault.ByCode(loudness)),
		calllog.WithErrorFields(func(err error) calllog.Fields { return calllog.Fields{errorField, fault.FromStatus(err)} }),
		calllog.WithDurationField(func(d time.Duration) calllog.Fields { return calllog.Fields{durationField, d} }),
	}
}

// loudness is the level of an outcome, as far as the outcome alone says it.
func loudness(k fault.Kind) calllog.Level {
	if k == fault.Denied {
		return calllog.LevelWarn
	}
	return calllog.LevelInfo
}

// ended is what a line tells of a call.
type ended struct {
	method string // full name
	took   time.Duration
	err    error // with its kind
}

// endOf takes out of the fields what a line tells.
func endOf(fields calllog.Fields) ended {
	var e ended
	var service, method string
	for i := fields.Iterator(); i.Next(); {
		switch key, value := i.At(); key {
		case calllog.ServiceFieldKey:
			service, _ = value.(string)
		case calllog.MethodFieldKey:
			method, _ = value.(string)
		case errorField:
			e.err, _ = value.(error)
		case durationField:
			e.took, _ = value.(time.Duration)
		}
	}
	e.method = "/" + service + "/" + method
	return e
}

// attrs are those of the line.
func (e ended) attrs(more ...slog.Attr) []slog.Attr {
	attrs := append([]slog.Attr{logging.Method(e.method), logging.Code(codeOf(e.err)), logging.Duration(e.took)}, more...)
	if e.err != nil {
		attrs = append(attrs, logging.Err(e.err))
	}
	return attrs
}

// served writes the one line of a call: changes by people, and those that failed,
// at Info, refusals at Warn, questions and what processes tell each other all the
// time at Debug; also that somebody is away, which the caller tells once.
func (s *Server) served(ctx context.Context, level calllog.Level, _ string, fields ...any) {
	e := endOf(fields)
	id, _ := callerOf(ctx)
	if level < calllog.LevelWarn && quiet(s.methods[e.method], id.Role, e.err) {
		level = calllog.LevelDebug
	}
	if s.cfg.Log.Enabled(ctx, slog.Level(level)) {
		s.cfg.Log.LogAttrs(ctx, slog.Level(level), "call served", e.attrs(logging.Peer(id.Name))...)
	}
}

// quiet says of a call that was not refused whether it is routine.
func quiet(m method, role optionsv1.Role, err error) bool {
	routine := err == nil || errors.Is(err, fault.Unavailable)
	return m.readOnly || routine && role != optionsv1.Role_ROLE_OPERATOR
}

// failed is the client's interceptor, which writes a line at Debug for each call
// that failed.
func failed(log *slog.Logger) grpc.UnaryClientInterceptor {
	write := func(ctx context.Context, _ calllog.Level, _ string, fields ...any) {
		if e := endOf(fields); e.err != nil {
			log.LogAttrs(ctx, slog.LevelDebug, "call failed", e.attrs()...)
		}
	}
	return calllog.UnaryClientInterceptor(calllog.LoggerFunc(write), lineOptions()...)
}

// codeOf names the outcome by kind, as the caller sees it.
func codeOf(err error) string {
	switch {
	case err == nil:
		return "OK"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline exceeded"
	}
	return fault.KindOf(err).String()
}
