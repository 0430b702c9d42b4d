package command_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"
)

// fakeSupervisor knows the components "storage" and "presence", of which the second
// was stopped, and has two events.
type fakeSupervisor struct {
	supervisorv1.UnimplementedSupervisorServiceServer

	root    string
	refuses bool // the next program

	mu      sync.Mutex
	asked   []string
	program uint32
}

func newSupervisor(t *testing.T) *fakeSupervisor {
	t.Helper()
	root, err := os.MkdirTemp("", "su")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Mkdir(filepath.Join(root, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	f := &fakeSupervisor{root: root}
	serve(t, filepath.Join(root, "run", "supervisor.sock"), func(s *grpc.Server) { supervisorv1.RegisterSupervisorServiceServer(s, f) })
	return f
}

// serve runs a server on a socket until the test ends.
func serve(t *testing.T, path string, register func(*grpc.Server)) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(fault.UnaryServer), grpc.StreamInterceptor(fault.StreamServer))
	register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }() // waited for at the end
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
}

func (f *fakeSupervisor) ask(what, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if name != "storage" && name != "presence" {
		return fault.New(fault.NotFound, "%s component %s: there is none of that name", what, name)
	}
	f.asked = append(f.asked, what+" "+name)
	return nil
}

func (f *fakeSupervisor) StartComponent(_ context.Context, r *supervisorv1.StartComponentRequest) (*supervisorv1.StartComponentResponse, error) {
	return &supervisorv1.StartComponentResponse{}, f.ask("start", r.GetName())
}

func (f *fakeSupervisor) StopComponent(_ context.Context, r *supervisorv1.StopComponentRequest) (*supervisorv1.StopComponentResponse, error) {
	return &supervisorv1.StopComponentResponse{}, f.ask("stop", r.GetName())
}

func (f *fakeSupervisor) RestartComponent(_ context.Context, r *supervisorv1.RestartComponentRequest) (*supervisorv1.RestartComponentResponse, error) {
	return &supervisorv1.RestartComponentResponse{}, f.ask("restart", r.GetName())
}

func (f *fakeSupervisor) GetSupervisor(context.Context, *supervisorv1.GetSupervisorRequest) (*supervisorv1.GetSupervisorResponse, error) {
	return &supervisorv1.GetSupervisorResponse{Program: &supervisorv1.SupervisorProgram{Life: "x", Number: 4}}, nil
}

// RestartSupervisor is gone for a moment, and then the next program.
func (f *fakeSupervisor) RestartSupervisor(_ context.Context, r *supervisorv1.RestartSupervisorRequest) (*supervisorv1.RestartSupervisorResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, fmt.Sprintf("replace %s %d", r.GetLife(), r.GetNumber()))
	switch {
	case f.refuses:
		return nil, fault.WithReason(fault.New(fault.Conflict, "replace program: exit code 3"), "PROGRAM_REFUSED")
	case f.program == 0:
		f.program = r.GetNumber() + 1
		return nil, fault.New(fault.Unavailable, "connection reset")
	}
	return &supervisorv1.RestartSupervisorResponse{Program: &supervisorv1.SupervisorProgram{Life: "x", Number: f.program}}, nil
}

func (f *fakeSupervisor) GetGraph(context.Context, *supervisorv1.GetGraphRequest) (*supervisorv1.GetGraphResponse, error) {
	return &supervisorv1.GetGraphResponse{Components: []*supervisorv1.Component{
		{Name: "storage", State: supervisorv1.ComponentState_COMPONENT_STATE_READY, Pid: 7, Starts: 2},
		{Name: "presence", State: supervisorv1.ComponentState_COMPONENT_STATE_STOPPED, Needs: []string{"storage"}, Starts: 1, Reason: "stopped by an operator"},
	}}, nil
}

func (f *fakeSupervisor) ListEvents(_ context.Context, r *supervisorv1.ListEventsRequest) (*supervisorv1.ListEventsResponse, error) {
	code := int32(3)
	events := []*supervisorv1.ComponentEvent{
		{Seq: 1, Component: "storage", From: supervisorv1.ComponentState_COMPONENT_STATE_READY, To: supervisorv1.ComponentState_COMPONENT_STATE_BACKING_OFF,
			At: &timestamppb.Timestamp{}, Cause: "exit code 3", ExitCode: &code, Attempt: 4, NextDelay: durationpb.New(150 * time.Millisecond)},
		{Seq: 2, Component: "storage", From: supervisorv1.ComponentState_COMPONENT_STATE_BACKING_OFF, To: supervisorv1.ComponentState_COMPONENT_STATE_STARTING,
			At: &timestamppb.Timestamp{}, Cause: "its back-off is over", Attempt: 5},
	}
	if r.GetLimit() == 1 {
		events = events[1:]
	}
	return &supervisorv1.ListEventsResponse{Events: events, Life: "x"}, nil
}

