package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"staddle.internal/kit/id"
	"staddle.internal/kit/watch"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	phaseRunning  = resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	phaseStopping = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING
)

// resolver is a server on loopback, whose subnet that is.
type resolver struct {
	*Server

	names  *Names
	states *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]
	at     string

	mu     sync.Mutex // guards reason
	reason string
}

func freePort(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String())
}

func start(t *testing.T, cfg Config) *resolver {
	t.Helper()
	if !cfg.Address.IsValid() {
		cfg.Address = freePort(t)
	}
	cfg.Subnet, cfg.Subnet6, cfg.Domain = netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("fd00:5::/64"), "Staddle.internal"
	r := &resolver{names: NewNames(), states: watch.New[id.Sandbox, *sandboxhostv1.SandboxState](), at: cfg.Address.String()}
	r.Server = New(cfg, Deps{
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Names: r.names, States: r.states,
		Owner: func(network string, at netip.AddrPort) string { return "somebody on " + network },
		NotReady: func(reason string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.reason = reason
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- r.Run(ctx, func() { close(ready) }) }() // waited for in the cleanup
	t.Cleanup(func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Error("it does not end")
		}
	})
	<-ready
	return r
}

func (r *resolver) notReady() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason
}

// tell says how a sandbox is, and waits until its name is known.
func (r *resolver) tell(t *testing.T, uid id.Sandbox, manager, name string, phase resourcev1.SandboxPhase, addrs ...string) {
	t.Helper()
	state := &sandboxhostv1.SandboxState{
		Name: name, Manager: manager, Status: &resourcev1.SandboxStatus{Phase: phase, Addresses: addrs},
	}
	r.states.Set(uid, state)
	want := entryOf(state)
	eventually(t, "the name is followed", func() (bool, string) {
		r.names.mu.RLock()
		defer r.names.mu.RUnlock()
		got := r.names.byUID[uid]
		return got.name == want.name && slices.Equal(got.addresses, want.addresses), fmt.Sprint(got)
	})
}

func eventually(t *testing.T, what string, ask func() (bool, string)) {
	t.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-again.C {
		ok, last := ask()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s: %s", what, last)
		}
	}
}

func ask(t *testing.T, at, network, name string, qtype uint16, edns bool) *dns.Msg {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, qtype)
	if edns {
		m.SetEdns0(4096, false)
	}
	client := &dns.Client{Net: network, Timeout: 10 * time.Second}
	reply, _, err := client.ExchangeContext(t.Context(), m, at)
	if err != nil {
		t.Fatalf("%s over %s: %v", name, network, err)
	}
	return reply
}

// DNS-4: that a name is there and that it has what is asked for are two things.
func TestServer_DNS4_NameAndRecordAreTwoThings(t *testing.T) {
	r := start(t, Config{})
	r.tell(t, id.NewSandbox(), managerCluster, "web", phaseRunning, "127.9.0.5")
	r.names.Adopted()
	for _, network := range []string{"udp", "tcp"} {
		for _, edns := range []bool{false, true} {
			for _, name := range []string{"web.sandbox.staddle.internal.", "WeB.SandBox.STADDLE.internal."} {
				reply := ask(t, r.at, network, name, dns.TypeA, edns)
				a, ok := first[*dns.A](reply)
				if !ok || a.A.String() != "127.9.0.5" || a.Hdr.Ttl > 5 || a.Hdr.Name != name || !reply.Authoritative || (reply.IsEdns0() != nil) != edns {
					t.Errorf("%s over %s: got %v", name, network, reply)
				}
				for _, qtype := range []uint16{dns.TypeAAAA, dns.TypeSRV, dns.TypeMX, dns.TypeTXT, dns.TypeHTTPS} {
					reply := ask(t, r.at, network, name, qtype, edns)
					if reply.Rcode != dns.RcodeSuccess || len(reply.Answer) != 0 || len(reply.Ns) != 1 {
						t.Errorf("%s %s over %s: got %v", name, dns.TypeToString[qtype], network, reply)
					}
				}
			}
			for _, name := range []string{"nobody.sandbox.staddle.internal.", "x.web.sandbox.staddle.internal.", "web.staddle.internal.", "9.9.9.127.in-addr.arpa."} {
				for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypePTR} {
					if reply := ask(t, r.at, network, name, qtype, edns); reply.Rcode != dns.RcodeNameError || len(reply.Ns) != 1 {
						t.Errorf("%s: got %v, want that there is no such name", name, reply)
					}
				}
			}
		}
	}
	ptr, ok := first[*dns.PTR](ask(t, r.at, "udp", "5.0.9.127.in-addr.arpa.", dns.TypePTR, false))
	if !ok || ptr.Ptr != "web.sandbox.staddle.internal." {
		t.Errorf("got %v, want the name of the address", ptr)
	}
}

