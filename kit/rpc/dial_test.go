package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
)

// childCall makes one call and prints the answer.
func childCall() error {
	conn, err := Dial(os.Getenv("KIT_TEST_SOCKET"), DialConfig{})
	if err != nil {
		return err
	}
	defer conn.Close()
	out, err := call(context.Background(), conn, "Change", "ok")
	fmt.Print(out)
	return err
}

// UDS-4: no proxy of the environment sees a local call.
func TestDial_UDS4_NoProxy(t *testing.T) {
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer proxy.Close()
	var seen atomic.Int32
	go func() { // ends when the listener is closed
		for {
			conn, err := proxy.Accept()
			if err != nil {
				return
			}
			seen.Add(1)
			conn.Close()
		}
	}()
	n := setup{}.start(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "KIT_TEST_ROLE=call", "KIT_TEST_SOCKET="+n.path)
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		cmd.Env = append(cmd.Env, name+"=http://"+proxy.Addr().String())
	}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "ok" {
		t.Errorf("call: %q, %v", out, err)
	}
	if got := seen.Load(); got != 0 {
		t.Errorf("the proxy saw %d connections", got)
	}
}

// UDS-5: the client is never stricter than the server allows.
func TestKeepalive_UDS5_ClientIsSlowerThanServerAllows(t *testing.T) {
	k := keepaliveDefault
	if k.clientTime < 2*k.serverMinTime {
		t.Errorf("client pings each %s, the server allows each %s: no room for jitter", k.clientTime, k.serverMinTime)
	}
	const smallest = 10 * time.Second // grpc raises a client's time to this
	if k.clientTime < smallest || k.serverMinTime > smallest {
		t.Errorf("client %s, server %s: outside of what grpc applies", k.clientTime, k.serverMinTime)
	}
}

// UDS-5 with the real values and an open stream, for twenty minutes of fake time.
func TestKeepalive_UDS5_TwentyIdleMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, connections := bufconnPair(t, behaviour{stream: func(_ string, ss grpc.ServerStream) error {
			for i := 0; ; i++ {
				if err := ss.SendMsg(wrapperspb.String("x")); err != nil {
					return err
				}
				select {
				case <-time.After(20 * time.Minute):
				case <-ss.Context().Done():
					return ss.Context().Err()
				}
			}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ss, err := open(ctx, conn, "Follow")
		must(t, err)
		for range 2 {
			must(t, ss.RecvMsg(new(wrapperspb.StringValue)))
		}
		if got := connections.Load(); got != 1 {
			t.Errorf("%d connections, want 1", got)
		}
	})
}

// A server of others, with the rules of grpc itself, hangs up on who asks it for
// signs of life as often as our own servers allow: each few minutes, at rest.
func TestKeepalive_ForeignServerIsAskedSeldom(t *testing.T) {
	for _, foreign := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			server := grpc.NewServer()
			healthv1.RegisterHealthServer(server, health.NewServer())
			l := bufconn.Listen(1 << 16)
			go func() { _ = server.Serve(l) }() // ends with Stop
			defer server.Stop()
			conn, err := Dial("/bufconn", DialConfig{Foreign: foreign, Options: []grpc.DialOption{
				grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
			}})
			must(t, err)
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			stream, err := healthv1.NewHealthClient(conn).Watch(ctx, &healthv1.HealthCheckRequest{})
			must(t, err)
			_, err = stream.Recv()
			must(t, err)
			_, err = stream.Recv()
			if held := errors.Is(ctx.Err(), context.DeadlineExceeded); held != foreign {
				t.Errorf("foreign %t: the stream held for an hour: %t (%v)", foreign, held, err)
			}
		})
	}
}

