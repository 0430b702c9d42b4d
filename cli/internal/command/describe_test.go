package command

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/sandbox"
)

// What each phase of a start took is told, what still lasts is said to, and a container
// that has ended says how.
func TestDescription(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(before time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-before)) }
	got := description(now, &sandbox.Sandbox{
		UID: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Name: "web", Manager: sandbox.Cluster, Node: "node1", Labels: map[string]string{"b": "2", "a": "1"},
		CreatedAt: now.Add(-time.Hour),
		Spec: &resourcev1.SandboxSpec{Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING, NetworkGroup: "shop", Containers: []*resourcev1.ContainerSpec{
			{Name: "prepare", Image: "prepare:1", Init: true}, {Name: "main", Image: "web:1"},
		}},
		Status: &resourcev1.SandboxStatus{
			Attempt: 3, Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING, CauseReason: "DISK_FULL", Addresses: []string{"10.0.0.2"},
			PhaseTimes: []*resourcev1.PhaseTime{
				{Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_PREPARING, EnteredAt: at(2 * time.Minute)},
				{Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_STARTING, EnteredAt: at(2*time.Minute - 1234*time.Millisecond)},
				{Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING, EnteredAt: at(time.Minute)},
			},
			Conditions: []*resourcev1.Condition{
				{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_FALSE, Reason: "port 80 is not open", Since: at(time.Minute)},
			},
			Containers: []*resourcev1.ContainerStatus{
				{Name: "prepare", Exit: &resourcev1.ContainerExit{Container: "prepare", Attempt: 3}},
				{Name: "main", Pid: 77, StartedAt: at(time.Minute), OomKills: 2, OomKillsBeside: 1},
			},
			Exits: []*resourcev1.ContainerExit{
				{Container: "main", Attempt: 1, Code: 137, Signal: 9, ExitedAt: at(30 * time.Minute)},
				{Container: "main", Attempt: 2, Unknown: true, ExitedAt: at(20 * time.Minute)},
			},
		},
	})
	squeezed := strings.Join(strings.Fields(got), " ")
	for _, want := range []string{
		"Name: web Uid: 01ARZ3NDEKTSV4RRFFQ69G5FAV", "Labels: a=1,b=2", "Phase: RUNNING", "Attempt: 3", "Cause: DISK_FULL", "Network group: shop", "Ready: false", "Not ready because: port 80 is not open",
		" 1.234s ", "for 1m CONTAINER", "prepare (init) ended", " 0 ", "main running 77 1m", "2 (1 beside) web:1", "Ready sandbox false 1m port 80 is not open",
		"ATTEMPT CONTAINER EXIT AT 2 main unknown", "1 main 137 (signal 9)",
	} {
		if !strings.Contains(squeezed, want) {
			t.Errorf("does not say %q:\n%s", want, got)
		}
	}
}

func TestLives(t *testing.T) {
	running := &sandbox.Sandbox{Status: &resourcev1.SandboxStatus{Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING}}
	if ok, err := lives(running, isReady); !ok || err != nil {
		t.Errorf("one that runs and has nothing to say of readiness: got %v, %v", ok, err)
	}
	running.Status.Conditions = []*resourcev1.Condition{{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_UNKNOWN}}
	if ok, err := lives(running, isReady); ok || err != nil {
		t.Errorf("one that may become ready: got %v, %v", ok, err)
	}
	ended := &sandbox.Sandbox{
		Spec:   &resourcev1.SandboxSpec{RestartPolicy: resourcev1.RestartPolicy_RESTART_POLICY_NEVER},
		Status: &resourcev1.SandboxStatus{Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED, Message: "exit code 3"},
	}
	for _, s := range []*sandbox.Sandbox{nil, ended} {
		if ok, err := lives(s, (*sandbox.Sandbox).Running); ok || err == nil {
			t.Errorf("%v never runs: got %v, %v", s, ok, err)
		}
	}
}
