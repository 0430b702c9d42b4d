package graph_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/graph"
	"staddle.internal/cli/internal/output"
)

const (
	ready    = supervisorv1.ComponentState_COMPONENT_STATE_READY
	waiting  = supervisorv1.ComponentState_COMPONENT_STATE_WAITING
	backing  = supervisorv1.ComponentState_COMPONENT_STATE_BACKING_OFF
	stopped  = supervisorv1.ComponentState_COMPONENT_STATE_STOPPED
	notReady = supervisorv1.ComponentState_COMPONENT_STATE_NOT_READY
)

func sample(now time.Time) []*supervisorv1.Component {
	return []*supervisorv1.Component{
		{Name: "clusteraccess", State: ready, Since: timestamppb.New(now.Add(-time.Minute)), Pid: 10, Starts: 1},
		{Name: "storage", OrderOnly: []string{"clusteraccess"}, State: backing, Since: timestamppb.New(now), Starts: 3,
			Reason: "starts again in 1s", LastExit: "exit code 1"},
		{Name: "sandboxhost", Needs: []string{"storage"}, OrderOnly: []string{"clusteraccess"}, State: waiting, Reason: "waiting for storage"},
	}
}

func TestCells_DrawEachComponentBelowWhatItNeeds(t *testing.T) {
	now := time.Now()
	components := sample(now)
	depths := graph.Depths(components)
	var table [][]string
	for i, c := range components {
		table = append(table, graph.Cells(now, c, depths[i]))
	}
	want := `clusteraccess     ready         1m   10   1   -                       -
└ storage         backing off   0s   -    3   clusteraccess           starts again in 1s (last: exit code 1)
  └ sandboxhost   waiting       -    -    -   storage,clusteraccess   waiting for storage
`
	if got := output.Align(table); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestReady(t *testing.T) {
	if graph.Ready(&supervisorv1.GetGraphResponse{}) {
		t.Error("a graph without components is not ready")
	}
	if graph.Ready(&supervisorv1.GetGraphResponse{Components: sample(time.Now())}) {
		t.Error("one component is backing off")
	}
	if !graph.Ready(&supervisorv1.GetGraphResponse{Components: []*supervisorv1.Component{{State: ready}}}) {
		t.Error("all components are ready")
	}
}

func TestView_WithoutATerminalPrintsOnlyWhatChanged(t *testing.T) {
	var b strings.Builder
	v := graph.NewView(&b, false)
	g := &supervisorv1.GetGraphResponse{Components: sample(time.Now())}
	show := func() {
		t.Helper()
		if err := v.Show(g, func() string { return "whole\n" }); err != nil {
			t.Fatal(err)
		}
	}
	show()
	show()
	g.Components[2] = &supervisorv1.Component{Name: "sandboxhost", State: ready}
	show()
	if want := "whole\nsandboxhost    ready\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

// machine lays out a root with a node.yaml that needs clusteraccess and presence
// only.
func machine(t *testing.T) config.Paths {
	t.Helper()
	root, err := os.MkdirTemp("", "g")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	p := config.Paths{Root: root}
	text := "version: 1\ncontainerd: {managed: false}\nsupervisor:\n  components:\n"
	for _, name := range []string{"storage", "storage-agent", "sandboxhost", "sandbox-agent"} {
		text += "  - {name: " + name + ", disabled: true}\n"
	}
	err = errors.Join(os.Mkdir(p.Etc(), 0o755), os.Mkdir(p.Run(), 0o755), os.WriteFile(p.NodeFile(), []byte(text), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func serve(t *testing.T, path string, register func(*grpc.Server)) *grpc.Server {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ChainUnaryInterceptor(fault.UnaryServer), grpc.ChainStreamInterceptor(fault.StreamServer))
	register(s)
	go func() { _ = s.Serve(l) }() // ends with Stop
	t.Cleanup(s.Stop)
	return s
}

type process struct {
	processv1.UnimplementedProcessServiceServer
	status *processv1.GetStatusResponse
	err    error
}

func (p *process) GetStatus(context.Context, *processv1.GetStatusRequest) (*processv1.GetStatusResponse, error) {
	return p.status, p.err
}

func TestNow_WithoutASupervisorAsksEveryProcess(t *testing.T) {
	p := machine(t)
	access := &process{status: &processv1.GetStatusResponse{State: processv1.ProcessState_PROCESS_STATE_NOT_READY, Reason: "disk full", Pid: 7}}
	serve(t, p.Socket("clusteraccess"), func(s *grpc.Server) { processv1.RegisterProcessServiceServer(s, access) })
	g, err := graph.New(p).Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(g.GetComponents()) != 2 {
		t.Fatalf("components %v, want clusteraccess and presence", g.GetComponents())
	}
	first, second := g.GetComponents()[0], g.GetComponents()[1]
	if first.GetState() != notReady || first.GetReason() != "disk full" || first.GetPid() != 7 {
		t.Errorf("clusteraccess %v", first)
	}
	if second.GetState() != stopped || second.GetReason() != "" {
		t.Errorf("presence %v", second)
	}
	if graph.Stopped(g) || !graph.Stopped(&supervisorv1.GetGraphResponse{Components: g.GetComponents()[1:]}) {
		t.Error("a graph with a process that answers counts as stopped, or one without does not")
	}
}

func TestNow_ARefusedQuestionIsNoAnswer(t *testing.T) {
	p := machine(t)
	access := &process{err: fault.New(fault.Denied, "stranger")}
	serve(t, p.Socket("clusteraccess"), func(s *grpc.Server) { processv1.RegisterProcessServiceServer(s, access) })
	if g, err := graph.New(p).Now(t.Context()); fault.KindOf(err) != fault.Denied {
		t.Errorf("Now = %v, %v; want Denied", g, err)
	}
}

type supervisor struct {
	supervisorv1.UnimplementedSupervisorServiceServer
	states chan []*supervisorv1.Component
}

func (s *supervisor) WatchGraph(_ *supervisorv1.WatchGraphRequest, stream grpc.ServerStreamingServer[supervisorv1.WatchGraphResponse]) error {
	for {
		select {
		case c := <-s.states:
			if err := stream.Send(&supervisorv1.WatchGraphResponse{Components: c}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func TestWatch_GoesOnWithTheProcessesWhenTheSupervisorEnds(t *testing.T) {
	p := machine(t)
	sup := &supervisor{states: make(chan []*supervisorv1.Component, 1)}
	server := serve(t, p.Socket(graph.Supervisor), func(s *grpc.Server) { supervisorv1.RegisterSupervisorServiceServer(s, sup) })
	sup.states <- sample(time.Now())
	enough := errors.New("seen enough")
	var seen []int
	err := graph.New(p).Watch(t.Context(), func(g *supervisorv1.GetGraphResponse) error {
		seen = append(seen, len(g.GetComponents()))
		switch len(seen) {
		case 1:
			go server.Stop() // ends with the test's clean-up at the latest
			return nil
		default:
			return enough
		}
	})
	if !errors.Is(err, enough) || len(seen) != 2 || seen[0] != 3 || seen[1] != 2 {
		t.Errorf("Watch = %v after graphs of %v components; want the supervisor's 3, then the 2 of node.yaml", err, seen)
	}
}

func TestNow_WithoutAnythingSaysHowToBegin(t *testing.T) {
	_, err := graph.New(config.Paths{Root: filepath.Join(t.TempDir(), "none")}).Now(t.Context())
	if fault.KindOf(err) != fault.NotFound || !strings.Contains(err.Error(), "node.yaml") || exit.Hint(err) != "staddle up" {
		t.Errorf("got %v, try: %s; want that node.yaml is missing", err, exit.Hint(err))
	}
}