// WatchEvents sends one event behind a gap, and is then gone for a moment.
func (f *fakeSupervisor) WatchEvents(r *supervisorv1.WatchEventsRequest, stream grpc.ServerStreamingServer[supervisorv1.WatchEventsResponse]) error {
	if r.GetLife() != "x" {
		return fault.New(fault.Invalid, "life %q", r.GetLife())
	}
	if r.GetAfterSeq() == 9 { // it came again
		return fault.New(fault.Denied, "enough")
	}
	e := &supervisorv1.ComponentEvent{Seq: 9, Component: "presence", At: &timestamppb.Timestamp{}, ExitSignal: "killed",
		From: supervisorv1.ComponentState_COMPONENT_STATE_STOPPING, To: supervisorv1.ComponentState_COMPONENT_STATE_STOPPED}
	if err := stream.Send(&supervisorv1.WatchEventsResponse{Event: e, Life: "x", Missed: 6}); err != nil {
		return err
	}
	return fault.New(fault.Unavailable, "stopping")
}

func (f *fakeSupervisor) ReadComponentLogs(r *supervisorv1.ReadComponentLogsRequest, stream grpc.ServerStreamingServer[supervisorv1.ReadComponentLogsResponse]) error {
	if err := f.ask("read", r.GetName()); err != nil {
		return err
	}
	text := "all\n"
	if r.TailLines != nil {
		text = strings.Repeat("line\n", int(r.GetTailLines()))
	}
	return stream.Send(&supervisorv1.ReadComponentLogsResponse{Data: []byte(text), MissedBytes: 5})
}

func (f *fakeSupervisor) SetLogLevel(_ context.Context, r *supervisorv1.SetLogLevelRequest) (*supervisorv1.SetLogLevelResponse, error) {
	if r.GetComponent() == "storage" && r.GetPeriod().AsDuration() == time.Minute {
		return &supervisorv1.SetLogLevelResponse{Outcomes: []*supervisorv1.LogLevelOutcome{{Component: "storage", Previous: processv1.LogLevel_LOG_LEVEL_INFO}}}, nil
	}
	return &supervisorv1.SetLogLevelResponse{Outcomes: []*supervisorv1.LogLevelOutcome{{Component: "presence", Failure: "it has no process: it is stopped"}}}, nil
}

func TestComponent_EachNameIsTriedAndTheUnknownIsNamed(t *testing.T) {
	f := newSupervisor(t)
	for _, verb := range []string{"stop", "start", "restart"} {
		got := cli(t, "--root", f.root, "component", verb, "storage", "x", "presence")
		want(t, got, 3, "storage\npresence\n", "there is none of that name", "try: staddle component ls")
		if last := f.asked[len(f.asked)-2:]; !slices.Equal(last, []string{verb + " storage", verb + " presence"}) {
			t.Errorf("asked for %v", last)
		}
	}
}

func TestComponent_RestartOfTheSupervisorWaitsForTheNextProgram(t *testing.T) {
	f := newSupervisor(t)
	if got := cli(t, "--root", f.root, "component", "restart", "supervisor"); got.code != 0 || got.out != "supervisor\n" {
		t.Errorf("got %+v", got)
	}
	if want := []string{"replace x 4", "replace x 4"}; !slices.Equal(f.asked, want) {
		t.Errorf("asked for %v, want the same twice", f.asked)
	}
	f.refuses = true
	want(t, cli(t, "--root", f.root, "component", "restart", "supervisor"), 4, "exit code 3", "mend what it says")
}

func TestComponent_ListAndStatusShowWhoWasStoppedAndWhy(t *testing.T) {
	f := newSupervisor(t)
	want(t, cli(t, "--root", f.root, "component", "ls"), 0, "presence   stopped", "stopped by an operator")
	want(t, cli(t, "--root", f.root, "status"), 1, "└ presence   stopped", "stopped by an operator")
	want(t, cli(t, "--root", f.root, "status", "-o", "json"), 1, "COMPONENT_STATE_STOPPED", "stopped by an operator")
	if got := cli(t, "--root", f.root, "component", "ls", "-o", "name"); got.out != "storage\npresence\n" {
		t.Errorf("got %q", got.out)
	}
}

