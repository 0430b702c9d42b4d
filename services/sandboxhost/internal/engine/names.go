package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"syscall"

	"github.com/moby/sys/signal"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// ShimGroup is the control group of the shims, below the parent of all workloads.
const ShimGroup = "shims"

// ContainerID is the id of a container at the runtime: "<uid>-<name>-<attempt>"
// in lower case. A new attempt has new ids, so that one that is stuck never
// blocks the next.
func ContainerID(uid id.Sandbox, container string, attempt uint64) string {
	return uid.Lower() + "-" + container + "-" + strconv.FormatUint(attempt, 10)
}

// SpecHash is a hash over a spec without its desired state: two specs with the
// same hash want the same containers. It is stable between versions that know
// the same fields.
func SpecHash(spec *resourcev1.SandboxSpec) (string, error) {
	spec = proto.CloneOf(spec)
	spec.Desired = resourcev1.DesiredState_DESIRED_STATE_UNSPECIFIED
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("hash sandbox spec: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16]), nil
}

// SameContainers says whether two specs differ at most in what can be changed in
// place, while the containers go on.
func SameContainers(a, b *resourcev1.SandboxSpec) bool {
	return proto.Equal(withoutInPlace(a), withoutInPlace(b))
}

func withoutInPlace(spec *resourcev1.SandboxSpec) *resourcev1.SandboxSpec {
	spec = proto.CloneOf(spec)
	spec.Desired = resourcev1.DesiredState_DESIRED_STATE_UNSPECIFIED
	spec.RestartPolicy = resourcev1.RestartPolicy_RESTART_POLICY_UNSPECIFIED
	spec.RestartBackoff, spec.TerminationGracePeriod = nil, nil
	spec.Disconnect, spec.NodeSelector = nil, nil
	for _, c := range spec.GetContainers() {
		c.Limits, c.Ports = nil, nil
		c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = nil, nil, nil
	}
	return spec
}

// Made is the part of the spec that a container was made for, nil if its note
// cannot be read.
func (c Container) Made() *resourcev1.ContainerSpec {
	for _, spec := range c.Note.GetWish().GetSpec().GetContainers() {
		if spec.GetName() == c.Note.GetContainer() {
			return spec
		}
	}
	return nil
}

// ChooseStopSignal is the signal that asks a container to end: the one of its spec,
// else the one that its image names, else SIGTERM. One that nobody knows counts as
// none.
func ChooseStopSignal(spec *resourcev1.ContainerSpec, image string) syscall.Signal {
	for _, name := range []string{spec.GetStopSignal(), image} {
		if s, err := signal.ParseSignal(name); name != "" && err == nil {
			return s
		}
	}
	return syscall.SIGTERM
}

// StopSignal is what asks the container of a note to end.
func StopSignal(note *sandboxhostv1.ContainerNote) syscall.Signal {
	if s := note.GetStopSignal(); s != 0 {
		return syscall.Signal(s)
	}
	return syscall.SIGTERM
}
