package command

import (
	"strings"

	"github.com/spf13/pflag"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/exit"
)

// secretRefs are the flags of "run" about secrets.
type secretRefs struct{ env, mounts []string }

func secretFlags(f *pflag.FlagSet, o *secretRefs) {
	f.StringArrayVar(&o.env, "env-from-secret", nil, "`NAME=SECRET:KEY` in the environment, from a secret of the cluster")
	f.StringArrayVar(&o.mounts, "secret", nil, "secret of the cluster as a folder of files in memory, as `NAME:/PATH[:MODE]`")
}

// add puts references into a spec.
func (o secretRefs) add(_ *resourcev1.SandboxSpec, c *resourcev1.ContainerSpec) error {
	for _, text := range o.env {
		name, from, ok := strings.Cut(text, "=")
		secret, key, both := strings.Cut(from, ":")
		if !ok || !both || name == "" || secret == "" || key == "" {
			return exit.BadUsage("--env-from-secret %q: write NAME=SECRET:KEY", text)
		}
		c.Env = append(c.Env, &resourcev1.EnvironmentVariable{Name: name, Secret: &resourcev1.SecretReference{Name: secret, Key: key}})
	}
	for _, text := range o.mounts {
		parts := strings.Split(text, ":")
		if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || !strings.HasPrefix(parts[1], "/") {
			return exit.BadUsage("--secret %q: write NAME:/PATH or NAME:/PATH:MODE", text)
		}
		m := &resourcev1.SecretMount{Secret: parts[0], Path: parts[1]}
		if len(parts) == 3 {
			m.Mode = parts[2]
		}
		c.Secrets = append(c.Secrets, m)
	}
	return nil
}