func TestComponent_Logs(t *testing.T) {
	f := newSupervisor(t)
	for text, args := range map[string][]string{"all\n": nil, "line\nline\n": {"--tail", "2"}, "": {"--tail", "0"}} {
		got := cli(t, append([]string{"--root", f.root, "component", "logs", "storage"}, args...)...)
		want(t, got, 0, "5 bytes are not kept any more")
		if got.out != text {
			t.Errorf("%v: got %q, want %q", args, got.out, text)
		}
	}
	want(t, cli(t, "--root", f.root, "component", "logs", "x"), 3, "try: staddle component ls")
	want(t, cli(t, "--root", f.root, "component", "logs", "storage", "--tail", "-1"), 2, "write 0 to 1000000")
}

func TestComponent_Events(t *testing.T) {
	f := newSupervisor(t)
	want(t, cli(t, "--root", f.root, "component", "events"), 0, "storage   ready         backing off   4         3      150ms", "its back-off is over")
	want(t, cli(t, "--root", f.root, "component", "events", "-o", "json"), 0, `"exit_code"`, `"next_delay": "0.150s"`)
	got := cli(t, "--root", f.root, "component", "events", "--limit", "1", "--watch") // over an end of the supervisor
	want(t, got, 6, "6 events are not kept any more", "killed", "enough")
	if lines := strings.Split(strings.TrimSpace(got.out), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], "SEQ") || !strings.HasPrefix(lines[2], "9 ") {
		t.Errorf("got\n%s", got.out)
	}
	want(t, cli(t, "--root", f.root, "component", "events", "--limit", "1001"), 2, "write 0 to 1000")
}

func TestLogLevel(t *testing.T) {
	f := newSupervisor(t)
	want(t, cli(t, "--root", f.root, "log-level", "storage", "debug", "--for", "1m"), 0, "storage   debug   info")
	want(t, cli(t, "--root", f.root, "log-level", "debug"), 1, "presence   -", "set log level of presence: it has no process: it is stopped")
	want(t, cli(t, "--root", f.root, "log-level", "loud"), 2, "write debug, info, warn or error")
	want(t, cli(t, "--root", f.root, "log-level", "debug", "--for", "25h"), 2, "write 1s to 24h")
}

// levelled is a process that has a log level.
type levelled struct {
	processv1.UnimplementedProcessServiceServer
}

func (levelled) SetLogLevel(context.Context, *processv1.SetLogLevelRequest) (*processv1.SetLogLevelResponse, error) {
	return &processv1.SetLogLevelResponse{Previous: processv1.LogLevel_LOG_LEVEL_INFO}, nil
}

// Without a supervisor each process is asked at its own socket.
func TestLogLevel_WithoutASupervisor(t *testing.T) {
	root, err := os.MkdirTemp("", "su")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	want(t, cli(t, "--root", root, "log-level", "debug"), 5, "reach supervisor", "there is no such socket")
	for _, dir := range []string{"etc", "run"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "etc/node.yaml"), []byte("version: 1\nname: n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	serve(t, filepath.Join(root, "run/storage.sock"), func(s *grpc.Server) { processv1.RegisterProcessServiceServer(s, levelled{}) })
	want(t, cli(t, "--root", root, "log-level", "storage", "debug"), 0, "storage   debug   info")
	want(t, cli(t, "--root", root, "log-level", "debug"), 1, "storage         debug   info", "presence        -", "set log level of presence: reach presence")
	want(t, cli(t, "--root", root, "log-level", "x", "debug"), 3, "there is none of that name", "try: staddle component ls")
	want(t, cli(t, "--root", root, "log-level", "containerd", "debug"), 4, "no process of Staddle")
	want(t, cli(t, "--root", root, "log-level", "supervisor", "debug"), 5, "reach supervisor")
}

func TestCompletion_OfComponents(t *testing.T) {
	f := newSupervisor(t)
	for line, words := range map[string]string{
		"component stop ":               "storage\npresence\n",
		"component stop storage ":       "presence\n",
		"component logs storage ":       "",
		"component events ":             "storage\npresence\nsupervisor\n",
		"component restart ":            "storage\npresence\nsupervisor\n",
		"component restart supervisor ": "storage\npresence\n",
		"log-level ":                    "debug\ninfo\nwarn\nerror\nstorage\npresence\nsupervisor\n",
		"log-level storage ":            "debug\ninfo\nwarn\nerror\n",
		"log-level debug ":              "",
	} {
		args := append([]string{"__complete", "--root", f.root}, strings.Split(line, " ")...)
		got := cli(t, args...)
		if !strings.HasPrefix(got.out, words+":") {
			t.Errorf("%q: got %q, want %q", line, got.out, words)
		}
	}
}

func TestComponent_WithoutASupervisor(t *testing.T) {
	want(t, cli(t, "--root", t.TempDir(), "component", "stop", "storage"), 5, "reach supervisor", "there is no such socket")
}
