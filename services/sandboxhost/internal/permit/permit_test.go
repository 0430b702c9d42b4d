package permit

import (
	"errors"
	"strings"
	"testing"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

const (
	unconfined = resourcev1.Confinement_CONFINEMENT_UNCONFINED
	onHost     = resourcev1.NetworkMode_NETWORK_MODE_HOST
)

func with(c *resourcev1.ContainerSpec) *resourcev1.SandboxSpec {
	c.Name = "main"
	return &resourcev1.SandboxSpec{Containers: []*resourcev1.ContainerSpec{c}}
}

func secured(s *resourcev1.SecuritySpec) *resourcev1.SandboxSpec {
	return with(&resourcev1.ContainerSpec{Security: s})
}

func hostPath(path string) *resourcev1.SandboxSpec {
	return with(&resourcev1.ContainerSpec{HostMounts: []*resourcev1.HostMount{{HostPath: path, Path: "/data"}}})
}

func device(path string) *resourcev1.SandboxSpec {
	return secured(&resourcev1.SecuritySpec{Devices: []*resourcev1.DeviceAccess{{Path: path}}})
}

func sysctl(name string) *resourcev1.SandboxSpec {
	return &resourcev1.SandboxSpec{Sysctls: []*resourcev1.Sysctl{{Name: name, Value: "1"}}}
}

// Each rule refuses without its key in node.yaml, names the key, and lets it pass
// with it.
func TestRules_RefuseUntilAllowed(t *testing.T) {
	score := int32(-1)
	tests := []struct {
		name, reason, key string
		spec              *resourcev1.SandboxSpec
		allow             Rules
	}{
		{"the node's network", "HOST_NETWORK_NOT_ALLOWED", "allow_host_network", &resourcev1.SandboxSpec{Network: onHost}, Rules{HostNetwork: true}},
		{"a folder in an allowed one", "HOST_PATH_NOT_ALLOWED", "allow_host_paths", hostPath("/srv/data/a"), Rules{HostPaths: []string{"/srv/data"}}},
		{"an allowed file", "HOST_PATH_NOT_ALLOWED", "allow_host_paths", hostPath("/etc/motd"), Rules{HostPaths: []string{"/etc/motd"}}},
		{"everything", "HOST_PATH_NOT_ALLOWED", "allow_host_paths", hostPath("/etc"), Rules{HostPaths: []string{"/"}}},
		{"privileged", "PRIVILEGED_NOT_ALLOWED", "allow_privileged", secured(&resourcev1.SecuritySpec{Privileged: true}), Rules{Privileged: true}},
		{"no seccomp", "UNCONFINED_NOT_ALLOWED", "allow_unconfined", secured(&resourcev1.SecuritySpec{Seccomp: unconfined}), Rules{Unconfined: true}},
		{"no AppArmor", "UNCONFINED_NOT_ALLOWED", "allow_unconfined", secured(&resourcev1.SecuritySpec{Apparmor: unconfined}), Rules{Unconfined: true}},
		{"a capability", "CAPABILITY_NOT_ALLOWED", "allow_capabilities", secured(&resourcev1.SecuritySpec{AddCapabilities: []string{"NET_ADMIN"}}), Rules{Capabilities: []string{"NET_ADMIN"}}},
		{"a device", "DEVICE_NOT_ALLOWED", "allow_devices", device("/dev/fuse"), Rules{Devices: []string{"/dev/fuse"}}},
		{"a folder of devices", "DEVICE_NOT_ALLOWED", "allow_devices", device("/dev/dri/card0"), Rules{Devices: []string{"/dev/dri/"}}},
		{"a sysctl", "SYSCTL_NOT_ALLOWED", "allow_sysctls", sysctl("net.ipv4.ip_forward"), Rules{Sysctls: []string{"net.ipv4.ip_forward"}}},
		{"sysctls by their beginning", "SYSCTL_NOT_ALLOWED", "allow_sysctls", sysctl("net.ipv4.conf.eth0.rp_filter"), Rules{Sysctls: []string{"net.ipv4.conf.*"}}},
		{"a user namespace", "USER_NAMESPACES_DISABLED", "user_namespaces.ranges", &resourcev1.SandboxSpec{UserNamespace: true}, Rules{UserNamespaces: true}},
		{"to outlive others", "OOM_SCORE_NOT_ALLOWED", "allow_privileged", with(&resourcev1.ContainerSpec{OomScoreAdjust: &score}), Rules{Privileged: true}},
	}
	for _, tt := range tests {
		err := Rules{SandboxNetwork: true}.Check("U", tt.spec)
		if !errors.Is(err, fault.Denied) || fault.Reason(err) != tt.reason || !strings.Contains(err.Error(), tt.key) {
			t.Errorf("%s: got %v (%s), want denied with %s and the key %s", tt.name, err, fault.Reason(err), tt.reason, tt.key)
		}
		tt.allow.SandboxNetwork = true
		if err := tt.allow.Check("U", tt.spec); err != nil {
			t.Errorf("%s, allowed: got %v", tt.name, err)
		}
	}
}

func TestRules_Neighbours(t *testing.T) {
	rules := Rules{
		SandboxNetwork: true, HostNetwork: true, HostPaths: []string{"/srv/data"}, Devices: []string{"/dev/dri/", "/dev/fuse"},
		Sysctls: []string{"net.ipv4.conf.*"},
	}
	refused := map[string]*resourcev1.SandboxSpec{
		"a name that only begins so":     hostPath("/srv/database"),
		"the folder above":               hostPath("/srv"),
		"a way out of it":                hostPath("/srv/data/../other"),
		"a device that only begins so":   device("/dev/fuse2"),
		"the folder of devices itself":   device("/dev/dri"),
		"a sysctl above":                 sysctl("net.ipv4.conf."),
		"a sysctl that only begins so":   sysctl("net.core.somaxconns"),
		"the same text in another place": sysctl("kernel.net.ipv4.conf.x"),
	}
	for name, spec := range refused {
		if err := rules.Check("U", spec); !errors.Is(err, fault.Denied) {
			t.Errorf("%s: got %v, want denied", name, err)
		}
	}
	free := map[string]*resourcev1.SandboxSpec{
		"nothing asked":             with(&resourcev1.ContainerSpec{}),
		"what docker gives":         secured(&resourcev1.SecuritySpec{AddCapabilities: freeCapabilities()}),
		"a harmless sysctl":         sysctl("net.core.somaxconn"),
		"message queues":            sysctl("fs.mqueue.msg_max"),
		"the restricted profile":    secured(&resourcev1.SecuritySpec{Profile: resourcev1.SecurityProfile_SECURITY_PROFILE_RESTRICTED}),
		"to be ended before others": with(&resourcev1.ContainerSpec{OomScoreAdjust: new(int32(500))}),
	}
	for name, spec := range free {
		if err := rules.Check("U", spec); err != nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestRules_TellAllAtOnce(t *testing.T) {
	spec := secured(&resourcev1.SecuritySpec{Privileged: true, AddCapabilities: []string{"SYS_ADMIN"}})
	spec.Network = onHost
	spec.Sysctls = sysctl("net.core.somaxconn").Sysctls
	spec.Containers[0].HostMounts = hostPath("/etc").GetContainers()[0].GetHostMounts()
	err := Rules{}.Check("U", spec)
	for _, want := range []string{"allow_host_network", "somaxconn", "/etc", "allow_privileged", "SYS_ADMIN"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to tell of %s", err, want)
		}
	}
	if err := (Rules{HostNetwork: true}).Check("U", &resourcev1.SandboxSpec{Network: onHost, Sysctls: sysctl("net.core.somaxconn").Sysctls}); !errors.Is(err, fault.Invalid) {
		t.Errorf("a sysctl of a network on the node's: got %v, want invalid", err)
	}
	if err := (Rules{}).Check("U", &resourcev1.SandboxSpec{}); fault.Reason(err) != "SANDBOX_NETWORK_DISABLED" {
		t.Errorf("no network of its own: got %v", err)
	}
}

func TestRules_HostRootIsTheDeepest(t *testing.T) {
	r := Rules{HostPaths: []string{"/", "/srv/data", "/srv"}}
	if root, ok := r.HostRoot("/srv/data/x"); !ok || root != "/srv/data" {
		t.Errorf("got %q, %t, want /srv/data", root, ok)
	}
}

// No node can give privilege and take it away at once.
func TestRules_PrivilegeInAUserNamespace(t *testing.T) {
	spec := secured(&resourcev1.SecuritySpec{Privileged: true})
	spec.UserNamespace = true
	err := Rules{SandboxNetwork: true, UserNamespaces: true, Privileged: true}.Check("U", spec)
	if !errors.Is(err, fault.Invalid) || fault.Reason(err) != "PRIVILEGED_IN_USER_NAMESPACE" {
		t.Errorf("got %v, want Invalid", err)
	}
}