// bufconnPair is a server and a client without sockets, for fake time.
func bufconnPair(t *testing.T, do behaviour) (*grpc.ClientConn, *atomic.Int32) {
	t.Helper()
	server, err := newServer(ServerConfig{Process: "storage", Log: slog.New(slog.DiscardHandler)}, bufconnCreds{insecure.NewCredentials()}, keepaliveDefault)
	must(t, err)
	server.GRPC().RegisterService(do.desc(), nil)
	server.Status().SetReady()
	l := bufconn.Listen(1 << 16)
	stop := background(t, server.Member(l))
	var connections atomic.Int32
	conn, err := Dial("/bufconn", DialConfig{Options: []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			connections.Add(1)
			return l.DialContext(ctx)
		}),
	}})
	must(t, err)
	t.Cleanup(func() { conn.Close(); stop() })
	return conn, &connections
}

// UDS-5 on a real socket, scaled: pings in the ratio of our client to our server
// are allowed; the check is real, since faster ones are not.
func TestKeepalive_UDS5_ScaledOnARealSocket(t *testing.T) {
	scaled := keepaliveDefault
	const scale = 500
	scaled.serverMinTime /= scale
	ours := scaled.clientTime / scale
	if goaway := pingServer(t, scaled, ours, 25); goaway != "" {
		t.Errorf("pings each %s were answered with %q", ours, goaway)
	}
	if goaway := pingServer(t, scaled, time.Millisecond, 25); !strings.Contains(goaway, "too_many_pings") {
		t.Errorf("pings each 1ms were answered with %q: the test shows nothing", goaway)
	}
}

// pingServer sends pings over a raw connection and returns the server's good-bye.
func pingServer(t *testing.T, ka keepalivePolicy, every time.Duration, count int) (goaway string) {
	t.Helper()
	server, err := newServer(ServerConfig{Process: "storage", Log: slog.New(slog.DiscardHandler)}, &handshaker{peers: NewPeers(config.Users{})}, ka)
	must(t, err)
	path := filepath.Join(shortDir(t), "s.sock")
	l, err := Listen(path, 0o600)
	must(t, err)
	defer background(t, server.Member(l))()
	conn, err := net.Dial("unix", path)
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, http2.ClientPreface)
	must(t, err)
	framer := http2.NewFramer(conn, conn)
	must(t, framer.WriteSettings())
	tick := time.NewTicker(every)
	defer tick.Stop()
	for range count {
		<-tick.C
		if err := framer.WritePing(false, [8]byte{1}); err != nil {
			break // the frames that came before say why
		}
	}
	must(t, conn.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return goaway
		}
		if g, ok := frame.(*http2.GoAwayFrame); ok {
			return string(g.DebugData())
		}
	}
}

// server is a child process that serves on a socket which the test holds, as a
// supervisor does.
type childServer struct {
	t     *testing.T
	file  *os.File
	notes string
	cmd   *exec.Cmd
}

func (c *childServer) start() {
	c.t.Helper()
	c.cmd = exec.Command("/proc/self/exe")
	c.cmd.Env = append(os.Environ(), "KIT_TEST_ROLE=serve", "KIT_TEST_NOTES="+c.notes)
	c.cmd.ExtraFiles = []*os.File{c.file}
	c.cmd.Stderr = os.Stderr
	must(c.t, c.cmd.Start())
}

func (c *childServer) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

