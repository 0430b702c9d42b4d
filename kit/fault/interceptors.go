package fault

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// UnaryServer turns the errors of handlers, and of interceptors after it, into
// statuses.
func UnaryServer(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if err != nil {
		return nil, ToStatus(ownEnd(ctx, err))
	}
	return resp, nil
}

// StreamServer does the same for streams. What the handler reads from its
// stream fails with kinds too.
func StreamServer(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return ToStatus(ownEnd(ss.Context(), handler(srv, &serverStream{ss})))
}

// UnaryClient turns the statuses of answers into errors with kinds.
func UnaryClient(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return FromStatus(invoker(ctx, method, req, reply, cc, opts...))
}

// StreamClient does the same for streams; io.EOF stays what it is.
func StreamClient(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	cs, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, FromStatus(err)
	}
	return &clientStream{cs}, nil
}

// ownEnd makes Unavailable of a cancellation that was not the caller's: a part
// of this process was stopped under the handler, and to say Canceled would tell
// the caller that it had given up itself.
func ownEnd(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || !errors.Is(err, context.Canceled) {
		return err
	}
	if _, classified := errors.AsType[Kind](err); classified {
		return err
	}
	return New(Unavailable, "call ended from inside: %w", err)
}

type serverStream struct{ grpc.ServerStream }

func (s *serverStream) SendMsg(m any) error { return FromStatus(s.ServerStream.SendMsg(m)) }
func (s *serverStream) RecvMsg(m any) error { return FromStatus(s.ServerStream.RecvMsg(m)) }

type clientStream struct{ grpc.ClientStream }

func (s *clientStream) SendMsg(m any) error { return FromStatus(s.ClientStream.SendMsg(m)) }
func (s *clientStream) RecvMsg(m any) error { return FromStatus(s.ClientStream.RecvMsg(m)) }
func (s *clientStream) CloseSend() error    { return FromStatus(s.ClientStream.CloseSend()) }
func (s *clientStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, FromStatus(err)
}
