package api_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/cap"
	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/rpc/validate"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// checker checks a container as EnsureSandbox does.
func checker(t *testing.T) func(*resourcev1.ContainerSpec) error {
	t.Helper()
	rules, err := validate.New(&sandboxhostv1.EnsureSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return func(c *resourcev1.ContainerSpec) error {
		_, err := rules.Unary(t.Context(), &sandboxhostv1.EnsureSandboxRequest{
			Uid: string(id.NewSandbox()), Name: "web", Generation: 1, Manager: "local",
			Spec: &resourcev1.SandboxSpec{Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING, Containers: []*resourcev1.ContainerSpec{c}},
		}, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil })
		return err
	}
}

// The contract names every capability that the runtime knows, to add and to drop.
func TestEnsureSandbox_KnowsAllCapabilities(t *testing.T) {
	check := checker(t)
	for _, name := range cap.Known() {
		name = strings.TrimPrefix(name, "CAP_")
		for _, security := range []*resourcev1.SecuritySpec{{AddCapabilities: []string{name}}, {DropCapabilities: []string{name}}} {
			if err := check(&resourcev1.ContainerSpec{Name: "main", Image: "i", Security: security}); err != nil {
				t.Errorf("%v: %v", security, err)
			}
		}
	}
}

// What goes to a program goes through calls of the kernel that end at a zero byte.
func TestEnsureSandbox_RefusesAZeroByte(t *testing.T) {
	check := checker(t)
	const bad, good = "a\x00b", "a\nb ü \x01"
	for name, set := range map[string]func(*resourcev1.ContainerSpec, string){
		"command":     func(c *resourcev1.ContainerSpec, s string) { c.Command = []string{"x", s} },
		"args":        func(c *resourcev1.ContainerSpec, s string) { c.Args = []string{"x", s} },
		"working_dir": func(c *resourcev1.ContainerSpec, s string) { c.WorkingDir = "/" + s },
		"env": func(c *resourcev1.ContainerSpec, s string) {
			c.Env = []*resourcev1.EnvironmentVariable{{Name: "A", Value: s}}
		},
	} {
		spec := &resourcev1.ContainerSpec{Name: "main", Image: "i"}
		set(spec, good)
		if err := check(spec); err != nil {
			t.Errorf("%s: %v, want it taken", name, err)
		}
		set(spec, bad)
		if err := check(spec); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: got %v, want a zero byte to be invalid", name, err)
		}
	}
}
