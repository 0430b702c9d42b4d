package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"

	"staddle.internal/kit/fault"
)

// UDS-3: open streams never hold up a stop, and their clients learn that it was
// one.
func TestServer_UDS3_StopEndsOpenStreams(t *testing.T) {
	do := behaviour{stream: func(method string, ss grpc.ServerStream) error {
		if err := ss.SendMsg(wrapperspb.String("first")); err != nil {
			return err
		}
		if method == "Follow" {
			<-ss.Context().Done()
			return nil // a handler that takes its end for a clean one
		}
		var in wrapperspb.StringValue
		for { // an exec that waits for input does not look at the context
			if err := ss.RecvMsg(&in); err != nil {
				return err
			}
		}
	}}
	n := setup{do: do}.start(t)
	conn := dial(t, n.path, DialConfig{})
	streams := openMany(t, conn)

	begin := time.Now()
	n.stop()
	if took := time.Since(begin); took > 8*time.Second {
		t.Errorf("stop took %s", took)
	}
	for i, ss := range streams {
		err := ss.RecvMsg(new(wrapperspb.StringValue))
		if !errors.Is(err, fault.Unavailable) {
			t.Errorf("stream %d ended with %v, want Unavailable", i, err)
		}
		if i < follows { // those were told, not cut off
			wantText(t, err, "the process is stopping")
		}
	}
	setup{path: n.path, do: do}.start(t)
	for _, method := range []string{"Follow", "Talk"} {
		eventually(t, method+" accepted after the restart", func() (any, bool) {
			ss, err := open(t.Context(), conn, method)
			if err == nil {
				err = ss.RecvMsg(new(wrapperspb.StringValue))
			}
			return err, err == nil
		})
	}
}

// follows is how many of the streams of openMany watch their context.
const follows = 3

// openMany holds three follows and two talks open.
func openMany(t *testing.T, conn grpc.ClientConnInterface) []grpc.ClientStream {
	t.Helper()
	var streams []grpc.ClientStream
	for _, method := range []string{"Follow", "Follow", "Follow", "Talk", "Talk"} {
		ss, err := open(t.Context(), conn, method)
		must(t, err)
		must(t, ss.RecvMsg(new(wrapperspb.StringValue)))
		streams = append(streams, ss)
	}
	return streams
}

func TestServer_StopLetsCallsFinish(t *testing.T) {
	entered := make(chan struct{})
	release := make(chan struct{})
	n := setup{do: behaviour{unary: func(context.Context, string, string) (string, error) {
		close(entered)
		<-release
		return "done", nil
	}}}.start(t)
	conn := dial(t, n.path, DialConfig{})
	var got string
	var err error
	var wg sync.WaitGroup
	wg.Go(func() { got, err = call(t.Context(), conn, "Change", "") })
	<-entered
	wg.Go(func() { n.stop() })
	eventually(t, "server stopping", func() (any, bool) {
		st := n.Status().Get().GetState()
		return st, st == processv1.ProcessState_PROCESS_STATE_STOPPING
	})
	close(release)
	wg.Wait()
	if err != nil || got != "done" {
		t.Errorf("call in flight: %q, %v", got, err)
	}
}

// UDS-6: a kind is the same at each hop.
func TestServer_UDS6_KindsCrossTwoHops(t *testing.T) {
	kinds := map[string]fault.Kind{
		"invalid": fault.Invalid, "not found": fault.NotFound, "exists": fault.Exists, "conflict": fault.Conflict,
		"exhausted": fault.Exhausted, "denied": fault.Denied, "internal": fault.Internal, "unavailable": fault.Unavailable,
	}
	inner := setup{do: behaviour{unary: func(_ context.Context, _, in string) (string, error) {
		return "", fault.WithReason(fault.New(kinds[in], "patch entity e1: %s", in), "STALE")
	}}}.start(t)
	toInner := dial(t, inner.path, DialConfig{})
	outer := setup{do: behaviour{unary: func(ctx context.Context, method, in string) (string, error) {
		out, err := call(ctx, toInner, method, in)
		if err != nil {
			return "", fmt.Errorf("ask inner: %w", err)
		}
		return out, nil
	}}}.start(t)
	conn := dial(t, outer.path, DialConfig{})
	for name, kind := range kinds {
		_, err := call(t.Context(), conn, "Change", name)
		if !errors.Is(err, kind) || fault.Reason(err) != "STALE" {
			t.Errorf("%s: %v has kind %v and reason %q", name, err, fault.KindOf(err), fault.Reason(err))
		}
		wantText(t, err, "ask inner: patch entity e1: "+name)
	}
}

