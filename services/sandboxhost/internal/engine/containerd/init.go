package containerd

import (
	"os"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/initproc"
)

// Where a container finds its first process and what that sets in the environment: in
// the folder of devices, which is made anew with each container, so that nothing of
// it is seen in the image.
const (
	initPath = "/dev/.staddle/init"
	envPath  = "/dev/.staddle/env"
)

// beginsWithInit says whether a container begins with staddle-init.
func beginsWithInit(spec *resourcev1.ContainerSpec) bool {
	return spec.GetInitProcess() || hasSecretEnv(spec)
}

// hasSecretEnv says whether a part of its environment is from secrets.
func hasSecretEnv(spec *resourcev1.ContainerSpec) bool {
	return slices.ContainsFunc(spec.GetEnv(), func(v *resourcev1.EnvironmentVariable) bool { return v.GetSecret() != nil })
}

// checkInit says what to do where the program is missing.
func (e *Engine) checkInit(spec *resourcev1.ContainerSpec) error {
	if !beginsWithInit(spec) {
		return nil
	}
	if _, err := os.Stat(e.cfg.Init); err != nil {
		return fault.WithReason(fault.New(fault.Unavailable,
			"find the first process of the container: %w; put staddle-init beside staddle-node", err), "INIT_NOT_INSTALLED")
	}
	return nil
}

func initMounts(in input) []specs.Mount {
	var list []specs.Mount
	if beginsWithInit(in.container) {
		list = append(list, bound(in.places.init, initPath, true))
	}
	if hasSecretEnv(in.container) {
		list = append(list, secretly(in.places.secretEnv(), envPath))
	}
	return list
}

// underInit puts the first process before the arguments of a container that has one.
func underInit(spec *resourcev1.ContainerSpec, args []string) []string {
	switch {
	case hasSecretEnv(spec):
		return slices.Concat([]string{initPath, initproc.FlagEnv, envPath, initproc.End}, args)
	case beginsWithInit(spec):
		return slices.Concat([]string{initPath, initproc.End}, args)
	}
	return args
}

// withSecretEnv gives a command beside the main process the environment that this has.
func withSecretEnv(spec *resourcev1.ContainerSpec, args []string) []string {
	if !hasSecretEnv(spec) {
		return args
	}
	return slices.Concat([]string{initPath, initproc.FlagEnv, envPath, initproc.FlagExec, initproc.End}, args)
}

// neverBegun tells a command that was not begun, of which staddle-init says why, from
// one that ended with the same code.
func neverBegun(spec *resourcev1.ContainerSpec, code uint32, output string) error {
	if !hasSecretEnv(spec) || !initproc.Said(output) {
		return nil
	}
	switch code {
	case initproc.ExitNotFound:
		return fault.WithReason(fault.New(fault.NotFound, "the command is not in the image: %s", output), "COMMAND_NOT_FOUND")
	case initproc.ExitNotExecutable:
		return fault.WithReason(fault.New(fault.Invalid, "the command cannot be executed: %s", output), "COMMAND_NOT_EXECUTABLE")
	}
	return nil
}
