package rpc

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/telemetry"
)

// DefaultTimeout is the deadline of a unary call whose caller set none.
const DefaultTimeout = 10 * time.Second

// DialConfig says how a client calls.
type DialConfig struct {
	// TLS is for targets that are no unix socket.
	TLS *tls.Config
	// Log gets a line at Debug for each unary call that failed. Nil gets none.
	Log *slog.Logger
	// Process is the name of the calling process. Where several processes share
	// one user it tells the server which one calls; empty means the operator.
	Process string
	// Foreign says that the server is none of ours: it is asked for signs of life as
	// seldom as any server of gRPC allows. One that is asked more often hangs up.
	Foreign bool
	// FailFast reports an unreachable server at once instead of waiting for it
	// until the deadline. A person at a terminal wants that.
	FailFast bool
	// Verbatim leaves the statuses of streams as the server sent them, for who passes
	// them on: errors carry no kind then.
	Verbatim bool
	// Options are further options.
	Options []grpc.DialOption
}

// Dial returns a connection to a unix socket (an absolute path) or to host:port.
// It does not wait: calls do, if the contract says that they may be repeated, and
// only those are repeated after a failure. No proxy of the environment is used.
func Dial(target string, cfg DialConfig) (*grpc.ClientConn, error) {
	path, local := strings.CutPrefix(target, "unix:")
	local = local || strings.HasPrefix(target, "/")
	opts, err := dialOptions(cfg)
	if err != nil {
		return nil, err
	}
	if !local {
		conn, err := grpc.NewClient("dns:///"+target, append(opts, cfg.Options...)...)
		if err != nil {
			return nil, fault.New(fault.Invalid, "dial %s: %w", target, err)
		}
		return conn, nil
	}
	if err := CheckSocketPath(path); err != nil {
		return nil, err
	}
	opts = append(opts, grpc.WithAuthority("localhost"),
		grpc.WithStaticStreamWindowSize(localStreamWindow), grpc.WithStaticConnWindowSize(localWindow), grpc.WithContextDialer(
			func(ctx context.Context, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			}))
	conn, err := grpc.NewClient("passthrough:///"+path, append(opts, cfg.Options...)...)
	if err != nil {
		return nil, fault.New(fault.Invalid, "dial %s: %w", path, err)
	}
	return conn, nil
}

func dialOptions(cfg DialConfig) ([]grpc.DialOption, error) {
	sc, err := serviceConfig(cfg.FailFast)
	if err != nil {
		return nil, err
	}
	methods, err := contracts()
	if err != nil {
		return nil, err
	}
	repeat := again(methods)
	if cfg.FailFast {
		repeat = again(nil)
	}
	keepalive := keepaliveDefault
	if cfg.Foreign {
		keepalive = keepaliveForeign
	}
	creds := &handshaker{}
	if cfg.TLS != nil {
		creds.tls = credentials.NewTLS(cfg.TLS)
	}
	chain := []grpc.UnaryClientInterceptor{unaryDeadline, repeat, fault.UnaryClient, asUnary(cfg.Process)}
	if cfg.Log != nil {
		chain = append([]grpc.UnaryClientInterceptor{failed(cfg.Log)}, chain...) // one line however often it is repeated
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}),
		keepalive.client(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultServiceConfig(sc),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageSize)),
		grpc.WithChainUnaryInterceptor(chain...),
		grpc.WithChainStreamInterceptor(asStream(cfg.Process)),
	}
	if !cfg.Verbatim {
		opts = append(opts, grpc.WithStreamInterceptor(fault.StreamClient)) // outermost
	}
	if telemetry.Enabled() {
		opts = append(opts, grpc.WithStatsHandler(otelgrpc.NewClientHandler()))
	}
	return opts, nil
}

// unaryDeadline bounds calls that nobody bounded: one that waits for a server
// would wait for ever.
func unaryDeadline(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultTimeout)
		defer cancel()
	}
	return invoker(ctx, method, req, reply, cc, opts...)
}

func as(ctx context.Context, process string) context.Context {
	if process == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, AsKey, process)
}

func asUnary(process string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return invoker(as(ctx, process), method, req, reply, cc, opts...)
	}
}

func asStream(process string) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return streamer(as(ctx, process), desc, cc, method, opts...)
	}
}

type methodName struct {
	Service string `json:"service"`
	Method  string `json:"method"`
}

type retryPolicy struct {
	MaxAttempts          int      `json:"maxAttempts"`
	InitialBackoff       string   `json:"initialBackoff"`
	MaxBackoff           string   `json:"maxBackoff"`
	BackoffMultiplier    float64  `json:"backoffMultiplier"`
	RetryableStatusCodes []string `json:"retryableStatusCodes"`
}

type methodConfig struct {
	Name         []methodName `json:"name"`
	WaitForReady bool         `json:"waitForReady"`
	RetryPolicy  *retryPolicy `json:"retryPolicy,omitempty"`
}

type serviceConfigs struct {
	MethodConfig []methodConfig `json:"methodConfig"`
}

// encoded caches the two service configs, which are the same for all
// connections of a process.
var encoded = [2]func() (string, error){
	sync.OnceValues(func() (string, error) { return encodeServiceConfig(false) }),
	sync.OnceValues(func() (string, error) { return encodeServiceConfig(true) }),
}

func serviceConfig(failFast bool) (string, error) {
	if failFast {
		return encoded[1]()
	}
	return encoded[0]()
}

func encodeServiceConfig(failFast bool) (string, error) {
	methods, err := contracts()
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(buildServiceConfig(methods, failFast))
	return string(text), err
}

// buildServiceConfig allows repetition to what the contracts call repeatable,
// and to nothing else. Streams do not wait for a server: whoever follows one has
// a loop that wants to know why.
func buildServiceConfig(methods map[string]method, failFast bool) serviceConfigs {
	retry := &retryPolicy{
		MaxAttempts: 5, InitialBackoff: "0.05s", MaxBackoff: "0.5s", BackoffMultiplier: 2,
		RetryableStatusCodes: []string{"UNAVAILABLE"},
	}
	if failFast {
		retry = nil
	}
	calls := methodConfig{WaitForReady: !failFast, RetryPolicy: retry}
	streams := methodConfig{RetryPolicy: retry}
	for full, m := range methods {
		if !m.repeatable {
			continue
		}
		s, name, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
		if m.streaming {
			streams.Name = append(streams.Name, methodName{s, name})
		} else {
			calls.Name = append(calls.Name, methodName{s, name})
		}
	}
	var out serviceConfigs
	for _, mc := range []methodConfig{calls, streams} {
		if len(mc.Name) > 0 {
			slices.SortFunc(mc.Name, func(a, b methodName) int { return strings.Compare(a.Service+a.Method, b.Service+b.Method) })
			out.MethodConfig = append(out.MethodConfig, mc)
		}
	}
	return out
}