// UDS-6: the same on streams, with what is told for machines; also of refusals and of
// ends that no handler made.
func TestServer_UDS6_KindsOfStreamsCrossTwoHops(t *testing.T) {
	broken := fault.WithDetails(fault.WithReason(fault.New(fault.Invalid, "check e1: two things"), "BROKEN"), wrapperspb.String("first"), wrapperspb.String("second"))
	ends := map[string]error{
		"broken": broken, "stale": fault.New(fault.Conflict, "patch e1: stale"), "missing": fault.New(fault.NotFound, "get e1"),
		"plain": errors.New("bug"), "late": context.DeadlineExceeded, "stopped inside": context.Canceled,
	}
	inner := setup{do: behaviour{stream: func(_ string, ss grpc.ServerStream) error {
		return ends[metadata.ValueFromIncomingContext(ss.Context(), "end")[0]]
	}}}.start(t)
	toInner := dial(t, inner.path, DialConfig{})
	outer := setup{do: behaviour{stream: func(method string, ss grpc.ServerStream) error {
		end := metadata.ValueFromIncomingContext(ss.Context(), "end")[0]
		asked, err := open(metadata.AppendToOutgoingContext(ss.Context(), "end", end), toInner, method)
		if err != nil {
			return err
		}
		return fmt.Errorf("ask inner: %w", asked.RecvMsg(new(wrapperspb.StringValue)))
	}}}.start(t)
	conn := dial(t, outer.path, DialConfig{})
	for name, want := range map[string]error{
		"broken": fault.Invalid, "stale": fault.Conflict, "missing": fault.NotFound, "plain": fault.Internal,
		"late": context.DeadlineExceeded, "stopped inside": fault.Unavailable,
	} {
		ss, err := open(metadata.AppendToOutgoingContext(t.Context(), "end", name), conn, "Talk")
		must(t, err)
		if err := ss.RecvMsg(new(wrapperspb.StringValue)); !errors.Is(err, want) {
			t.Errorf("%s: %v has kind %v, want %v", name, err, fault.KindOf(err), want)
		} else if name == "broken" && (fault.Reason(err) != "BROKEN" || len(fault.Details(err)) != 2) {
			t.Errorf("%s: reason %q and details %v", name, fault.Reason(err), fault.Details(err))
		}
	}
}

func TestServer_LargeMessageIsNotANodeThatIsFull(t *testing.T) {
	n := setup{}.start(t)
	_, err := call(t.Context(), dial(t, n.path, DialConfig{}), "Change", strings.Repeat("x", MaxMessageSize+1))
	if err == nil || errors.Is(err, fault.Exhausted) {
		t.Errorf("got %v", err)
	}
}

func TestServer_SurvivesAPanic(t *testing.T) {
	var log logBuffer
	n := setup{
		with: func(c *ServerConfig) { c.Log = log.logger() },
		do: behaviour{unary: func(_ context.Context, _, in string) (string, error) {
			if in == "bang" {
				panic("bang")
			}
			return in, nil
		}},
	}.start(t)
	conn := dial(t, n.path, DialConfig{})
	_, err := call(t.Context(), conn, "Change", "bang")
	wantKind(t, err, fault.Internal)
	if got, err := call(t.Context(), conn, "Change", "fine"); err != nil || got != "fine" {
		t.Errorf("after the panic: %q, %v", got, err)
	}
	if !strings.Contains(log.String(), "handler panicked") {
		t.Errorf("the log does not tell: %s", log.String())
	}
}

func TestServer_LogsOneLinePerCall(t *testing.T) {
	var log logBuffer
	n := setup{with: func(c *ServerConfig) { c.Log = log.logger() }}.start(t)
	conn := dial(t, n.path, DialConfig{})
	for _, m := range []string{"Read", "Change", "NoRule"} {
		call(t.Context(), conn, m, "")
	}
	for method, want := range map[string]string{
		"Read": "level=DEBUG", "Change": "level=INFO", "NoRule": "level=WARN",
	} {
		var lines []string
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "method="+full(method)+" ") {
				lines = append(lines, line)
			}
		}
		if len(lines) != 1 || !strings.Contains(lines[0], want) || !strings.Contains(lines[0], `peer="uid 0"`) {
			t.Errorf("%s: %q, want one line with %s", method, lines, want)
		}
	}
}

// For hours without a coordinator there is no line per try.
func TestServer_LogsRoutineOfProcessesAtDebug(t *testing.T) {
	var log logBuffer
	n := setup{with: func(c *ServerConfig) { c.Log = log.logger() }, do: behaviour{unary: func(_ context.Context, _, in string) (string, error) {
		if in == "away" {
			return "", fault.New(fault.Unavailable, "away")
		}
		return "", errors.New("broken")
	}}}.start(t)
	conn := dial(t, n.path, DialConfig{Process: "sandbox-agent"})
	for _, in := range []string{"away", "broken"} {
		if _, err := call(t.Context(), conn, "AgentOnly", in); err == nil {
			t.Errorf("%s: no error", in)
		}
	}
	for _, want := range []string{"level=DEBUG .* err=away", "level=INFO .* err=broken"} {
		if !regexp.MustCompile(want).MatchString(log.String()) {
			t.Errorf("the log does not match %q:\n%s", want, log.String())
		}
	}
}