// DNS-4 with IPv6: each kind of address is answered by itself, and both lead back to the name.
func TestServer_DNS4_AddressesOfIPv6(t *testing.T) {
	r := start(t, Config{})
	r.tell(t, id.NewSandbox(), managerCluster, "web", phaseRunning, "127.9.0.5", "fd00:5::905")
	r.names.Adopted()
	const name = "web.sandbox.staddle.internal."
	if a, ok := first[*dns.A](ask(t, r.at, "udp", name, dns.TypeA, false)); !ok || a.A.String() != "127.9.0.5" {
		t.Errorf("got %v, want the address of IPv4", a)
	}
	if a, ok := first[*dns.AAAA](ask(t, r.at, "udp", name, dns.TypeAAAA, false)); !ok || a.AAAA.String() != "fd00:5::905" {
		t.Errorf("got %v, want the address of IPv6", a)
	}
	const zone = ".0.0.0.0.0.0.0.0.5.0.0.0.0.0.d.f.ip6.arpa."
	ptr, ok := first[*dns.PTR](ask(t, r.at, "udp", "5.0.9.0.0.0.0.0.0.0.0.0.0.0.0.0"+zone, dns.TypePTR, false))
	if !ok || ptr.Ptr != name {
		t.Errorf("got %v, want the name of the address", ptr)
	}
	reply := ask(t, r.at, "udp", "6.0.9.0.0.0.0.0.0.0.0.0.0.0.0.0"+zone, dns.TypePTR, false)
	if reply.Rcode != dns.RcodeNameError || len(reply.Ns) != 1 {
		t.Errorf("got %v, want that there is no such name", reply)
	}
}

func TestReversed_ReadsNothingElse(t *testing.T) {
	for _, name := range []string{"ip6.arpa.", "f.ip6.arpa.", strings.Repeat("g.", 31) + "g.ip6.arpa.", strings.Repeat("1.", 32) + "1.ip6.arpa.", strings.Repeat("11.", 16) + "ip6.arpa.", "1.2.3.in-addr.arpa."} {
		if addr, ok := reversed(name); ok {
			t.Errorf("%s: got %s, want none", name, addr)
		}
	}
}

func first[R dns.RR](m *dns.Msg) (record R, ok bool) {
	if len(m.Answer) != 1 {
		return record, false
	}
	record, ok = m.Answer[0].(R)
	return record, ok
}

// DNS-3: who does not run is not told, and one of the cluster hides one of the node.
func TestServer_DNS3_WhoStoppedIsNotTold(t *testing.T) {
	r := start(t, Config{})
	r.names.Adopted()
	one, two := id.NewSandbox(), id.NewSandbox()
	addresses := func() string {
		reply := ask(t, r.at, "udp", "web.sandbox.staddle.internal.", dns.TypeA, false)
		all := make([]string, 0, len(reply.Answer))
		for _, a := range reply.Answer {
			all = append(all, a.(*dns.A).A.String())
		}
		return dns.RcodeToString[reply.Rcode] + " " + strings.Join(all, ",")
	}
	check := func(when, want string) {
		t.Helper()
		if got := addresses(); got != want {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
	}
	check("before", "NXDOMAIN ")
	r.tell(t, one, "local", "web", phaseRunning, "127.9.0.5")
	check("one of the node", "NOERROR 127.9.0.5")
	r.tell(t, two, managerCluster, "web", phaseRunning, "127.9.0.6")
	check("and one of the cluster", "NOERROR 127.9.0.6")
	r.tell(t, two, managerCluster, "web", phaseStopping, "127.9.0.6")
	check("which stops", "NOERROR ")
	if reply := ask(t, r.at, "udp", "6.0.9.127.in-addr.arpa.", dns.TypePTR, false); reply.Rcode != dns.RcodeNameError {
		t.Errorf("its address has a name: %v", reply)
	}
	r.states.Delete(two, nil)
	eventually(t, "it is forgotten", func() (bool, string) { got := addresses(); return got == "NOERROR 127.9.0.5", got })
}

// DNS-5: until it is known what runs, a question waits for it and is not told that
// there is nobody.
func TestServer_DNS5_WaitsForTheAdoption(t *testing.T) {
	r := start(t, Config{})
	got := make(chan *dns.Msg, 1)
	go func() { got <- ask(t, r.at, "udp", "web.sandbox.staddle.internal.", dns.TypeA, false) }() // waited for below
	eventually(t, "the question is there", func() (bool, string) { return len(r.questions) == 1, fmt.Sprint(len(r.questions)) })
	r.tell(t, id.NewSandbox(), managerCluster, "web", phaseRunning, "127.9.0.5")
	r.names.Adopted()
	if reply := <-got; len(reply.Answer) != 1 {
		t.Errorf("got %v, want the address", reply)
	}
}

// upstream answers every question with an address, or with a code.
func upstream(t *testing.T, address string, code int) netip.AddrPort {
	t.Helper()
	at := freePort(t)
	packets, err := net.ListenPacket("udp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	conns, err := net.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, asked *dns.Msg) {
		reply := new(dns.Msg).SetRcode(asked, code)
		if code == dns.RcodeSuccess {
			header := dns.RR_Header{Name: asked.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}
			reply.Answer = []dns.RR{&dns.A{Hdr: header, A: net.ParseIP(address)}}
		}
		_ = w.WriteMsg(reply)
	})
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: handler}, {Listener: conns, Handler: handler}} {
		ended, started := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { // waited for in the cleanup
			defer close(ended)
			_ = s.ActivateAndServe()
		}()
		<-started
		t.Cleanup(func() {
			_ = s.Shutdown()
			<-ended
		})
	}
	return at
}

