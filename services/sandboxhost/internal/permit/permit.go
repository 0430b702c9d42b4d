// Package permit decides what a sandbox may ask of its node: the rules of
// node.yaml over the spec of a sandbox, as one pure function.
//
// Everything that reaches beyond the sandbox is refused unless the node allows it,
// and the refusal names the key to set. It must look at nothing but its arguments:
// what a path really is, behind symbolic links, is found out when it is opened. In
// the trail it stands before the host accepts a wish, and again before the engine
// begins an attempt, for node.yaml may have changed in between.
package permit

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Rules are what a node allows. The zero value allows nothing beyond a sandbox.
type Rules struct {
	// HostNetwork allows the node's own network.
	HostNetwork bool
	// SandboxNetwork is true when there is a network for sandboxes.
	SandboxNetwork bool
	// Privileged allows privileged containers and a negative OOM score.
	Privileged bool
	// Unconfined allows to do without seccomp or AppArmor.
	Unconfined bool
	// HostPaths are folders and files that may be mounted, with what is in them.
	HostPaths []string
	// Devices are paths of devices; one that ends with "/" means all below it.
	Devices []string
	// Capabilities are names without "CAP_" that may be added.
	Capabilities []string
	// Sysctls are names that may be set; one that ends with "*" means all that begin so.
	Sysctls []string
	// UserNamespaces is true when the node has ids for user namespaces.
	UserNamespaces bool
}

// freeCapabilities are those of docker's default set that ours leaves out: common
// software needs them, and within a sandbox they do no harm to the node.
func freeCapabilities() []string { return []string{"AUDIT_WRITE", "MKNOD", "NET_RAW", "SETFCAP"} }

// DefaultCapabilities are those of a container, without "CAP_": what software
// needs to change owners and users, bind low ports and confine itself further.
// Compared with docker's set it lacks AUDIT_WRITE, MKNOD, NET_RAW and SETFCAP.
func DefaultCapabilities() []string {
	return []string{
		"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
	}
}

// freeSysctls belong to a namespace and bound nothing but the sandbox itself.
func freeSysctls() []string {
	return []string{
		"fs.mqueue.*", "kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax",
		"kernel.shmmni", "kernel.shm_rmid_forced", "net.core.somaxconn", "net.ipv4.ip_local_port_range",
		"net.ipv4.ip_local_reserved_ports", "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range",
		"net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
		"net.ipv4.tcp_max_syn_backlog", "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
	}
}

// problem is one thing that is refused.
type problem struct {
	kind         fault.Kind
	reason, text string
}

// Check refuses a spec that asks for what the node does not allow. All that is
// refused is told at once; kind and reason are those of the first. The kind is
// fault.Denied, or fault.Invalid for what no node could allow.
func (r Rules) Check(uid string, spec *resourcev1.SandboxSpec) error {
	all := r.problems(spec)
	if len(all) == 0 {
		return nil
	}
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.text
	}
	return fault.WithReason(fault.New(all[0].kind, "sandbox %s: %s", uid, strings.Join(texts, "; ")), all[0].reason)
}

