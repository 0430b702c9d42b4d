package command

import (
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/id"

	"staddle.internal/cli/internal/exit"
)

// mainContainer is the name of the container of a sandbox made by "run", beside its init
// containers.
const mainContainer = "main"

// specOf is the spec that the flags of "run" describe. All mistakes in them are
// mistakes of usage.
func specOf(o runOptions) (*resourcev1.SandboxSpec, error) {
	c := &resourcev1.ContainerSpec{
		Name: mainContainer, Image: o.image, Command: o.entrypoint, Args: o.args, User: o.user, WorkingDir: o.workdir,
		StopSignal: strings.ToUpper(o.stopSignal), InitProcess: o.init,
	}
	for _, env := range o.env {
		name, value, ok := strings.Cut(env, "=")
		if !ok || name == "" {
			return nil, exit.BadUsage("--env %q: write NAME=VALUE", env)
		}
		c.Env = append(c.Env, &resourcev1.EnvironmentVariable{Name: name, Value: value})
	}
	var err error
	if c.PullPolicy, err = pullOf(o.pull); err != nil {
		return nil, err
	}
	limits, err := limitsOf(o)
	if err != nil {
		return nil, err
	}
	c.Limits = limits
	for _, d := range o.disks {
		mount, err := diskOf(d)
		if err != nil {
			return nil, err
		}
		c.Disks = append(c.Disks, mount)
	}
	for _, text := range o.expose {
		port, err := portOf(text)
		if err != nil {
			return nil, err
		}
		c.Ports = append(c.Ports, port)
	}
	spec := &resourcev1.SandboxSpec{
		Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING, Containers: []*resourcev1.ContainerSpec{c},
	}
	for _, add := range []func(*resourcev1.SandboxSpec, *resourcev1.ContainerSpec) error{o.mounts.add, o.limits.add, o.inside.add, o.security.add, o.secrets.add, o.life.add} {
		if err := add(spec, c); err != nil {
			return nil, err
		}
	}
	if o.grace >= 0 {
		spec.TerminationGracePeriod = durationpb.New(o.grace)
	}
	if spec.Network, err = networkOf(o.network); err != nil {
		return nil, err
	}
	spec.NetworkGroup = o.networkGroup
	spec.RestartPolicy, err = restartOf(o.restart, o.detach)
	return spec, err
}

func limitsOf(o runOptions) (*resourcev1.ResourceLimits, error) {
	l := &resourcev1.ResourceLimits{}
	if o.memory != "" {
		var size config.Size
		if err := size.UnmarshalText([]byte(o.memory)); err != nil {
			return nil, exit.BadUsage("--memory: %w", err)
		}
		l.MemoryLimitBytes = new(size.Bytes())
	}
	if o.cpu != "" {
		cores, err := strconv.ParseFloat(o.cpu, 64)
		if err != nil || !(cores >= 0.01 && cores <= 1000) {
			return nil, exit.BadUsage("--cpu %q: write a number of cores from 0.01 to 1000, like 0.5", o.cpu)
		}
		l.CpuLimitMillicores = new(int64(math.Round(cores * 1000)))
	}
	if o.pids != 0 {
		l.PidsLimit = new(o.pids)
	}
	return l, nil
}

// diskOf reads name:/path or name:/path:ro.
func diskOf(text string) (*resourcev1.DiskMount, error) {
	parts := strings.Split(text, ":")
	readOnly := len(parts) == 3 && parts[2] == "ro"
	if len(parts) != 2 && !readOnly || !strings.HasPrefix(parts[1], "/") {
		return nil, exit.BadUsage("--disk %q: write NAME:/PATH or NAME:/PATH:ro", text)
	}
	return &resourcev1.DiskMount{Disk: parts[0], Path: parts[1], ReadOnly: readOnly}, nil
}

// portOf reads port, port/tcp or port/udp.
func portOf(text string) (*resourcev1.ContainerPort, error) {
	number, protocol, _ := strings.Cut(text, "/")
	port, err := strconv.ParseUint(number, 10, 16)
	known := map[string]resourcev1.PortProtocol{
		"": resourcev1.PortProtocol_PORT_PROTOCOL_TCP, "tcp": resourcev1.PortProtocol_PORT_PROTOCOL_TCP,
		"udp": resourcev1.PortProtocol_PORT_PROTOCOL_UDP,
	}
	kind, ok := known[protocol]
	if err != nil || port == 0 || !ok {
		return nil, exit.BadUsage("--expose %q: write PORT or PORT/udp, with a port from 1 to 65535", text)
	}
	return &resourcev1.ContainerPort{Port: uint32(port), Protocol: kind}, nil
}

func networkOf(word string) (resourcev1.NetworkMode, error) {
	switch word {
	case "", "sandbox":
		return resourcev1.NetworkMode_NETWORK_MODE_SANDBOX, nil
	case "host":
		return resourcev1.NetworkMode_NETWORK_MODE_HOST, nil
	}
	return 0, exit.BadUsage("--network %q: write sandbox or host", word)
}

// pullOf is the pull policy, in docker's word for the default, too.
func pullOf(word string) (resourcev1.PullPolicy, error) {
	switch word {
	case "":
		return resourcev1.PullPolicy_PULL_POLICY_UNSPECIFIED, nil
	case "if-not-present", "missing":
		return resourcev1.PullPolicy_PULL_POLICY_IF_NOT_PRESENT, nil
	case "always":
		return resourcev1.PullPolicy_PULL_POLICY_ALWAYS, nil
	case "never":
		return resourcev1.PullPolicy_PULL_POLICY_NEVER, nil
	}
	return 0, exit.BadUsage("--pull %q: write if-not-present, always or never", word)
}

// restartOf is the policy; unless it is given, what a person watches is not
// started again, and what is left alone is.
func restartOf(word string, detach bool) (resourcev1.RestartPolicy, error) {
	switch {
	case word == "always" || word == "" && detach:
		return resourcev1.RestartPolicy_RESTART_POLICY_ALWAYS, nil
	case word == "never" || word == "":
		return resourcev1.RestartPolicy_RESTART_POLICY_NEVER, nil
	case word == "on-failure":
		return resourcev1.RestartPolicy_RESTART_POLICY_ON_FAILURE, nil
	}
	return 0, exit.BadUsage("--restart %q: write always, on-failure or never", word)
}

func labelsOf(pairs []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, p := range pairs {
		key, value, ok := strings.Cut(p, "=")
		if !ok || key == "" {
			return nil, exit.BadUsage("--label %q: write KEY=VALUE", p)
		}
		labels[key] = value
	}
	return labels, nil
}

// nameFor makes a name of the image's own name and six random characters.
func nameFor(image string) string {
	base, _, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], "@")
	base, _, _ = strings.Cut(base, ":")
	base = strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(base)), "-")
	if len(base) > 40 {
		base = strings.Trim(base[:40], "-")
	}
	random := strings.ToLower(id.New())
	suffix := random[len(random)-6:]
	if base == "" {
		return "sandbox-" + suffix
	}
	return base + "-" + suffix
}
