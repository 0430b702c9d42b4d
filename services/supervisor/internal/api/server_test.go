package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/services/supervisor/internal/child"
	"staddle.internal/services/supervisor/internal/machine"
	"staddle.internal/services/supervisor/internal/supervise"
)

// fixed is a graph that does not change.
type fixed struct {
	table machine.Table
	asked []string
}

func (f *fixed) Table() machine.Table                         { return f.table }
func (f *fixed) Changed() <-chan struct{}                     { return nil }
func (f *fixed) History() *supervise.History                  { return supervise.NewHistory() }
func (f *fixed) ask(what, name string) error                  { f.asked = append(f.asked, what+" "+name); return nil }
func (f *fixed) Start(_ context.Context, name string) error   { return f.ask("start", name) }
func (f *fixed) Stop(_ context.Context, name string) error    { return f.ask("stop", name) }
func (f *fixed) Restart(_ context.Context, name string) error { return f.ask("restart", name) }

// itself is the second program of a supervisor.
type itself struct{ *fixed }

func (s itself) Program() Program { return Program{Life: "x", Number: 2, Version: "v"} }
func (s itself) Restart(_ context.Context, life string, number uint32) error {
	return s.ask("replace", fmt.Sprintf("%s %d", life, number))
}

func (f *fixed) ReadOutput(_ context.Context, name string, how child.Reading, emit func([]byte, int64) error) error {
	f.asked = append(f.asked, "read "+name)
	if how.Tail != 0 || !how.Follow {
		return errors.New("not read as asked")
	}
	return emit([]byte("words"), 7)
}

func twoComponents() machine.Plan {
	return machine.Plan{Components: []machine.Component{{Name: "a"}, {Name: "b"}, {Name: "containerd"}}}
}

func serverOver(f *fixed) *Server {
	return New(twoComponents(), Deps{
		Graph: f, Outputs: f, Own: itself{f}, Foreign: func(name string) bool { return name == "containerd" }, Shutdown: func() {},
		SetLevel: func(_ context.Context, name string, req *processv1.SetLogLevelRequest) (*processv1.SetLogLevelResponse, error) {
			if name == "b" {
				return nil, errors.New("out of order")
			}
			return &processv1.SetLogLevelResponse{Previous: processv1.LogLevel_LOG_LEVEL_INFO}, nil
		},
	})
}

func TestGetGraph_ShowsEveryState(t *testing.T) {
	now := time.Now()
	seen := map[supervisorv1.ComponentState]bool{}
	for s := machine.Waiting; s <= machine.BackingOff; s++ {
		plan := machine.Plan{Components: []machine.Component{{Name: "a", Needs: []string{"b"}}}}
		f := &fixed{table: machine.Table{Members: map[string]*machine.Member{"a": {State: s, Since: now, NextStart: now, PID: 7, Starts: 2}}}}
		answer, err := New(plan, Deps{Graph: f}).GetGraph(t.Context(), &supervisorv1.GetGraphRequest{})
		if err != nil {
			t.Fatal(err)
		}
		c := answer.GetComponents()[0]
		if c.GetState() == 0 || seen[c.GetState()] || c.GetPid() != 7 || c.GetStarts() != 2 || c.GetNeeds()[0] != "b" {
			t.Errorf("got %v for %s, want its own state and all fields", c, s)
		}
		if got := c.GetNextStartAt() != nil; got != (s == machine.BackingOff) {
			t.Errorf("got next start set %v in %s, want it only while backing off", got, s)
		}
		seen[c.GetState()] = true
	}
}

// stream takes what is sent.
type stream[T any] struct {
	grpc.ServerStreamingServer[T]

	ctx  context.Context //nolint:containedctx // of the call that it stands for
	sent []*T
}

func (s *stream[T]) Context() context.Context { return s.ctx }
func (s *stream[T]) Send(m *T) error          { s.sent = append(s.sent, m); return nil }

func TestServer_BoundsWhatComesFromOutside(t *testing.T) {
	f := &fixed{}
	s := serverOver(f)
	for _, name := range []string{"", strings.Repeat("x", 64)} {
		calls := map[string]func() error{
			"start": func() error {
				_, err := s.StartComponent(t.Context(), &supervisorv1.StartComponentRequest{Name: name})
				return err
			},
			"stop": func() error {
				_, err := s.StopComponent(t.Context(), &supervisorv1.StopComponentRequest{Name: name})
				return err
			},
			"restart": func() error {
				_, err := s.RestartComponent(t.Context(), &supervisorv1.RestartComponentRequest{Name: name})
				return err
			},
			"logs": func() error {
				return s.ReadComponentLogs(&supervisorv1.ReadComponentLogsRequest{Name: name}, nil)
			},
		}
		for what, call := range calls {
			if err := call(); !errors.Is(err, fault.Invalid) {
				t.Errorf("%s: got %v for a name of %d characters, want Invalid", what, err, len(name))
			}
		}
	}
	long := uint32(maxTail + 1)
	level := processv1.LogLevel_LOG_LEVEL_DEBUG
	for what, err := range map[string]error{
		"tail":   s.ReadComponentLogs(&supervisorv1.ReadComponentLogsRequest{Name: "a", TailLines: &long}, nil),
		"life":   s.WatchEvents(&supervisorv1.WatchEventsRequest{Life: strings.Repeat("x", 65)}, nil),
		"limit":  second(s.ListEvents(t.Context(), &supervisorv1.ListEventsRequest{Limit: 1001})),
		"period": second(s.SetLogLevel(t.Context(), &supervisorv1.SetLogLevelRequest{Level: level, Period: durationpb.New(time.Millisecond)})),
		"level":  second(s.SetLogLevel(t.Context(), &supervisorv1.SetLogLevelRequest{})),
	} {
		if !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: got %v, want Invalid", what, err)
		}
	}
	for what, err := range map[string]error{
		"list":  second(s.ListEvents(t.Context(), &supervisorv1.ListEventsRequest{Component: "x"})),
		"watch": s.WatchEvents(&supervisorv1.WatchEventsRequest{Component: "x"}, nil),
		"level": second(s.SetLogLevel(t.Context(), &supervisorv1.SetLogLevelRequest{Component: "x", Level: level})),
	} {
		if !errors.Is(err, fault.NotFound) {
			t.Errorf("%s: got %v for an unknown component, want NotFound", what, err)
		}
	}
	if len(f.asked) > 0 {
		t.Errorf("got %v done, want nothing", f.asked)
	}
}

