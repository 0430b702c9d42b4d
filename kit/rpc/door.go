package rpc

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	middleware "github.com/grpc-ecosystem/go-grpc-middleware/v2"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	calllog "github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// errStopping is why streams end when the process does.
var errStopping = errors.New("the process is stopping")

// unary is the way of every unary call, the outermost step first: who calls, the
// one line, kinds into statuses, may they call, the further interceptors. Panics are
// caught twice: inside of the line, so that a call which panicked has one, and
// around all, so that no caller can end the process by what an interceptor reads.
func (s *Server) unary() []grpc.UnaryServerInterceptor {
	catch := recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(s.recovered))
	chain := []grpc.UnaryServerInterceptor{
		catch,
		auth.UnaryServerInterceptor(identified),
		calllog.UnaryServerInterceptor(calllog.LoggerFunc(s.served), lineOptions()...),
		catch,
		fault.UnaryServer,
		auth.UnaryServerInterceptor(s.admitted),
	}
	for _, i := range s.extra {
		if i.Unary != nil {
			chain = append(chain, selector.UnaryServerInterceptor(i.Unary, selector.MatchFunc(notOfGRPC)))
		}
	}
	return chain
}

// stream is the same way for streams, which end when the process does.
func (s *Server) stream() []grpc.StreamServerInterceptor {
	catch := recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(s.recovered))
	chain := []grpc.StreamServerInterceptor{
		catch,
		auth.StreamServerInterceptor(identified),
		calllog.StreamServerInterceptor(calllog.LoggerFunc(s.served), lineOptions()...),
		catch,
		fault.StreamServer,
		auth.StreamServerInterceptor(s.admitted),
		s.endWithProcess,
	}
	for _, i := range s.extra {
		if i.Stream != nil {
			chain = append(chain, selector.StreamServerInterceptor(i.Stream, selector.MatchFunc(notOfGRPC)))
		}
	}
	return chain
}

// notOfGRPC selects all but health and reflection, whose messages have no rules of
// ours.
func notOfGRPC(_ context.Context, call interceptors.CallMeta) bool { return !forEveryone(call.Service) }

// identified is the authentication. A caller without an identity goes on to the
// line and is refused behind it, so that the refusal is written and has its kind.
func identified(ctx context.Context) (context.Context, error) {
	id, err := identify(ctx)
	return strip(withCaller(ctx, id, err)), nil
}

// admitted is the authorization: whether the caller may call, and whether the
// process is ready for it. Of a method that the contracts do not know nothing is
// known that would admit anybody.
func (s *Server) admitted(ctx context.Context) (context.Context, error) {
	id, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	fullMethod, _ := grpc.Method(ctx)
	m := s.methods[fullMethod]
	if err := admit(id, fullMethod, m, s.cfg.AnonymousRemote); err != nil {
		return nil, err
	}
	if m.forEveryone || s.alwaysServed[service(fullMethod)] {
		return ctx, nil
	}
	if ok, reason := s.status.started(); !ok {
		return nil, fault.WithReason(fault.New(fault.Unavailable, "%s is not ready: %s", s.status.process, reason), "NOT_READY")
	}
	return ctx, nil
}

// endWithProcess ends a stream when the process stops: a follower must not hold up
// the end, nor take it for the end of what it follows.
func (s *Server) endWithProcess(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.stopped, func() { cancel(errStopping) })()
	ending := middleware.WrapServerStream(ss)
	ending.WrappedContext = ctx
	err := handler(srv, ending)
	if errors.Is(context.Cause(ctx), errStopping) {
		return fault.New(fault.Unavailable, "stream %s: %w", info.FullMethod, errStopping)
	}
	return err
}

// recovered keeps the stack for the log; the caller learns only that it happened.
func (s *Server) recovered(ctx context.Context, p any) error {
	fullMethod, _ := grpc.Method(ctx)
	s.cfg.Log.Error("handler panicked", logging.Method(fullMethod), logging.Err(fmt.Errorf("panic: %v\n%s", p, debug.Stack())))
	return fault.ToStatus(fmt.Errorf("panic: %v", p))
}
