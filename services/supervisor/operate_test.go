package supervisor_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"
)

const stopped = supervisorv1.ComponentState_COMPONENT_STATE_STOPPED

// One component is stopped, stays so whatever happens around it, and runs again
// when it is wanted.
func TestSupervisor_StopAndStartOfOne(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.start()
	n.untilState("c", ready)
	before := n.graph()
	for range 2 { // it is safe to repeat
		if _, err := n.api.StopComponent(t.Context(), &supervisorv1.StopComponentRequest{Name: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if alive(int(before["a"].GetPid())) {
		t.Error("got the process alive after the answer, want it gone")
	}
	got := n.graph()
	if a := got["a"]; a.GetState() != stopped || a.GetPid() != 0 || a.GetReason() != "stopped by an operator" {
		t.Errorf("got %v, want it stopped with the cause", a)
	}
	for _, name := range []string{"b", "c"} {
		if got[name].GetPid() != before[name].GetPid() {
			t.Errorf("got %v, want %s untouched", got[name], name)
		}
	}
	if st := n.status(); !strings.Contains(st.GetReason(), "a is stopped (stopped by an operator)") {
		t.Errorf("got status %v, want the cause", st)
	}
	if _, err := n.api.StartComponent(t.Context(), &supervisorv1.StartComponentRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	n.untilAgain("a", before["a"].GetPid())
	if _, err := n.api.StopComponent(t.Context(), &supervisorv1.StopComponentRequest{Name: "x"}); !errors.Is(err, fault.NotFound) {
		t.Errorf("got %v, want NotFound", err)
	}
}

// A component that is stopped while it backs off, or waits, is not started.
func TestSupervisor_StopOfOneThatHasNoProcess(t *testing.T) {
	n := newNode(t, "", chain("fail")...)
	n.start()
	n.until("a", "backing off", func(c *supervisorv1.Component) bool {
		return c.GetState() == supervisorv1.ComponentState_COMPONENT_STATE_BACKING_OFF
	})
	for _, name := range []string{"a", "b"} {
		if _, err := n.api.StopComponent(t.Context(), &supervisorv1.StopComponentRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	starts := n.graph()["a"].GetStarts()
	select {
	case <-time.After(1500 * time.Millisecond): // longer than any back-off here
	case <-n.done:
		t.Fatal("the supervisor has ended")
	}
	if a := n.graph()["a"]; a.GetState() != stopped || a.GetStarts() != starts {
		t.Errorf("got %v, want it stopped after %d starts", a, starts)
	}
	if b := n.graph()["b"]; b.GetState() != stopped || b.GetStarts() != 0 {
		t.Errorf("got %v, want it stopped and never started", b)
	}
	if _, err := n.api.StartComponent(t.Context(), &supervisorv1.StartComponentRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	n.until("a", "tried again", func(c *supervisorv1.Component) bool { return c.GetStarts() > starts })
}

// Every transition is one line and one event, and a watcher sees what the list has.
func TestSupervisor_EventsAreTheLinesOfTheLog(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "fail once"}, part{name: "b", mode: "serve", more: "needs: [a]"})
	n.start()
	n.untilState("b", ready)
	list, err := n.api.ListEvents(t.Context(), &supervisorv1.ListEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	events := list.GetEvents()
	failures := 0
	for i, e := range events {
		if e.GetSeq() != uint64(i+1) || e.GetAt() == nil || e.GetComponent() == "" || e.GetTo() == 0 {
			t.Errorf("got %v in place %d", e, i)
		}
		if e.GetNextDelay() != nil {
			failures++
			if e.ExitCode == nil || e.GetExitCode() == 0 || e.GetExitSignal() != "" || e.GetCause() == "" || e.GetAttempt() != 1 {
				t.Errorf("got %v, want the exit code, the cause and the attempt", e)
			}
		}
	}
	if failures != 1 {
		t.Errorf("got %d failures in %v, want one", failures, events)
	}
	lines := strings.Count(n.out.String(), `"msg":"component changed"`) + strings.Count(n.out.String(), `"msg":"component failed"`)
	if lines != len(events) || !strings.Contains(n.out.String(), `"exit_code":`) {
		t.Errorf("got %d lines for %d events", lines, len(events))
	}
	n.wantWatched(list)
}

// wantWatched watches from the middle of a list, in this life and in another.
func (n *node) wantWatched(list *supervisorv1.ListEventsResponse) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
	defer cancel()
	for life, first := range map[string]uint64{list.GetLife(): 3, "": 3, "of another supervisor": 1} {
		stream, err := n.api.WatchEvents(ctx, &supervisorv1.WatchEventsRequest{AfterSeq: 2, Life: life})
		if err != nil {
			n.t.Fatal(err)
		}
		for seq := first; seq <= uint64(len(list.GetEvents())); seq++ {
			m, err := stream.Recv()
			if err != nil || m.GetEvent().GetSeq() != seq || m.GetMissed() != 0 || m.GetLife() != list.GetLife() {
				n.t.Fatalf("life %q: got %v, %v, want number %d", life, m, err, seq)
			}
		}
	}
	stream, err := n.api.WatchEvents(ctx, &supervisorv1.WatchEventsRequest{AfterSeq: uint64(len(list.GetEvents())), Component: "a"})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, name := range []string{"b", "a"} { // only the second is asked for
		if _, err := n.api.StopComponent(ctx, &supervisorv1.StopComponentRequest{Name: name}); err != nil {
			n.t.Fatal(err)
		}
	}
	if m, err := stream.Recv(); err != nil || m.GetEvent().GetComponent() != "a" || m.GetEvent().GetTo() != supervisorv1.ComponentState_COMPONENT_STATE_STOPPING {
		n.t.Errorf("got %v, %v, want the stop of a", m, err)
	}
}

func TestSupervisor_LogsOfAComponentGoOnOverItsRestart(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "serve"})
	n.start()
	pid := n.untilState("a", ready).GetPid()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := n.api.ReadComponentLogs(ctx, &supervisorv1.ReadComponentLogsRequest{Name: "a", Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.api.RestartComponent(ctx, &supervisorv1.RestartComponentRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for strings.Count(text.String(), "process started") < 2 {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("%v after:\n%s", err, text.String())
		}
		text.Write(m.GetData())
	}
	if !strings.Contains(text.String(), "process stopped") {
		t.Errorf("got no end of the first process in:\n%s", text.String())
	}
	n.untilAgain("a", pid)
	last, one := "", uint32(1)
	tail, err := n.api.ReadComponentLogs(ctx, &supervisorv1.ReadComponentLogsRequest{Name: "a", TailLines: &one})
	for err == nil {
		var m *supervisorv1.ReadComponentLogsResponse
		if m, err = tail.Recv(); err == nil {
			last += string(m.GetData())
		}
	}
	if strings.Count(last, "\n") != 1 || !strings.HasSuffix(last, "\n") {
		t.Errorf("got %q as the last line", last)
	}
	unknown, err := n.api.ReadComponentLogs(ctx, &supervisorv1.ReadComponentLogsRequest{Name: "x"})
	if err == nil {
		_, err = unknown.Recv()
	}
	if !errors.Is(err, fault.NotFound) {
		t.Errorf("got %v, want NotFound", err)
	}
}

// The level of every process is set through the supervisor.
func TestSupervisor_LogLevelOfAll(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "serve"}, part{name: "b", mode: "fail"})
	n.start()
	n.untilState("a", ready)
	if _, err := n.api.StopComponent(t.Context(), &supervisorv1.StopComponentRequest{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	set := func(level processv1.LogLevel, period time.Duration) *supervisorv1.SetLogLevelResponse {
		req := &supervisorv1.SetLogLevelRequest{Level: level}
		if period > 0 {
			req.Period = durationpb.New(period)
		}
		answer, err := n.api.SetLogLevel(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	const debug, info = processv1.LogLevel_LOG_LEVEL_DEBUG, processv1.LogLevel_LOG_LEVEL_INFO
	got := set(debug, time.Hour).GetOutcomes()
	if len(got) != 3 || got[0].GetPrevious() != info || got[0].GetFailure() != "" || got[2].GetPrevious() != info || !strings.Contains(got[1].GetFailure(), "stopped") {
		t.Errorf("got %v, want a and the supervisor set, and b named", got)
	}
	n.eventually(func() bool { // the question itself is a line of that level
		n.status()
		return strings.Contains(n.out.String(), `"level":"DEBUG"`)
	}, func() string { return "a line of level debug" })
	if got := set(info, 0).GetOutcomes(); got[0].GetPrevious() != debug {
		t.Errorf("got %v, want debug until then", got)
	}
}
