package command_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

func action(words ...string) *resourcev1.ExecAction { return &resourcev1.ExecAction{Command: words} }

func TestRun_ProbesAreTheSpec(t *testing.T) {
	h := newHost(t)
	get := func(c *resourcev1.HttpCheck) *resourcev1.Probe {
		return &resourcev1.Probe{Check: &resourcev1.Probe_Http{Http: c}}
	}
	call := func(port uint32, service string) *resourcev1.Probe {
		return &resourcev1.Probe{Check: &resourcev1.Probe_Grpc{Grpc: &resourcev1.GrpcCheck{Port: port, Service: service}}}
	}
	run := func(words ...string) *resourcev1.Probe {
		return &resourcev1.Probe{Check: &resourcev1.Probe_Exec{Exec: action(words...)}}
	}
	for text, want := range map[string]*resourcev1.Probe{
		"http://:8080/healthy?deep=1":       get(&resourcev1.HttpCheck{Port: 8080, Path: "/healthy?deep=1"}),
		"http://:8080":                      get(&resourcev1.HttpCheck{Port: 8080, Path: "/"}),
		"https://shop.example/x":            get(&resourcev1.HttpCheck{Port: 443, Path: "/x", Tls: true, Host: "shop.example"}),
		"tcp://:5432":                       {Check: &resourcev1.Probe_Tcp{Tcp: &resourcev1.TcpCheck{Port: 5432}}},
		"grpc://:9000":                      call(9000, ""),
		"grpc://:9000/shop.Rates":           call(9000, "shop.Rates"),
		`exec:/web check "a b" 'c "d' e\ f`: run("/web", "check", "a b", `c "d`, "e f"),
		`exec:sh -c "exit \"$N\" \n" ''`:    run("sh", "-c", `exit "$N" \n`, ""),
	} {
		wanted(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", "--liveness", text, "serve"))
		got := h.byName("web").GetSpec().GetContainers()[0].GetLivenessProbe()
		if !proto.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
		wanted(t, cli(t, "--node-socket", h.path, "rm", "web"))
	}
}

func wanted(t *testing.T, got result) {
	t.Helper()
	want(t, got, 0)
}

func TestRun_LifeIsTheSpec(t *testing.T) {
	h := newHost(t)
	wanted(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", "--startup", "tcp://:1", "--readiness", "tcp://:2", "--liveness", "tcp://:3",
		"--probe-set", "startup.failure_threshold=60", "--probe-set", "startup.period=1s", "--probe-set", "readiness.success_threshold=2",
		"--probe-set", "liveness.initial_delay=10s", "--probe-set", "liveness.timeout=500ms", "--pre-stop", "/web leave 'at once'",
		"--expose", "8080", "-t", "--stdin", "--env", "A=b", "--scratch", "work:/work", "--user", "1000", "--memory", "64MiB", "--entrypoint", "/web",
		"--init-container", ". migrate 'a b'", "--init-container", "tool:1", "serve"))
	tcp := func(port uint32) *resourcev1.Probe_Tcp {
		return &resourcev1.Probe_Tcp{Tcp: &resourcev1.TcpCheck{Port: port}}
	}
	s := func(d time.Duration) *durationpb.Duration { return durationpb.New(d) }
	main := &resourcev1.ContainerSpec{
		Name: "main", Image: "serve", User: "1000", Env: []*resourcev1.EnvironmentVariable{{Name: "A", Value: "b"}},
		Limits:  &resourcev1.ResourceLimits{MemoryLimitBytes: new(int64(64 << 20))},
		Scratch: []*resourcev1.ScratchMount{{Volume: "work", Path: "/work"}},
	}
	migrate, tool := proto.CloneOf(main), proto.CloneOf(main)
	migrate.Name, migrate.Init, migrate.Args = "init-1", true, []string{"migrate", "a b"}
	tool.Name, tool.Init, tool.Image = "init-2", true, "tool:1"
	main.Command, main.Tty, main.Stdin, main.PreStop = []string{"/web"}, true, true, action("/web", "leave", "at once")
	main.Ports = []*resourcev1.ContainerPort{{Port: 8080, Protocol: resourcev1.PortProtocol_PORT_PROTOCOL_TCP}}
	main.StartupProbe = &resourcev1.Probe{Check: tcp(1), FailureThreshold: 60, Period: s(time.Second)}
	main.ReadinessProbe = &resourcev1.Probe{Check: tcp(2), SuccessThreshold: 2}
	main.LivenessProbe = &resourcev1.Probe{Check: tcp(3), InitialDelay: s(10 * time.Second), Timeout: s(500 * time.Millisecond)}
	want := []*resourcev1.ContainerSpec{migrate, tool, main}
	got := h.byName("web").GetSpec().GetContainers()
	if len(got) != len(want) {
		t.Fatalf("got %d containers, want %d: %v", len(got), len(want), got)
	}
	for i := range want {
		if !proto.Equal(got[i], want[i]) {
			t.Errorf("container %d:\ngot  %v\nwant %v", i, got[i], want[i])
		}
	}
}