func (r Rules) problems(spec *resourcev1.SandboxSpec) []problem {
	var all []problem
	onHost := spec.GetNetwork() == resourcev1.NetworkMode_NETWORK_MODE_HOST
	switch {
	case onHost && !r.HostNetwork:
		all = append(all, problem{
			fault.Denied, "HOST_NETWORK_NOT_ALLOWED",
			"asks for the node's network, set allow_host_network in node.yaml to allow it",
		})
	case !onHost && !r.SandboxNetwork:
		all = append(all, problem{
			fault.Denied, "SANDBOX_NETWORK_DISABLED",
			"asks for a network of its own, node.yaml has network.disable set",
		})
	}
	if spec.GetUserNamespace() && !r.UserNamespaces {
		all = append(all, denied("USER_NAMESPACES_DISABLED", "", "asks for a user namespace", "set user_namespaces.ranges to more than 0"))
	}
	if spec.GetUserNamespace() && slices.ContainsFunc(spec.GetContainers(), func(c *resourcev1.ContainerSpec) bool { return c.GetSecurity().GetPrivileged() }) {
		all = append(all, problem{
			fault.Invalid, "PRIVILEGED_IN_USER_NAMESPACE", "has a privileged container in a user namespace, which would take its privilege away; leave out one of them",
		})
	}
	for _, s := range spec.GetSysctls() {
		switch {
		case onHost && strings.HasPrefix(s.GetName(), "net."):
			all = append(all, problem{
				fault.Invalid, "SYSCTL_NEEDS_NETWORK",
				fmt.Sprintf("sets sysctl %s, which belongs to a network of its own, on the node's network", s.GetName()),
			})
		case !slices.ContainsFunc(slices.Concat(freeSysctls(), r.Sysctls), func(rule string) bool { return begins(rule, "*", s.GetName()) }):
			all = append(all, denied("SYSCTL_NOT_ALLOWED", "", "sets sysctl "+s.GetName(), "list it in allow_sysctls"))
		}
	}
	for _, c := range spec.GetContainers() {
		all = append(all, r.container(c)...)
	}
	return all
}

// container lists what one container may not ask for.
func (r Rules) container(c *resourcev1.ContainerSpec) []problem {
	var all []problem
	refuse := func(reason, what, remedy string) { all = append(all, denied(reason, c.GetName(), what, remedy)) }
	for _, m := range c.GetHostMounts() {
		if _, ok := r.HostRoot(m.GetHostPath()); !ok {
			refuse("HOST_PATH_NOT_ALLOWED", "mounts "+m.GetHostPath()+" of the node", "list it or a folder above it in allow_host_paths")
		}
	}
	if c.GetOomScoreAdjust() < 0 && !r.Privileged {
		refuse("OOM_SCORE_NOT_ALLOWED", "asks to outlive others when memory is short", "set allow_privileged")
	}
	s := c.GetSecurity()
	if s.GetPrivileged() && !r.Privileged {
		refuse("PRIVILEGED_NOT_ALLOWED", "asks to be privileged", "set allow_privileged")
	}
	const none = resourcev1.Confinement_CONFINEMENT_UNCONFINED
	if (s.GetSeccomp() == none || s.GetApparmor() == none) && !r.Unconfined && !s.GetPrivileged() {
		refuse("UNCONFINED_NOT_ALLOWED", "asks to run without seccomp or AppArmor", "set allow_unconfined")
	}
	for _, name := range s.GetAddCapabilities() {
		if !slices.Contains(slices.Concat(DefaultCapabilities(), freeCapabilities(), r.Capabilities), name) && !r.Privileged {
			refuse("CAPABILITY_NOT_ALLOWED", "adds the capability "+name, "list it in allow_capabilities")
		}
	}
	for _, d := range s.GetDevices() {
		if !slices.ContainsFunc(r.Devices, func(rule string) bool { return begins(rule, "/", d.GetPath()) }) && !r.Privileged {
			refuse("DEVICE_NOT_ALLOWED", "uses the device "+d.GetPath(), "list it in allow_devices")
		}
	}
	return all
}

func denied(reason, container, what, remedy string) problem {
	if container != "" {
		what = "container " + container + " " + what
	}
	return problem{fault.Denied, reason, what + ", " + remedy + " in node.yaml to allow it"}
}

// HostRoot is the allowed folder or file that a path of the node lies in, by its
// name alone; the deepest if there are several.
func (r Rules) HostRoot(path string) (root string, ok bool) {
	for _, allowed := range r.HostPaths {
		rel, err := filepath.Rel(allowed, path)
		if err == nil && filepath.IsLocal(rel) && (!ok || len(allowed) > len(root)) {
			root, ok = allowed, true
		}
	}
	return root, ok
}

// begins says whether a rule covers a name: the same, or, if the rule ends with
// the mark, all that begin as it does. A "*" is no part of the beginning, a "/" is.
func begins(rule, mark, name string) bool {
	if !strings.HasSuffix(rule, mark) {
		return rule == name
	}
	start := strings.TrimSuffix(rule, "*")
	return strings.HasPrefix(name, start) && len(name) > len(start)
}
