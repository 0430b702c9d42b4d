package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
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
