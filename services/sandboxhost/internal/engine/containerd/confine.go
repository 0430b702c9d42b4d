package containerd

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/permit"
)

// nativeArch is the filter's word for the machine's own instructions.
var nativeArch = map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64, "riscv64": specs.ArchRISCV64}

// maskedPaths and readonlyPaths keep what belongs to the machine out of reach.
func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
}

func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// confine takes from a container what its security spec does not give it.
func confine(s *specs.Spec, in input) {
	security := in.container.GetSecurity()
	caps := capabilities(in)
	s.Process.Capabilities = &specs.LinuxCapabilities{
		Bounding: caps, Permitted: slices.Clone(caps), Effective: slices.Clone(caps),
	}
	if security.GetPrivileged() {
		return
	}
	s.Process.NoNewPrivileges = true
	s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = maskedPaths(), readonlyPaths()
	if security.GetApparmor() != resourcev1.Confinement_CONFINEMENT_UNCONFINED {
		s.Process.ApparmorProfile = in.able.apparmor
	}
	if security.GetSeccomp() == resourcev1.Confinement_CONFINEMENT_UNCONFINED {
		return
	}
	// Last, for the profile depends on the capabilities. Calls of other
	// architectures are refused: filtering them too costs a third of the start.
	s.Linux.Seccomp = seccomp.DefaultProfile(s)
	if native, ok := nativeArch[runtime.GOARCH]; ok {
		s.Linux.Seccomp.Architectures = []specs.Arch{native}
	}
}

// capabilities of a container: the profile's, without those dropped, with those
// added.
func capabilities(in input) []string {
	security := in.container.GetSecurity()
	var caps []string
	switch {
	case security.GetPrivileged():
		caps = slices.Clone(in.able.capabilities)
	case !in.restricted():
		for _, name := range permit.DefaultCapabilities() {
			caps = append(caps, "CAP_"+name)
		}
	}
	for _, name := range security.GetDropCapabilities() {
		caps = slices.DeleteFunc(caps, func(c string) bool { return name == "ALL" || c == "CAP_"+name })
	}
	for _, name := range security.GetAddCapabilities() {
		if !slices.Contains(caps, "CAP_"+name) {
			caps = append(caps, "CAP_"+name)
		}
	}
	return caps
}

func (in input) restricted() bool {
	return in.container.GetSecurity().GetProfile() == resourcev1.SecurityProfile_SECURITY_PROFILE_RESTRICTED
}

func (in input) readOnlyRoot() bool {
	return in.restricted() || in.container.GetSecurity().GetReadOnlyRoot()
}

// checkUser refuses root where the spec does.
func (in input) checkUser() error {
	if in.user.UID != 0 || !in.restricted() && !in.container.GetSecurity().GetRunAsNonRoot() {
		return nil
	}
	return fault.WithReason(fault.New(fault.Invalid,
		"create container %s: its security allows no root, and it would run as uid 0; set user to another", in.id), "RUNS_AS_ROOT")
}

// deviceRules let a container use the devices that it asks for, beside those that
// the runtime gives to all.
func deviceRules(in input) []specs.LinuxDeviceCgroup {
	security := in.container.GetSecurity()
	if security.GetPrivileged() {
		return []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	}
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for i, d := range in.devices {
		access := "rw"
		if security.GetDevices()[i].GetReadOnly() {
			access = "r"
		}
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: &d.Major, Minor: &d.Minor, Access: access})
	}
	return rules
}

// devicesOf looks up the devices that a container asks for, in the order of its
// spec; all of the node's if it is privileged.
func devicesOf(containerID string, security *resourcev1.SecuritySpec) ([]specs.LinuxDevice, error) {
	if security.GetPrivileged() {
		all, err := oci.HostDevices()
		if err != nil {
			return nil, fmt.Errorf("list devices for container %s: %w", containerID, err)
		}
		return all, nil
	}
	var list []specs.LinuxDevice
	for _, asked := range security.GetDevices() {
		d, err := oci.DeviceFromPath(asked.GetPath())
		if err != nil {
			return nil, fault.WithReason(fault.New(fault.NotFound,
				"create container %s: there is no device %s on this node: %w", containerID, asked.GetPath(), err), "DEVICE_MISSING")
		}
		list = append(list, *d)
	}
	return list, nil
}
