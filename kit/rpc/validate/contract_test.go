package validate

import (
	"testing"

	"buf.build/go/protovalidate"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// What goes to a program goes through calls of the kernel that end at a zero byte.
func TestContainerSpec_HasNoZeroByte(t *testing.T) {
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
		if err := protovalidate.Validate(spec); err != nil {
			t.Errorf("%s: %v, want it taken", name, err)
		}
		set(spec, bad)
		if err := protovalidate.Validate(spec); err == nil {
			t.Errorf("%s: a zero byte was taken", name)
		}
	}
}
