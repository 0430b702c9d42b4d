package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"staddle.internal/kit/id"
)

// shimProgram is the program of a container's shim.
const shimProgram = "containerd-shim-runc-v2"

// IsShim says whether a command line is that of a shim for one containerd and
// namespace.
func IsShim(args []string, address, namespace string) bool {
	return len(args) > 0 && filepath.Base(args[0]) == shimProgram &&
		flagOf(args, "address") == address && flagOf(args, "namespace") == namespace
}

// ShimOwner is the sandbox for whose container a shim was started.
func ShimOwner(args []string) (id.Sandbox, bool) { return SandboxOf(flagOf(args, "id")) }

// Bundle is the folder that containerd keeps of a container, found beside the one in which
// a shim works; empty if there is none, or the shim has ended.
func Bundle(shim int, containerID string) string {
	dir, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(shim), "cwd"))
	if err != nil {
		return ""
	}
	bundle := filepath.Join(filepath.Dir(strings.TrimSuffix(dir, " (deleted)")), containerID)
	if _, err := os.Stat(bundle); err != nil {
		return ""
	}
	return bundle
}

func flagOf(args []string, name string) string {
	at := slices.IndexFunc(args, func(a string) bool { return strings.TrimLeft(a, "-") == name && a != name })
	if at < 0 || at+1 >= len(args) {
		return ""
	}
	return args[at+1]
}

// SandboxOf reads the uid at the beginning of a container's id.
func SandboxOf(containerID string) (id.Sandbox, bool) {
	first, _, _ := strings.Cut(containerID, "-")
	uid, err := id.ParseSandbox(strings.ToUpper(first))
	return uid, err == nil && first == uid.Lower()
}
