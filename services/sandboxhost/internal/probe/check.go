package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// ask asks one question and says what became of it.
func (p *Prober) ask(ctx context.Context, w Watched, name string, probe *resourcev1.Probe) (Outcome, string) {
	var err error
	switch check := probe.GetCheck().(type) {
	case *resourcev1.Probe_Exec:
		err = p.exec(ctx, w, name, check.Exec.GetCommand())
	case *resourcev1.Probe_Http:
		err = p.http(ctx, check.Http)
	case *resourcev1.Probe_Tcp:
		err = p.tcp(ctx, check.Tcp.GetPort())
	case *resourcev1.Probe_Grpc:
		err = p.grpc(ctx, check.Grpc)
	default:
		return Unknown, "it asks nothing that this version knows"
	}
	switch {
	case err == nil:
		return Pass, ""
	case errors.Is(err, fault.Unavailable):
		return Unknown, err.Error()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return Fail, "no answer in time"
	}
	return Fail, err.Error()
}

// exec runs a command that has to end with code 0.
func (p *Prober) exec(ctx context.Context, w Watched, name string, args []string) error {
	res, err := p.inside.Exec(ctx, engine.Command{ContainerID: w.ID, ID: "probe-" + strings.ToLower(name), Args: args})
	if err != nil {
		return err
	}
	if res.OOMKilled {
		return errors.New("the command was ended for using more memory than the limit of its container")
	}
	if res.Code != 0 {
		return fmt.Errorf("the command ended with code %d: %s", res.Code, strings.TrimSpace(res.Output))
	}
	return nil
}

func (p *Prober) dial(ctx context.Context, port uint32) (net.Conn, error) {
	return p.inside.Dial(ctx, p.cfg.UID, netip.AddrPortFrom(p.cfg.Address, uint16(port)))
}

func (p *Prober) tcp(ctx context.Context, port uint32) error {
	conn, err := p.dial(ctx, port)
	if err != nil {
		return err
	}
	return conn.Close()
}

// http asks by GET. It follows no redirect, keeps no connection, and reads no body: what
// answers is not trusted.
func (p *Prober) http(ctx context.Context, check *resourcev1.HttpCheck) error {
	scheme, path := "http", check.GetPath()
	if check.GetTls() {
		scheme = "https"
	}
	if path == "" {
		path = "/"
	}
	address := netip.AddrPortFrom(p.cfg.Address, uint16(check.GetPort()))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address.String()+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	request.Host = check.GetHost()
	request.Header.Set("User-Agent", "staddle-probe")
	const maxHeader = 64 << 10
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx, check.GetPort()) },
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the contract says that it is not looked at
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader,
	}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	err = response.Body.Close()
	if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("GET %s answered %s", path, response.Status)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("close answer: %w", err)
	}
	return nil
}

// grpc asks the health service.
func (p *Prober) grpc(ctx context.Context, check *resourcev1.GrpcCheck) (err error) {
	var unasked atomic.Pointer[error] // the client would hide it among its own
	conn, err := grpc.NewClient("passthrough:///sandbox",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := p.dial(ctx, check.GetPort())
			if errors.Is(err, fault.Unavailable) {
				unasked.Store(&err)
			}
			return conn, err
		}))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: check.GetService()})
	if why := unasked.Load(); why != nil {
		return *why
	}
	if err != nil {
		return fmt.Errorf("ask health service: %s", strings.TrimPrefix(err.Error(), "rpc error: "))
	}
	if answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("health service answers %s", answer.GetStatus())
	}
	return nil
}