func TestRun_LifeIsCheckedBeforeAnythingIsThere(t *testing.T) {
	h := newHost(t)
	for _, tt := range []struct{ flag, value, says string }{
		{"--readiness", "8080", "there is no such kind of probe"},
		{"--readiness", "udp://:53", "there is no such kind of probe"},
		{"--readiness", "http://:0/", "a port from 1 to 65535 is missing"},
		{"--readiness", "http://:70000/", "a port from 1 to 65535 is missing"},
		{"--readiness", "http://a b/", "that is no probe"},
		{"--readiness", "http:8080", "that is no probe"},
		{"--readiness", "tcp://", "a port from 1 to 65535 is missing"},
		{"--readiness", "tcp://db:5432", "the sandbox itself is asked"},
		{"--readiness", "tcp://:5432/x", "a connection has no path"},
		{"--readiness", "grpc://:9000/x?y", "the sandbox itself is asked"},
		{"--startup", "exec:", "there is nothing"},
		{"--liveness", "exec:sh -c 'x", "a quote is not closed"},
		{"--pre-stop", " ", "there is nothing"},
		{"--pre-stop", `a \`, `a \ stands at the end`},
		{"--init-container", "''x'", "a quote is not closed"},
		{"--probe-set", "liveness.period=1s", "there is no --liveness to set it for"},
		{"--probe-set", "liveness.colour=1s", "write PROBE.KEY=VALUE"},
		{"--probe-set", "period=1s", "write PROBE.KEY=VALUE"},
	} {
		got := cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", tt.flag, tt.value, "serve")
		if got.code != 2 || !strings.Contains(got.err, tt.says) || !strings.Contains(got.err, tt.flag) || strings.Contains(got.err, "%!") {
			t.Errorf("%s %s: exit code %d, %s", tt.flag, tt.value, got.code, got.err)
		}
	}
	for _, setting := range []string{"period=soon", "timeout=5", "success_threshold=0", "failure_threshold=-1"} {
		got := cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", "--liveness", "tcp://:1", "--probe-set", "liveness."+setting, "serve")
		if _, value, _ := strings.Cut(setting, "="); got.code != 2 || !strings.Contains(got.err, `"`+value+`" is no `) {
			t.Errorf("%s: exit code %d, %s", setting, got.code, got.err)
		}
	}
	if h.byName("web") != nil {
		t.Error("a sandbox is there")
	}
}

func TestRun_ProbesAreCompleted(t *testing.T) {
	for line, offers := range map[string]string{
		"run --readiness ": "grpc://:",
		"run --probe-set ": "liveness.failure_threshold=",
	} {
		got := completed(t, strings.Split(line, " ")...)
		if !slices.Contains(got, offers) {
			t.Errorf("%s: offers %q, want %q", line, got, offers)
		}
	}
}

// A command that waits for a sandbox tells which of its containers kept it from running.
func TestRun_AFailedInitContainerIsNamed(t *testing.T) {
	h := newHost(t)
	want(t, cli(t, "--node-socket", h.path, "run", "--name", "web", "--init-container", "exit-3", "serve"), 3,
		"init container init-1 ended with code 3", "staddle logs web --container init-1")
}

// The output of a sandbox is that of its lasting container.
func TestLogs_OfASandboxWithInitContainers(t *testing.T) {
	h := newHost(t)
	wanted(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", "--init-container", ". prepare", "serve"))
	wanted(t, cli(t, "--node-socket", h.path, "logs", "web"))
	want(t, cli(t, "--node-socket", h.path, "logs", "web", "--container", "other"), 3, "it has init-1, main")
}
