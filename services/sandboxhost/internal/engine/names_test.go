package engine_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// olderSpec is a spec that uses what the first release knew, and nothing else.
func olderSpec() *resourcev1.SandboxSpec {
	return &resourcev1.SandboxSpec{
		Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING,
		Containers: []*resourcev1.ContainerSpec{{
			Name: "web", Image: "registry.example/web:1", Command: []string{"/web"}, Args: []string{"-v"},
			Env:        []*resourcev1.EnvironmentVariable{{Name: "A", Value: "1"}},
			WorkingDir: "/srv", User: "1000:1000",
			Limits: &resourcev1.ResourceLimits{
				MemoryLimitBytes: new(int64(64 << 20)), CpuLimitMillicores: new(int64(500)), PidsLimit: new(int64(100)),
			},
			Disks: []*resourcev1.DiskMount{{Disk: "data", Path: "/data"}},
		}},
		Network:                resourcev1.NetworkMode_NETWORK_MODE_SANDBOX,
		RestartPolicy:          resourcev1.RestartPolicy_RESTART_POLICY_ON_FAILURE,
		TerminationGracePeriod: durationpb.New(5 * time.Second), Hostname: "web",
		Disconnect:   &resourcev1.DisconnectPolicy{StopAfter: durationpb.New(time.Minute)},
		NodeSelector: map[string]string{"zone": "a", "disk": "fast"},
	}
}

// A sandbox that was started by the release before must not be taken for another:
// the hash of what that release knew stays.
func TestSpecHash_StaysOverReleases(t *testing.T) {
	const want = "64cc47588b9b9b8f275082ad58922358"
	got, err := engine.SpecHash(olderSpec())
	if err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestSameContainers(t *testing.T) {
	tests := []struct {
		name   string
		change func(s *resourcev1.SandboxSpec)
		same   bool
	}{
		{"nothing", func(*resourcev1.SandboxSpec) {}, true},
		{"limits", func(s *resourcev1.SandboxSpec) { s.Containers[0].Limits = nil }, true},
		{"policy", func(s *resourcev1.SandboxSpec) { s.RestartPolicy = resourcev1.RestartPolicy_RESTART_POLICY_NEVER }, true},
		{"back-off", func(s *resourcev1.SandboxSpec) { s.RestartBackoff = &resourcev1.RestartBackoff{} }, true},
		{"image", func(s *resourcev1.SandboxSpec) { s.Containers[0].Image = "registry.example/web:2" }, false},
		{"grace of a container", func(s *resourcev1.SandboxSpec) { s.Containers[0].TerminationGracePeriod = durationpb.New(0) }, false},
		{"another container", func(s *resourcev1.SandboxSpec) {
			s.Containers = append(s.Containers, &resourcev1.ContainerSpec{Name: "b", Image: "b"})
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			changed := olderSpec()
			tt.change(changed)
			if got := engine.SameContainers(olderSpec(), changed); got != tt.same {
				t.Errorf("got %v, want %v", got, tt.same)
			}
		})
	}
}

func TestChooseStopSignal(t *testing.T) {
	tests := []struct {
		spec, image string
		want        int
	}{
		{"", "", 15}, {"", "SIGQUIT", 3}, {"", "3", 3}, {"", "no such signal", 15}, {"SIGINT", "SIGQUIT", 2},
		{"HUP", "", 1}, {"SIGRTMIN+3", "", 37},
	}
	for _, tt := range tests {
		if got := engine.ChooseStopSignal(&resourcev1.ContainerSpec{StopSignal: tt.spec}, tt.image); int(got) != tt.want {
			t.Errorf("spec %q, image %q: got %d, want %d", tt.spec, tt.image, got, tt.want)
		}
	}
}
