package rpc

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
)

// Access is asked on streams as on calls, before the handler hears of them.
func TestServer_RefusesStreams(t *testing.T) {
	var log logBuffer
	var reached reachedBy
	n := setup{with: func(c *ServerConfig) { c.Log = log.json() }, do: reached.behaviour()}.start(t)
	for _, method := range []string{"Follow", "Talk"} {
		ss, err := open(t.Context(), dial(t, n.path, DialConfig{Process: "storage"}), method)
		if err == nil {
			err = ss.RecvMsg(new(wrapperspb.StringValue))
		}
		wantKind(t, err, fault.Denied)
		wantText(t, err, full(method), "storage", "operator")
		if line := log.lines(t, full(method), 1)[0]; line["level"] != "WARN" || line["code"] != "denied" || line["peer"] != "uid 0" {
			t.Errorf("%s: %v", method, line)
		}
	}
	if got := reached.by(0); len(got) > 0 {
		t.Errorf("handlers of %v were reached", got)
	}
}

// What is added behind access is about our own contracts, not gRPC's.
func TestServer_AsksNothingFurtherOfHealth(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	note := func(method string) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, method)
	}
	extra := Interceptor{
		Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			note(info.FullMethod)
			return next(ctx, req)
		},
		Stream: func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			note(info.FullMethod)
			return next(srv, ss)
		},
	}
	var reached reachedBy
	n := setup{after: func(s *Server) { s.Use(extra) }, do: reached.behaviour()}.start(t)
	conn := dial(t, n.path, DialConfig{})
	health := healthv1.NewHealthClient(conn)
	_, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{})
	must(t, err)
	watch, err := health.Watch(t.Context(), &healthv1.HealthCheckRequest{})
	must(t, err)
	_, err = watch.Recv()
	must(t, err)
	methodsOf(t, n) // by reflection
	_, err = processv1.NewProcessServiceClient(conn).GetStatus(t.Context(), &processv1.GetStatusRequest{})
	must(t, err)
	ss, err := open(t.Context(), conn, "Talk")
	must(t, err)
	must(t, ss.RecvMsg(new(wrapperspb.StringValue)))
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"/staddle.process.v1.ProcessService/GetStatus", full("Talk")}; !slices.Equal(asked, want) {
		t.Errorf("asked about %v, want %v", asked, want)
	}
}

func TestServer_UseComesBeforeTheServices(t *testing.T) {
	s, err := NewServer(ServerConfig{Process: "storage", Log: slog.New(slog.DiscardHandler), Peers: NewPeers(config.Users{})})
	must(t, err)
	s.Use(Interceptor{})
	s.GRPC()
	defer func() {
		if recover() == nil {
			t.Error("an interceptor that comes too late is taken as if it were asked")
		}
	}()
	s.Use(Interceptor{})
}