func second[T any](_ T, err error) error { return err }

func TestReadComponentLogs_PassesOnWhatIsAsked(t *testing.T) {
	f, out := &fixed{}, &stream[supervisorv1.ReadComponentLogsResponse]{ctx: t.Context()}
	none := uint32(0)
	err := serverOver(f).ReadComponentLogs(&supervisorv1.ReadComponentLogsRequest{Name: "a", TailLines: &none, Follow: true}, out)
	if err != nil || len(out.sent) != 1 || string(out.sent[0].GetData()) != "words" || out.sent[0].GetMissedBytes() != 7 {
		t.Errorf("got %v and %v, want the one piece", err, out.sent)
	}
}

func TestSetLogLevel_EachProcessHasItsOutcome(t *testing.T) {
	live := &machine.Member{State: machine.Ready, PID: 1}
	f := &fixed{table: machine.Table{Members: map[string]*machine.Member{"a": {State: machine.BackingOff}, "b": live, "containerd": live}}}
	answer, err := serverOver(f).SetLogLevel(t.Context(), &supervisorv1.SetLogLevelRequest{Level: processv1.LogLevel_LOG_LEVEL_DEBUG})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range answer.GetOutcomes() {
		got = append(got, o.GetComponent()+": "+o.GetFailure())
	}
	want := []string{"a: it has no process: it is backing off", "b: out of order", "supervisor: "}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || answer.GetOutcomes()[2].GetPrevious() != processv1.LogLevel_LOG_LEVEL_INFO {
		t.Errorf("got %v, want %v", answer, want)
	}
	_, err = serverOver(f).SetLogLevel(t.Context(), &supervisorv1.SetLogLevelRequest{Component: "containerd", Level: processv1.LogLevel_LOG_LEVEL_DEBUG})
	if !errors.Is(err, fault.Conflict) {
		t.Errorf("got %v for a foreign program, want Conflict", err)
	}
}

func TestShutdown_DrainsFirstAndStopsNothingIfThatFails(t *testing.T) {
	var did []string
	var fails error
	s := New(machine.Plan{}, Deps{
		Drain: func(_ context.Context, killAfter *durationpb.Duration) error {
			did = append(did, "drain "+killAfter.AsDuration().String())
			return fails
		},
		Shutdown: func() { did = append(did, "stop") },
	})
	keep := supervisorv1.ShutdownMode_SHUTDOWN_MODE_KEEP
	drain := &supervisorv1.ShutdownRequest{Mode: supervisorv1.ShutdownMode_SHUTDOWN_MODE_DRAIN, KillAfter: durationpb.New(time.Second)}
	for _, c := range []struct {
		req   *supervisorv1.ShutdownRequest
		fails error
		want  []string
	}{
		{&supervisorv1.ShutdownRequest{}, nil, []string{"stop"}},
		{&supervisorv1.ShutdownRequest{Mode: keep}, nil, []string{"stop"}},
		{drain, nil, []string{"drain 1s", "stop"}},
		{drain, fault.New(fault.Unavailable, "presence is away"), []string{"drain 1s"}},
	} {
		did, fails = nil, c.fails
		if _, err := s.Shutdown(t.Context(), c.req); !errors.Is(err, c.fails) || !slices.Equal(did, c.want) {
			t.Errorf("%v: did %v, %v; want %v", c.req, did, err, c.want)
		}
	}
}

func TestRestartSupervisor_BoundsWhatIsAsked(t *testing.T) {
	f := &fixed{}
	s := serverOver(f)
	answer, err := s.RestartSupervisor(t.Context(), &supervisorv1.RestartSupervisorRequest{Life: "x", Number: 1})
	if p := answer.GetProgram(); err != nil || p.GetNumber() != 2 || p.GetLife() != "x" || p.GetVersion() != "v" || !slices.Equal(f.asked, []string{"replace x 1"}) {
		t.Errorf("got %v, %v after %v, want the program that serves", p, err, f.asked)
	}
	for _, bad := range []*supervisorv1.RestartSupervisorRequest{{Number: 1}, {Life: "x"}, {Life: strings.Repeat("x", 65), Number: 1}} {
		if _, err := s.RestartSupervisor(t.Context(), bad); !errors.Is(err, fault.Invalid) || len(f.asked) != 1 {
			t.Errorf("got %v for %v, want Invalid and nothing asked", err, bad)
		}
	}
}

// The events of the supervisor itself can be asked for like those of a component.
func TestListEvents_OfTheSupervisorItself(t *testing.T) {
	if _, err := serverOver(&fixed{}).ListEvents(t.Context(), &supervisorv1.ListEventsRequest{Component: "supervisor"}); err != nil {
		t.Error(err)
	}
}
