package fault_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"staddle.internal/kit/fault"
)

// echo is a service of one unary method and one stream, which answer with the
// error that the test wants.
type echo struct {
	unary  func(ctx context.Context) error
	stream func(grpc.ServerStream) error
}

func (e *echo) describe() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "test.Echo",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Say",
			Handler: func(_ any, ctx context.Context, dec func(any) error, mw grpc.UnaryServerInterceptor) (any, error) {
				in := new(wrapperspb.StringValue)
				if err := dec(in); err != nil {
					return nil, err
				}
				return mw(ctx, in, &grpc.UnaryServerInfo{FullMethod: "/test.Echo/Say"}, func(ctx context.Context, req any) (any, error) {
					return req, e.unary(ctx)
				})
			},
		}},
		Streams: []grpc.StreamDesc{{
			StreamName: "Flow", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, ss grpc.ServerStream) error { return e.stream(ss) },
		}},
	}
}

// connect serves e and returns a connection to it. Both end with the test.
func connect(t *testing.T, e *echo) *grpc.ClientConn {
	t.Helper()
	lis := bufconn.Listen(1 << 16)
	srv := grpc.NewServer(grpc.UnaryInterceptor(fault.UnaryServer), grpc.StreamInterceptor(fault.StreamServer))
	srv.RegisterService(e.describe(), e)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///x",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithUnaryInterceptor(fault.UnaryClient), grpc.WithStreamInterceptor(fault.StreamClient))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return conn
}

func say(ctx context.Context, conn *grpc.ClientConn) error {
	return conn.Invoke(ctx, "/test.Echo/Say", wrapperspb.String("hi"), new(wrapperspb.StringValue))
}

func TestUnary_KindCrossesAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := error(nil)
		conn := connect(t, &echo{unary: func(context.Context) error { return want }})
		if err := say(t.Context(), conn); err != nil {
			t.Errorf("no error became %v", err)
		}
		for _, k := range kinds {
			want = fault.WithReason(fault.New(k, "no"), "NO")
			err := say(t.Context(), conn)
			if !errors.Is(err, k) || fault.Reason(err) != "NO" || err.Error() != "no" {
				t.Errorf("%v arrived as %v %q %q", k, fault.KindOf(err), fault.Reason(err), err)
			}
		}
	})
}

func TestUnary_EndOfAPartIsNotTheCallersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := connect(t, &echo{unary: func(context.Context) error { return context.Canceled }})
		err := say(t.Context(), conn)
		if !errors.Is(err, fault.Unavailable) || errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want Unavailable", err)
		}
	})
}

func TestUnary_DeadlineOfTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := connect(t, &echo{unary: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
		ctx, cancel := context.WithTimeout(t.Context(), 1e9)
		defer cancel()
		if err := say(ctx, conn); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want DeadlineExceeded", err)
		}
	})
}

func TestStream_KindAndEndCrossAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen error
		result := error(nil)
		conn := connect(t, &echo{stream: func(ss grpc.ServerStream) error {
			for seen = nil; seen == nil; {
				seen = ss.RecvMsg(new(wrapperspb.StringValue))
			}
			return result
		}})
		flow := func() error {
			cs, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Echo/Flow")
			if err != nil {
				return err
			}
			if err := errors.Join(cs.SendMsg(wrapperspb.String("x")), cs.CloseSend()); err != nil {
				return err
			}
			return cs.RecvMsg(new(wrapperspb.StringValue))
		}
		if err := flow(); err != io.EOF { //nolint:errorlint // grpc promises the very value
			t.Errorf("end arrived as %v, want io.EOF", err)
		}
		if seen != io.EOF { //nolint:errorlint // grpc promises the very value
			t.Errorf("handler saw %v, want io.EOF", seen)
		}
		result = fault.New(fault.Conflict, "compacted")
		if err := flow(); !errors.Is(err, fault.Conflict) {
			t.Errorf("got %v, want Conflict", err)
		}
	})
}

func TestUnary_NobodyThereIsUnavailable(t *testing.T) {
	conn, err := grpc.NewClient("unix:"+t.TempDir()+"/none", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(fault.UnaryClient))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := say(t.Context(), conn); !errors.Is(err, fault.Unavailable) {
		t.Errorf("got %v, want Unavailable", err)
	}
}
