package follow_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/follow"
	"staddle.internal/cli/internal/sandbox"
)

// scripted is a host that goes through given states while it is watched, and has
// given answers for logs.
type scripted struct {
	states []*sandbox.Sandbox // nil means gone
	logs   []func(*sandboxhostv1.ReadLogsRequest, func(*sandboxhostv1.ReadLogsResponse) error) error
	asked  []*sandboxhostv1.ReadLogsRequest
}

func (s *scripted) Get(context.Context, string) (sandbox.Sandbox, error) { return *s.states[0], nil }

func (s *scripted) Watch(_ context.Context, _ string, emit func(sandbox.Event) error) error {
	for first := true; ; first = false {
		now := s.states[0]
		var err error
		switch {
		case now != nil:
			err = emit(sandbox.Event{Sandbox: now})
		case !first:
			err = emit(sandbox.Event{Sandbox: &sandbox.Sandbox{}, Gone: true})
		}
		if err == nil && first {
			err = emit(sandbox.Event{})
		}
		if err != nil {
			return err
		}
		if len(s.states) == 1 {
			return fault.New(fault.Internal, "nobody ended the watch")
		}
		s.states = s.states[1:]
	}
}

func (s *scripted) Logs(_ context.Context, r *sandboxhostv1.ReadLogsRequest, emit func(*sandboxhostv1.ReadLogsResponse) error) error {
	s.asked = append(s.asked, r)
	if len(s.logs) == 0 {
		return fault.New(fault.NotFound, "no output")
	}
	next := s.logs[0]
	s.logs = s.logs[1:]
	return next(r, emit)
}

type answer = func(*sandboxhostv1.ReadLogsRequest, func(*sandboxhostv1.ReadLogsResponse) error) error

func chunk(offset int64, data string, end error) answer {
	return func(_ *sandboxhostv1.ReadLogsRequest, emit func(*sandboxhostv1.ReadLogsResponse) error) error {
		err := emit(&sandboxhostv1.ReadLogsResponse{Stream: sandboxhostv1.LogStream_LOG_STREAM_STDOUT, Offset: offset, Data: []byte(data)})
		if err != nil {
			return err
		}
		return end
	}
}

func box(attempt uint64, phase resourcev1.SandboxPhase, started bool) *sandbox.Sandbox {
	s := &sandbox.Sandbox{
		Spec: &resourcev1.SandboxSpec{
			Desired:       resourcev1.DesiredState_DESIRED_STATE_RUNNING,
			RestartPolicy: resourcev1.RestartPolicy_RESTART_POLICY_NEVER,
		},
		Status: &resourcev1.SandboxStatus{Attempt: attempt, Phase: phase},
	}
	if started {
		s.Status.Containers = []*resourcev1.ContainerStatus{{Name: "main", StartedAt: timestamppb.Now()}}
	}
	return s
}

const (
	preparing = resourcev1.SandboxPhase_SANDBOX_PHASE_PREPARING
	running   = resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	ended     = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	failed    = resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
)

// A host that is away for a while is waited for, however long it was followed before and
// whether or not it had something to say; one that stays away is given up.
func TestRun_OutageIsCountedFromItsBegin(t *testing.T) {
	cut := fault.New(fault.Unavailable, "cut")
	quiet := func(*sandboxhostv1.ReadLogsRequest, func(*sandboxhostv1.ReadLogsResponse) error) error {
		<-time.After(10 * time.Minute)
		return cut
	}
	gone := func(*sandboxhostv1.ReadLogsRequest, func(*sandboxhostv1.ReadLogsResponse) error) error { return cut }
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		host := &scripted{states: []*sandbox.Sandbox{box(1, running, true), box(1, ended, true)},
			logs: []answer{quiet, gone, gone, chunk(0, "one", nil)}}
		req := follow.Request{UID: "u", Container: "main", Attempt: 1, Follow: true}
		if err := follow.Run(t.Context(), host, req, follow.Output{Stdout: &out, Stderr: &out}); err != nil || out.String() != "one" {
			t.Errorf("got %q (%v), want it followed on", out.String(), err)
		}
		host = &scripted{states: []*sandbox.Sandbox{box(1, running, true)}, logs: []answer{quiet}}
		for range 1000 {
			host.logs = append(host.logs, gone)
		}
		began := time.Now()
		err := follow.Run(t.Context(), host, req, follow.Output{Stdout: &out, Stderr: &out})
		if took := time.Since(began) - 10*time.Minute; fault.KindOf(err) != fault.Unavailable || took < time.Minute || took > 2*time.Minute {
			t.Errorf("given up after %s (%v), want a minute", took, err)
		}
	})
}

