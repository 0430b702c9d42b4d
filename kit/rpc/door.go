package rpc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// errStopping is why streams end when the process does.
var errStopping = errors.New("the process is stopping")

// unary is the door of every unary call: who calls, may they, is the process
// ready; then the further interceptors and the handler; then one line.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	begin := time.Now()
	id, err := s.admit(ctx, info.FullMethod)
	var resp any
	if err == nil {
		ctx = strip(WithCaller(ctx, id))
		for _, i := range s.behind(info.FullMethod) {
			if i.Unary != nil {
				next := handler
				handler = func(ctx context.Context, req any) (any, error) { return i.Unary(ctx, req, info, next) }
			}
		}
		resp, err = handler(ctx, req)
	}
	s.log(ctx, info.FullMethod, id, begin, err)
	return resp, err
}

// stream is the same for streams, and ends them when the process stops: a
// follower must not hold up the end, nor take it for the end of what it follows.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	begin := time.Now()
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.stopped, func() { cancel(errStopping) })()

	id, err := s.admit(ctx, info.FullMethod)
	if err == nil {
		for _, i := range s.behind(info.FullMethod) {
			if i.Stream != nil {
				next := handler
				handler = func(srv any, ss grpc.ServerStream) error { return i.Stream(srv, ss, info, next) }
			}
		}
		err = handler(srv, &withContext{ss, strip(WithCaller(ctx, id))})
		if errors.Is(context.Cause(ctx), errStopping) {
			err = fault.New(fault.Unavailable, "stream %s: %w", info.FullMethod, errStopping)
		}
	}
	s.log(ctx, info.FullMethod, id, begin, err)
	return err
}

// behind returns the further interceptors of a method, the innermost first.
// gRPC's own services have none.
func (s *Server) behind(fullMethod string) []Interceptor {
	if s.methods[fullMethod].forEveryone {
		return nil
	}
	return s.extra
}

// admit says who calls and whether the call goes on.
func (s *Server) admit(ctx context.Context, fullMethod string) (Identity, error) {
	id, err := identify(ctx)
	if err != nil {
		return id, err
	}
	m := s.methods[fullMethod]
	if err := admit(id, fullMethod, m, s.cfg.AnonymousRemote); err != nil {
		return id, err
	}
	if m.forEveryone || s.alwaysServed[service(fullMethod)] {
		return id, nil
	}
	if ok, reason := s.status.started(); !ok {
		return id, fault.WithReason(fault.New(fault.Unavailable, "%s is not ready: %s", s.status.process, reason), "NOT_READY")
	}
	return id, nil
}

// log writes the one line of a call: changes by people, and those that failed, at
// Info, refusals at Warn, questions and what processes tell each other all the time
// at Debug; also that somebody is away, which the caller tells once.
func (s *Server) log(ctx context.Context, fullMethod string, id Identity, begin time.Time, err error) {
	level := slog.LevelInfo
	routine := err == nil || errors.Is(err, fault.Unavailable)
	if s.methods[fullMethod].readOnly || routine && id.Role != optionsv1.Role_ROLE_OPERATOR {
		level = slog.LevelDebug
	}
	if errors.Is(err, fault.Denied) {
		level = slog.LevelWarn
	}
	if !s.cfg.Log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{logging.Method(fullMethod), logging.Code(codeOf(err)), logging.Duration(time.Since(begin)), logging.Peer(id.Name)}
	if err != nil {
		attrs = append(attrs, logging.Err(err))
	}
	s.cfg.Log.LogAttrs(ctx, level, "call served", attrs...)
}

// codeOf names the outcome by kind, as the caller will see it.
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