func TestServer_RefusesDomainCallsUntilItWasReady(t *testing.T) {
	n := setup{cold: true}.start(t)
	n.Status().SetNotReady("recovering 3 volumes")
	conn := dial(t, n.path, DialConfig{FailFast: true})
	_, err := call(t.Context(), conn, "Change", "")
	wantKind(t, err, fault.Unavailable)
	wantText(t, err, "storage is not ready: recovering 3 volumes")

	st, err := processv1.NewProcessServiceClient(conn).GetStatus(t.Context(), &processv1.GetStatusRequest{})
	must(t, err)
	if st.GetReason() != "recovering 3 volumes" || st.GetState() != processv1.ProcessState_PROCESS_STATE_STARTING ||
		int(st.GetPid()) != os.Getpid() || st.GetProcess() != "storage" || st.GetVersion() != "test" {
		t.Errorf("status %v", st)
	}
	n.Status().SetReady()
	_, err = call(t.Context(), conn, "Change", "")
	must(t, err)
	n.Status().SetNotReady("disk away")
	_, err = call(t.Context(), conn, "Change", "")
	if err != nil {
		t.Errorf("a process that was ready answers: %v", err)
	}
}

func TestServer_AlwaysServe(t *testing.T) {
	n := setup{cold: true, after: func(s *Server) { s.AlwaysServe(testService) }}.start(t)
	_, err := call(t.Context(), dial(t, n.path, DialConfig{}), "Change", "")
	must(t, err)
}

func TestServer_HealthFollowsStatus(t *testing.T) {
	n := setup{cold: true}.start(t)
	n.Status().SetHealth("link", true)
	client := healthv1.NewHealthClient(dial(t, n.path, DialConfig{}))
	names := []string{"", testService, "staddle.process.v1.ProcessService"}
	for _, step := range []struct {
		do   func()
		want healthv1.HealthCheckResponse_ServingStatus
	}{
		{func() {}, healthv1.HealthCheckResponse_NOT_SERVING},
		{n.Status().SetReady, healthv1.HealthCheckResponse_SERVING},
		{func() { n.Status().Block("dns", "no upstream") }, healthv1.HealthCheckResponse_NOT_SERVING},
		{func() { n.Status().Unblock("dns") }, healthv1.HealthCheckResponse_SERVING},
	} {
		step.do()
		for _, name := range names {
			got, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name})
			if err != nil || got.GetStatus() != step.want {
				t.Errorf("%q: %v, %v, want %v", name, got.GetStatus(), err, step.want)
			}
		}
	}
	list, err := client.List(t.Context(), &healthv1.HealthListRequest{})
	must(t, err)
	if got := list.GetStatuses()["link"].GetStatus(); got != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("link: %v", got)
	}
}

func TestServer_HealthWatch(t *testing.T) {
	n := setup{cold: true}.start(t)
	watch, err := healthv1.NewHealthClient(dial(t, n.path, DialConfig{})).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	must(t, err)
	next := func(want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		got, err := watch.Recv()
		if err != nil || got.GetStatus() != want {
			t.Fatalf("got %v, %v, want %v", got.GetStatus(), err, want)
		}
	}
	next(healthv1.HealthCheckResponse_NOT_SERVING)
	n.Status().SetReady()
	next(healthv1.HealthCheckResponse_SERVING)
	n.Status().SetNotReady("containerd away", "containerd")
	next(healthv1.HealthCheckResponse_NOT_SERVING)
	n.stop()
	for err == nil {
		_, err = watch.Recv()
	}
	wantKind(t, err, fault.Unavailable)
}

func TestServer_Reflection(t *testing.T) {
	n := setup{}.start(t)
	stream, err := reflectionv1.NewServerReflectionClient(dial(t, n.path, DialConfig{})).ServerReflectionInfo(t.Context())
	must(t, err)
	must(t, stream.Send(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	}))
	answer, err := stream.Recv()
	must(t, err)
	var names []string
	for _, s := range answer.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	for _, want := range []string{testService, "grpc.health.v1.Health", "staddle.process.v1.ProcessService"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing in %v", want, names)
		}
	}
	must(t, stream.CloseSend())
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("end: %v", err)
	}
}

func TestServer_UseKeepsOrder(t *testing.T) {
	var mu sync.Mutex
	var order []string
	note := func(name string) Interceptor {
		return Interceptor{Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			mu.Lock()
			order = append(order, name)
			mu.Unlock()
			return next(ctx, req)
		}}
	}
	n := setup{after: func(s *Server) { s.Use(note("first")); s.Use(note("second")) }}.start(t)
	conn := dial(t, n.path, DialConfig{})
	_, err := call(t.Context(), conn, "Change", "")
	must(t, err)
	_, err = call(t.Context(), conn, "NoRule", "")
	wantKind(t, err, fault.Denied)
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(order, []string{"first", "second"}) {
		t.Errorf("order %v: not in order, or reached by a refused call", order)
	}
}
