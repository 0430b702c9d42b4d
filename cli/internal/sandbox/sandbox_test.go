package sandbox_test

import (
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/sandbox"
)

const (
	running  = resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	pending  = resourcev1.SandboxPhase_SANDBOX_PHASE_PENDING
	stopped  = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	failed   = resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
	wantRun  = resourcev1.DesiredState_DESIRED_STATE_RUNNING
	wantStop = resourcev1.DesiredState_DESIRED_STATE_STOPPED
	always   = resourcev1.RestartPolicy_RESTART_POLICY_ALWAYS
	unset    = resourcev1.RestartPolicy_RESTART_POLICY_UNSPECIFIED
	onFail   = resourcev1.RestartPolicy_RESTART_POLICY_ON_FAILURE
	never    = resourcev1.RestartPolicy_RESTART_POLICY_NEVER
)

func TestAtRest(t *testing.T) {
	tests := []struct {
		name    string
		desired resourcev1.DesiredState
		policy  resourcev1.RestartPolicy
		phase   resourcev1.SandboxPhase
		behind  bool
		want    bool
	}{
		{"runs", wantRun, never, running, false, false},
		{"ended well, never again", wantRun, never, stopped, false, true},
		{"failed, never again", wantRun, never, failed, false, true},
		{"ended well, again on failure only", wantRun, onFail, stopped, false, true},
		{"failed, again on failure", wantRun, onFail, failed, false, false},
		{"ended, always again", wantRun, always, stopped, false, false},
		{"an unset policy is always", wantRun, unset, failed, false, false},
		{"stopped as asked", wantStop, always, stopped, false, true},
		{"asked to stop, status is of the time before", wantStop, always, stopped, true, false},
		{"asked to stop, runs still", wantStop, always, running, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sandbox.Sandbox{
				Generation: 2, Spec: &resourcev1.SandboxSpec{Desired: tt.desired, RestartPolicy: tt.policy},
				Status: &resourcev1.SandboxStatus{ObservedGeneration: 2, Phase: tt.phase},
			}
			if tt.behind {
				s.Status.ObservedGeneration = 1
			}
			if got := s.AtRest(); got != tt.want {
				t.Errorf("AtRest() = %t, want %t", got, tt.want)
			}
		})
	}
}

func TestFailed_CountsABackOffAndNotAFirstWait(t *testing.T) {
	s := sandbox.Sandbox{Status: &resourcev1.SandboxStatus{Phase: pending, Message: "waits"}}
	if _, ok := s.Failed(); ok {
		t.Error("a sandbox that waits for its turn has not failed")
	}
	s.Status.NextAt = timestamppb.Now()
	if why, ok := s.Failed(); !ok || why != "waits" {
		t.Errorf("Failed() = %q, %t; want the message of the back-off", why, ok)
	}
}

func TestExit_IsThatOfTheNewestAttempt(t *testing.T) {
	s := sandbox.Sandbox{Status: &resourcev1.SandboxStatus{Attempt: 2, Exits: []*resourcev1.ContainerExit{
		{Container: "main", Attempt: 1, Code: 1}, {Container: "side", Attempt: 2, Code: 2},
	}}}
	if e := s.Exit("main"); e != nil {
		t.Errorf("exit %v is of an attempt before", e)
	}
	s.Status.Exits = append(s.Status.Exits, &resourcev1.ContainerExit{Container: "main", Attempt: 2, Code: 3})
	if e := s.Exit("main"); e.GetCode() != 3 {
		t.Errorf("exit %v, want code 3", e)
	}
}
