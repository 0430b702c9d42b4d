package probe

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

func TestTracker(t *testing.T) {
	spec := &resourcev1.Probe{SuccessThreshold: 2, FailureThreshold: 3}
	tests := []struct {
		name      string
		first     resourcev1.ConditionState
		outcomes  string // p, f and ? for pass, fail and unknown
		want      resourcev1.ConditionState
		exhausted bool
	}{
		{"one pass is not enough", no, "p", no, false},
		{"two in a row are", no, "pp", yes, false},
		{"two with a failure between are not", no, "pfp", no, false},
		{"two failures change nothing", yes, "ff", yes, false},
		{"three do", yes, "fff", no, true},
		{"a pass begins anew", yes, "ffpff", yes, false},
		{"what cannot be asked says nothing", yes, "ff?????", yes, false},
		{"nor does it begin anew", yes, "ff?f", no, true},
		{"it comes back", yes, "fffpp", yes, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTracker(Ready, tt.first, spec, nil)
			for i, o := range tt.outcomes {
				outcome := map[rune]Outcome{'p': Pass, 'f': Fail, '?': Unknown}[o]
				before := *tr
				if changed := tr.See(outcome, "why", time.Unix(int64(i), 0)); outcome == Unknown && changed || changed != (before.State != tr.State || before.Reason != tr.Reason || before.Exhausted != tr.Exhausted) {
					t.Errorf("outcome %d says changed %v from %+v to %+v", i, changed, before, *tr)
				}
			}
			if tr.State != tt.want || tr.Exhausted != tt.exhausted || tr.State == yes && tr.Reason != "" {
				t.Errorf("got %+v, want %v, exhausted %v", *tr, tt.want, tt.exhausted)
			}
		})
	}
}

func TestTracker_KeepsWhatWasKnown(t *testing.T) {
	before := []*resourcev1.Condition{{Type: Ready, State: yes}, {Type: Live, State: no, Reason: "so"}}
	if tr := newTracker(Ready, no, nil, before); tr.State != yes {
		t.Errorf("got %+v, want what was known", tr)
	}
	long := newTracker(Ready, no, &resourcev1.Probe{}, nil)
	long.See(Fail, strings.Repeat("ä", maxReason), time.Now())
	if n := len(long.Reason); n > maxReason || n < maxReason-4 {
		t.Errorf("a long reason has %d bytes", n)
	}
}