// What is not ours goes to the servers of the node, also when the first are of no use.
func TestServer_PassesOnWhatIsNotOurs(t *testing.T) {
	refusing, good := upstream(t, "", dns.RcodeRefused), upstream(t, "192.0.2.7", dns.RcodeSuccess)
	r := start(t, Config{Upstreams: []netip.AddrPort{freePort(t), refusing, good}})
	for _, network := range []string{"udp", "tcp"} {
		reply := ask(t, r.at, network, "example.org.", dns.TypeA, true)
		if a, ok := first[*dns.A](reply); !ok || a.A.String() != "192.0.2.7" {
			t.Errorf("over %s: got %v", network, reply)
		}
	}
	lost := start(t, Config{Upstreams: []netip.AddrPort{freePort(t)}})
	if reply := ask(t, lost.at, "udp", "example.org.", dns.TypeA, false); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("without a server: got %v", reply)
	}
}

// DNS-2: whatever the node's files say, nobody is sent to a loopback, and not to us.
func TestReadHost_DNS2_NeverALoopback(t *testing.T) {
	own := netip.MustParseAddr("10.77.0.1")
	many := strings.Repeat("nameserver 192.0.2.1\n", 9)
	for _, tt := range []struct {
		name, resolv, systemd string
		servers               int
		search                string
	}{
		{"a stub", "nameserver 127.0.0.53\noptions edns0\nsearch lan\n", "nameserver 192.0.2.1\nsearch corp\n", 1, "corp"},
		{"a stub and nothing else", "nameserver 127.0.0.53\nsearch lan\n", "", 0, "lan"},
		{"loopback of IPv6", "nameserver ::1\n", "", 0, ""},
		{"our own", "nameserver 10.77.0.1\n", "", 0, ""},
		{"our own, mapped", "nameserver ::ffff:10.77.0.1\n", "", 0, ""},
		{"empty", "", "", 0, ""},
		{"six and more", many, "", 6, ""},
		{"nonsense", "nameserver\nnameserver x\n\x00\xff\nnameserver 192.0.2.9\n", "", 1, ""},
	} {
		dir := t.TempDir()
		files := []string{filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "systemd"), filepath.Join(dir, "none")}
		for i, text := range []string{tt.resolv, tt.systemd} {
			if err := os.WriteFile(files[i], []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got := ReadHost(files, own)
		if len(got.Servers) != tt.servers || strings.Join(got.Search, " ") != tt.search {
			t.Errorf("%s: got %v, want %d servers and %q", tt.name, got, tt.servers, tt.search)
		}
	}
	dir := t.TempDir()
	dangling := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "nowhere"), dangling); err != nil {
		t.Fatal(err)
	}
	if got := ReadHost([]string{dangling, dir}, own); len(got.Servers) != 0 {
		t.Errorf("got %v of what cannot be read", got)
	}
}

// Who is neither a sandbox nor the node is not answered: we are no resolver for strangers.
func TestServer_AnswersNoStranger(t *testing.T) {
	r := start(t, Config{})
	for from, want := range map[string]bool{"127.0.0.9:4000": true, "192.0.2.1:4000": false, "[::1]:4000": false, "[::ffff:127.0.0.9]:1": true} {
		if got := r.ours(net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from))); got != want {
			t.Errorf("%s: got %t", from, got)
		}
	}
}

// Somebody else has the port: that is said, with the owner, and taken up when it is free.
func TestServer_SaysWhoHasThePort(t *testing.T) {
	at := freePort(t)
	taken, err := net.ListenPacket("udp4", at.String())
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, Config{Address: at})
	if got := r.notReady(); !strings.Contains(got, "somebody on udp") {
		t.Errorf("got %q, want the owner", got)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it listens", func() (bool, string) { got := r.notReady(); return got == "", got })
	r.names.Adopted()
	if reply := ask(t, r.at, "udp", "web.sandbox.staddle.internal.", dns.TypeA, false); reply.Rcode != dns.RcodeNameError {
		t.Errorf("got %v", reply)
	}
}

// What is not a question to us is refused without harm.
func TestServer_RefusesWhatItDoesNotDo(t *testing.T) {
	r := start(t, Config{})
	for want, change := range map[int]func(*dns.Msg){
		dns.RcodeNotImplemented: func(m *dns.Msg) { m.Opcode = dns.OpcodeStatus },
		dns.RcodeRefused:        func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS },
	} {
		m := new(dns.Msg).SetQuestion("web.sandbox.staddle.internal.", dns.TypeA)
		change(m)
		reply, err := dns.ExchangeContext(t.Context(), m, r.at)
		if err != nil || reply.Rcode != want {
			t.Errorf("got %v, %v, want code %d", reply, err, want)
		}
	}
}
