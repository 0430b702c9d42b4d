package host

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

func TestHappened(t *testing.T) {
	before := &sandboxhostv1.SandboxState{
		Uid: "u", Name: "web", Manager: ManagerLocal, Generation: 1,
		Status: &resourcev1.SandboxStatus{
			Attempt: 2, Phase: running, Addresses: []string{"10.0.0.2"}, Conditions: []*resourcev1.Condition{{Type: conditionReady, State: yes}},
			Containers: []*resourcev1.ContainerStatus{{Name: "main", Pid: 7, ImageDigest: "sha256:a", StartedAt: timestamppb.Now()}},
		},
	}
	main := func(s *sandboxhostv1.SandboxState) *resourcev1.ContainerStatus {
		return s.GetStatus().GetContainers()[0]
	}
	tests := []struct {
		name   string
		change func(s *sandboxhostv1.SandboxState)
		want   string
	}{
		{"nothing", func(s *sandboxhostv1.SandboxState) { s.Status.Seq++ }, ""},
		{"another spec", func(s *sandboxhostv1.SandboxState) { s.Generation = 2 }, "SPEC_CHANGED"},
		{"removed", func(s *sandboxhostv1.SandboxState) {
			s.Removing, s.Status.Phase, s.Status.Reason = true, stopping, ReasonRemoved
		}, "REMOVED"},
		{"ended", func(s *sandboxhostv1.SandboxState) {
			main(s).Exit = &resourcev1.ContainerExit{Container: "main", Attempt: 2, Code: 3}
		}, "!CONTAINER_EXITED(main): container main ended with code 3"},
		{"ended well", func(s *sandboxhostv1.SandboxState) {
			main(s).Exit = &resourcev1.ContainerExit{Container: "main", Attempt: 2}
		}, "CONTAINER_EXITED(main): container main ended with code 0"},
		{"ended as asked", func(s *sandboxhostv1.SandboxState) {
			s.Status.Phase, s.Status.Reason = stopping, ReasonStopped
			main(s).Exit = &resourcev1.ContainerExit{Container: "main", Attempt: 2, Code: 143, Signal: 15}
		}, "CONTAINER_EXITED(main): container main was ended by signal 15, STOPPED_AS_ASKED"},
		{"ended for memory", func(s *sandboxhostv1.SandboxState) {
			main(s).Exit, main(s).OomKills = &resourcev1.ContainerExit{Container: "main", Attempt: 2, Code: 137, OomKilled: true}, 1
		}, "!CONTAINER_EXITED(main)"},
		{"a child ended for memory", func(s *sandboxhostv1.SandboxState) { main(s).OomKills = 1 }, "!OOM_KILLED(main)"},
		{"unhealthy", func(s *sandboxhostv1.SandboxState) {
			s.Status.Phase, s.Status.Reason, s.Status.Message = stopping, ReasonUnhealthy, "no answer"
		}, "!UNHEALTHY: no answer"},
		{"not live", func(s *sandboxhostv1.SandboxState) {
			main(s).Conditions = []*resourcev1.Condition{{Type: "Live", State: no, Reason: "no answer"}}
		}, "!NOT_LIVE(main): no answer"},
		{"not ready", func(s *sandboxhostv1.SandboxState) {
			s.Status.Conditions = []*resourcev1.Condition{{Type: conditionReady, State: no, Reason: "port 80 is not open"}}
		}, "!NOT_READY: port 80 is not open"},
		{"the next attempt", func(s *sandboxhostv1.SandboxState) {
			s.Status.Attempt, s.Status.Phase, s.Status.Reason = 3, pending, ReasonBackoff
			s.Status.Containers = []*resourcev1.ContainerStatus{{Name: "main", ImageDigest: "sha256:a"}}
		}, "!BACK_OFF"},
		{"it runs", func(s *sandboxhostv1.SandboxState) {
			s.Status.Attempt, main(s).StartedAt = 3, timestamppb.Now()
		}, "STARTED(main), RUNNING: all its containers run"},
		{"failed", func(s *sandboxhostv1.SandboxState) { s.Status.Phase, s.Status.Message = failed, "why" }, "!FAILED: why"},
		{"gone", func(s *sandboxhostv1.SandboxState) { s.Status.TornDownAt = timestamppb.Now() }, "TORN_DOWN"},
		{"its address is lost", func(s *sandboxhostv1.SandboxState) { s.Status.Addresses = nil }, "!ADDRESS_LOST: its interface or its address 10.0.0.2 was lost"},
		{"it ends, and has no address any more", func(s *sandboxhostv1.SandboxState) {
			s.Status.Phase, s.Status.Addresses = stopped, nil
		}, "STOPPED"},
		{"told by the step", func(s *sandboxhostv1.SandboxState) { s.Status.Reason = ReasonRetrying }, ""},
		{"the runtime is away", func(s *sandboxhostv1.SandboxState) { s.Status.Reason = ReasonUnseen }, "!RUNTIME_UNAVAILABLE"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			after := proto.CloneOf(before)
			tt.change(after)
			got := words(happened(before, after))
			if wanted := strings.Split(tt.want, ", "); tt.want == "" && len(got) > 0 || tt.want != "" && !slices.EqualFunc(got, wanted, strings.HasPrefix) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if got := words(happened(nil, before)); len(got) != 1 || !strings.HasPrefix(got[0], "ACCEPTED") {
		t.Errorf("of a new one %q is told", got)
	}
}

// words are events in a few words; a warning begins with "!".
func words(events []*sandboxhostv1.Event) []string {
	var all []string
	for _, e := range events {
		text := e.GetReason()
		if e.GetSeverity() == warning {
			text = "!" + text
		}
		if e.GetContainer() != "" {
			text += fmt.Sprintf("(%s)", e.GetContainer())
		}
		if e.GetMessage() != "" {
			text += ": " + e.GetMessage()
		}
		all = append(all, text)
	}
	return all
}