func newChildServer(t *testing.T) (*childServer, string) {
	t.Helper()
	dir := shortDir(t)
	path := filepath.Join(dir, "s.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	must(t, err)
	f, err := l.File()
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	t.Cleanup(func() { f.Close() })
	c := &childServer{t: t, file: f, notes: filepath.Join(dir, "notes")}
	c.start()
	t.Cleanup(func() { c.kill() })
	return c, path
}

func (c *childServer) count(method string) int {
	text, err := os.ReadFile(c.notes)
	if err != nil {
		return 0
	}
	return strings.Count(string(text), method+"\n")
}

// A call that was in flight when its server was killed is made again if the
// contract allows it, and is reported if not.
func TestDial_RepeatsOnlyWhatMayBeRepeated(t *testing.T) {
	for _, tc := range []struct {
		method string
		calls  int // that reached a server
	}{{"Read", 2}, {"Ensure", 2}, {"Change", 1}} {
		t.Run(tc.method, func(t *testing.T) {
			server, path := newChildServer(t)
			conn := dial(t, path, DialConfig{})
			done := make(chan error, 1)
			go func() { // ends with its call, which has a deadline
				_, err := call(t.Context(), conn, tc.method, "hang once")
				done <- err
			}()
			eventually(t, "call in flight", func() (any, bool) { n := server.count(tc.method); return n, n == 1 })
			server.kill()
			server.start()
			err := <-done
			if tc.calls == 1 && !errors.Is(err, fault.Unavailable) {
				t.Errorf("got %v, want Unavailable", err)
			}
			if tc.calls == 2 && err != nil {
				t.Errorf("got %v, want success by the second server", err)
			}
			if _, err := call(t.Context(), conn, "Read", ""); err != nil {
				t.Fatal(err) // the new server has answered: whatever was repeated has arrived
			}
			if got := server.count(tc.method); got != tc.calls {
				t.Errorf("%d calls reached a server, want %d", got, tc.calls)
			}
		})
	}
}

// Over kills and restarts no question fails.
func TestDial_NoQuestionFailsOverRestarts(t *testing.T) {
	server, path := newChildServer(t)
	conn := dial(t, path, DialConfig{})
	stop, failed := make(chan struct{}), make(chan error, 1)
	var calls atomic.Int32
	go func() { // ends by stop, or with the first failure
		defer close(failed)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := call(context.Background(), conn, "Read", ""); err != nil {
				failed <- err
				return
			}
			calls.Add(1)
		}
	}()
	for range 3 {
		before := calls.Load()
		eventually(t, "calls answered", func() (any, bool) {
			select {
			case err := <-failed:
				t.Fatalf("call failed: %v", err)
			default:
			}
			n := calls.Load()
			return n, n > before+20
		})
		server.kill()
		server.start()
	}
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("call failed: %v", err)
	}
}

func TestBuildServiceConfig_OnlyRepeatableMethods(t *testing.T) {
	methods, err := contracts()
	must(t, err)
	sc := buildServiceConfig(methods, false)
	got := map[string]methodConfig{}
	for _, mc := range sc.MethodConfig {
		for _, n := range mc.Name {
			got["/"+n.Service+"/"+n.Method] = mc
		}
	}
	for _, c := range contract {
		mc, listed := got[full(c.name)]
		if listed != (c.level != 0) {
			t.Errorf("%s: repeated %v", c.name, listed)
		}
		if listed && mc.WaitForReady == c.stream {
			t.Errorf("%s: waits %v", c.name, mc.WaitForReady)
		}
	}
	if _, ok := got["/staddle.process.v1.ProcessService/GetStatus"]; !ok {
		t.Error("GetStatus is not repeated")
	}
	for _, mc := range buildServiceConfig(methods, true).MethodConfig {
		if mc.WaitForReady || mc.RetryPolicy != nil {
			t.Errorf("fail fast: %+v", mc)
		}
	}
}

func TestDial_FailFastSaysAtOnce(t *testing.T) {
	path := filepath.Join(shortDir(t), "none.sock")
	_, err := call(t.Context(), dial(t, path, DialConfig{FailFast: true}), "Read", "")
	wantKind(t, err, fault.Unavailable)
	wantText(t, err, "no such file or directory")
}

func TestDial_CallWithoutDeadlineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, _ := bufconnPair(t, behaviour{unary: func(ctx context.Context, _, _ string) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}})
		begin := time.Now()
		_, err := call(t.Context(), conn, "Change", "")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != DefaultTimeout {
			t.Errorf("got %v after %s", err, time.Since(begin))
		}
	})
}