func TestExplain(t *testing.T) {
	tcp := []*resourcev1.ContainerPort{{Port: 8080}}
	udp := []*resourcev1.ContainerPort{{Port: 53, Protocol: resourcev1.PortProtocol_PORT_PROTOCOL_UDP}}
	at := func(addresses ...string) (list []engine.Listener) {
		for _, a := range addresses {
			text, isUDP := strings.CutSuffix(a, "/udp")
			list = append(list, engine.Listener{Address: netip.MustParseAddrPort(text), UDP: isUDP})
		}
		return list
	}
	tests := []struct {
		name      string
		ports     []*resourcev1.ContainerPort
		listeners []engine.Listener
		want      string
	}{
		{"open", tcp, at("0.0.0.0:8080"), ""},
		{"open by IPv6", tcp, at("[::]:8080"), ""},
		{"open at one address", tcp, at("10.0.0.2:8080"), ""},
		{"loopback and all", tcp, at("127.0.0.1:8080", "[::]:8080"), ""},
		{"nothing", tcp, nil, "nothing listens on port 8080/tcp, nor on any other"},
		{"loopback", tcp, at("127.0.0.1:8080"), "port 8080/tcp is bound to 127.0.0.1 only, where nobody outside reaches it; listen on 0.0.0.0"},
		{"another", tcp, at("0.0.0.0:3000", "[::]:3000"), "nothing listens on port 8080/tcp, but on 3000/tcp; is it the right port?"},
		{"the other protocol", tcp, at("0.0.0.0:8080/udp"), "nothing listens on port 8080/tcp, nor on any other"},
		{"udp", udp, at("0.0.0.0:53/udp"), ""},
		{"many", tcp, at("0.0.0.0:1", "0.0.0.0:2", "0.0.0.0:3", "0.0.0.0:4", "0.0.0.0:5", "0.0.0.0:6"),
			"nothing listens on port 8080/tcp, but on 1/tcp, 2/tcp, 3/tcp, 4/tcp, 5/tcp and 1 more; is it the right port?"},
		{"two", append(tcp, udp...), nil, "nothing listens on port 8080/tcp, nor on any other; nothing listens on port 53/udp, nor on any other"},
	}
	for _, tt := range tests {
		if got := Explain(tt.ports, tt.listeners); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// loopback is an inside that is this machine's own loopback.
type loopback struct{ away bool }

func (l loopback) Exec(context.Context, engine.Command) (engine.CommandResult, error) {
	return engine.CommandResult{}, nil
}

func (l loopback) Dial(ctx context.Context, _ id.Sandbox, to netip.AddrPort) (net.Conn, error) {
	if l.away {
		return nil, fault.New(fault.Unavailable, "nobody is there to ask")
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
}

func (l loopback) Listeners(context.Context, id.Sandbox) ([]engine.Listener, error) { return nil, nil }

func portOf(t *testing.T, a net.Addr) uint32 {
	t.Helper()
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		t.Fatal(err)
	}
	return uint32(at.Port())
}

// servers are one of each kind, on loopback.
func servers(t *testing.T) (web, secure, rpc, mute, closed uint32) {
	t.Helper()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/nowhere", http.StatusFound)
		case "/host":
			if r.Host != "shop.example" {
				w.WriteHeader(http.StatusBadRequest)
			}
		case "/bad":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	plain, tls := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	t.Cleanup(plain.Close)
	t.Cleanup(tls.Close)
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	l := listen()
	s, h := grpc.NewServer(), health.NewServer()
	h.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(s, h)
	go func() { _ = s.Serve(l) }() // ends with Stop
	t.Cleanup(s.Stop)
	gone := listen()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	return portOf(t, plain.Listener.Addr()), portOf(t, tls.Listener.Addr()), portOf(t, l.Addr()), portOf(t, listen().Addr()), portOf(t, gone.Addr())
}

func TestAsk(t *testing.T) {
	web, secure, rpc, mute, closed := servers(t)
	get := func(c *resourcev1.HttpCheck) *resourcev1.Probe {
		return &resourcev1.Probe{Check: &resourcev1.Probe_Http{Http: c}}
	}
	connect := func(port uint32) *resourcev1.Probe {
		return &resourcev1.Probe{Check: &resourcev1.Probe_Tcp{Tcp: &resourcev1.TcpCheck{Port: port}}}
	}
	call := func(port uint32, service string) *resourcev1.Probe {
		return &resourcev1.Probe{Check: &resourcev1.Probe_Grpc{Grpc: &resourcev1.GrpcCheck{Port: port, Service: service}}}
	}
	tests := []struct {
		name  string
		probe *resourcev1.Probe
		away  bool
		want  Outcome
		why   string
	}{
		{"http", get(&resourcev1.HttpCheck{Port: web}), false, Pass, ""},
		{"http redirect", get(&resourcev1.HttpCheck{Port: web, Path: "/moved"}), false, Pass, ""},
		{"http host", get(&resourcev1.HttpCheck{Port: web, Path: "/host", Host: "shop.example"}), false, Pass, ""},
		{"http bad", get(&resourcev1.HttpCheck{Port: web, Path: "/bad"}), false, Fail, "GET /bad answered 503"},
		{"https", get(&resourcev1.HttpCheck{Port: secure, Tls: true}), false, Pass, ""},
		{"http closed", get(&resourcev1.HttpCheck{Port: closed}), false, Fail, "connection refused"},
		{"http mute", get(&resourcev1.HttpCheck{Port: mute}), false, Fail, "no answer in time"},
		{"http away", get(&resourcev1.HttpCheck{Port: web}), true, Unknown, "nobody is there to ask"},
		{"tcp", connect(mute), false, Pass, ""},
		{"tcp closed", connect(closed), false, Fail, "connection refused"},
		{"tcp away", connect(mute), true, Unknown, "nobody is there to ask"},
		{"grpc", call(rpc, ""), false, Pass, ""},
		{"grpc down", call(rpc, "down"), false, Fail, "NOT_SERVING"},
		{"grpc unknown service", call(rpc, "none"), false, Fail, "NotFound"},
		{"grpc closed", call(closed, ""), false, Fail, "connection refused"},
		{"grpc mute", call(mute, ""), false, Fail, ""},
		{"grpc away", call(rpc, ""), true, Unknown, "nobody is there to ask"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := New(Config{Address: netip.MustParseAddr("127.0.0.1")}, loopback{tt.away})
			limit := 20 * time.Second
			if strings.HasSuffix(tt.name, "mute") {
				limit = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			got, why := p.ask(ctx, Watched{}, Ready, tt.probe)
			if got != tt.want || !strings.Contains(why, tt.why) || got == Pass && why != "" {
				t.Errorf("got %v %q, want %v %q", got, why, tt.want, tt.why)
			}
		})
	}
}