func TestRun(t *testing.T) {
	away, givenUp := fault.New(fault.Unavailable, "cut"), fault.New(fault.Conflict, "given up")
	missing := func(*sandboxhostv1.ReadLogsRequest, func(*sandboxhostv1.ReadLogsResponse) error) error {
		return fault.New(fault.NotFound, "no output")
	}
	tests := []struct {
		name           string
		host           *scripted
		stdout, stderr string
		reads          int
	}{
		{"a cut stream goes on behind the last byte",
			&scripted{states: []*sandbox.Sandbox{box(1, running, true), box(1, ended, true)},
				logs: []answer{chunk(0, "one ", away), chunk(4, "two", nil)}},
			"one two", "", 2},
		{"a gap is said",
			&scripted{states: []*sandbox.Sandbox{box(1, ended, true)}, logs: []answer{chunk(7, "rest", nil)}},
			"rest", "staddle: 7 bytes of stdout are not kept any more\n", 1},
		{"what has not started yet is waited for, and read though it ended at once",
			&scripted{states: []*sandbox.Sandbox{box(1, preparing, false), box(1, ended, true)},
				logs: []answer{missing, missing, chunk(0, "late", nil)}},
			"late", "", 3},
		{"what never started has no output",
			&scripted{states: []*sandbox.Sandbox{box(1, failed, false)}}, "", "", 1},
		{"output that is lost is not asked for without end",
			&scripted{states: []*sandbox.Sandbox{box(1, ended, true)}}, "", "", 6},
		{"the next attempt begins at its first byte",
			&scripted{states: []*sandbox.Sandbox{box(1, running, true), box(2, running, true), box(2, ended, true)},
				logs: []answer{chunk(0, "a", nil), chunk(0, "b", nil)}},
			"ab", "", 2},
		{"an attempt that is given up is said, and the next one shown",
			&scripted{states: []*sandbox.Sandbox{box(1, running, true), box(2, running, true), box(2, ended, true)},
				logs: []answer{chunk(0, "a", givenUp), chunk(0, "b", nil)}},
			"ab", "staddle: given up\n", 2},
		{"a sandbox that was gone before it was looked for",
			&scripted{states: []*sandbox.Sandbox{nil}}, "", "", 1},
		{"a sandbox that is gone has no more to say",
			&scripted{states: []*sandbox.Sandbox{box(1, running, true), nil}, logs: []answer{chunk(0, "a", away), chunk(1, "", nil)}},
			"a", "", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out, errOut strings.Builder
			err := follow.Run(t.Context(), tt.host, follow.Request{UID: "u", Container: "main", Attempt: 1, Follow: true},
				follow.Output{Stdout: &out, Stderr: &errOut})
			if err != nil {
				t.Fatal(err)
			}
			if out.String() != tt.stdout || errOut.String() != tt.stderr {
				t.Errorf("stdout %q, stderr %q; want %q and %q", out.String(), errOut.String(), tt.stdout, tt.stderr)
			}
			if len(tt.host.asked) != tt.reads {
				t.Errorf("%d reads, want %d: %v", len(tt.host.asked), tt.reads, tt.host.asked)
			}
		})
	}
}

// What is given up of a sandbox that is gone meanwhile was not all.
func TestRun_SaysThatTheEndIsNotAll(t *testing.T) {
	host := &scripted{states: []*sandbox.Sandbox{box(1, running, true), nil}, logs: []answer{chunk(0, "a", fault.New(fault.Conflict, "given up"))}}
	var out strings.Builder
	err := follow.Run(t.Context(), host, follow.Request{UID: "u", Attempt: 1, Follow: true}, follow.Output{Stdout: &out, Stderr: &out})
	if fault.KindOf(err) != fault.Conflict || out.String() != "a" {
		t.Errorf("got %q, %v, want Conflict", out.String(), err)
	}
}

func TestRun_OtherFailuresEndIt(t *testing.T) {
	host := &scripted{states: []*sandbox.Sandbox{box(1, running, true)}, logs: []answer{chunk(0, "a", fault.New(fault.Denied, "stranger"))}}
	var out strings.Builder
	err := follow.Run(t.Context(), host, follow.Request{UID: "u", Attempt: 1, Follow: true}, follow.Output{Stdout: &out, Stderr: &out})
	if fault.KindOf(err) != fault.Denied {
		t.Errorf("error %v, want Denied", err)
	}
}
