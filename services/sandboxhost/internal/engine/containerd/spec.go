package containerd

import (
	"context"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/image"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

const (
	// groupAnnotation puts all containers with the same value into one shim.
	groupAnnotation = "io.containerd.runc.v2.group"
	// defaultPids bounds processes and threads where the spec does not.
	defaultPids = 4096
	// cpuPeriod is the time slice of the processor limit, in microseconds.
	cpuPeriod = 100_000
	// defaultPath is the PATH of an image that sets none.
	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// capabilities of a container: what software needs to change owners and users,
// bind low ports and confine itself further. Compared with docker's set it lacks
// MKNOD, NET_RAW, SETFCAP and AUDIT_WRITE.
func capabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE",
		"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}
}

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

// input is everything that the spec of one container is made from.
type input struct {
	id        string
	group     string // its control group
	shim      string // what its shim is shared by
	container *resourcev1.ContainerSpec
	config    image.Image
	user      specs.User
	// paths of namespaces; net is empty with the node's own network.
	net, ipc, uts string
	shm, files    string // folders on the node
	disks         map[string]string
	limitSwap     bool
}

// spec gathers the input of a container's spec and makes it.
func (e *Engine) spec(ctx context.Context, a engine.Attempt, c *container, spec *resourcev1.ContainerSpec, img image.Image) (*specs.Spec, error) {
	name := spec.GetUser()
	if name == "" {
		name = img.Config.User
	}
	user, err := e.users.find(ctx, img, name)
	if err != nil {
		return nil, err
	}
	in := input{
		id: c.id, group: c.group, shim: c.uid.Lower(), container: spec, config: img, user: user,
		ipc: e.pins.Path(c.uid, namespace.IPC), uts: e.pins.Path(c.uid, namespace.UTS),
		shm: e.pins.Shm(c.uid), files: e.files(c.uid), disks: a.Disks, limitSwap: e.cgroups.CanLimitSwap(),
	}
	if !hostNetwork(a) {
		in.net = e.pins.Path(c.uid, namespace.Net)
	}
	return build(in)
}

// build makes the OCI spec. It is pure, and shares nothing with another result.
func build(in input) (*specs.Spec, error) {
	args, err := arguments(in)
	if err != nil {
		return nil, err
	}
	mounts, err := allMounts(in)
	if err != nil {
		return nil, err
	}
	s := &specs.Spec{
		Version:     specs.Version,
		Root:        &specs.Root{Path: "rootfs"},
		Annotations: map[string]string{groupAnnotation: in.shim},
		Mounts:      mounts,
		Process: &specs.Process{
			Args: args, Env: environment(in), Cwd: workingDir(in), User: in.user,
			NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities(), Permitted: capabilities(), Effective: capabilities(),
			},
		},
		Linux: &specs.Linux{
			CgroupsPath:   in.group,
			Namespaces:    namespaces(in),
			Resources:     resources(in),
			MaskedPaths:   maskedPaths(),
			ReadonlyPaths: readonlyPaths(),
		},
	}
	// Last, for the profile depends on the capabilities. Calls of other
	// architectures are refused: filtering them too costs a third of the start.
	s.Linux.Seccomp = seccomp.DefaultProfile(s)
	if native, ok := nativeArch[runtime.GOARCH]; ok {
		s.Linux.Seccomp.Architectures = []specs.Arch{native}
	}
	return s, nil
}

var nativeArch = map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64, "riscv64": specs.ArchRISCV64}

// arguments: command replaces the image's entrypoint and drops its arguments;
// args replace the image's arguments.
func arguments(in input) ([]string, error) {
	spec, config := in.container, in.config.Config
	program, rest := spec.GetCommand(), spec.GetArgs()
	if len(program) == 0 {
		program = config.Entrypoint
		if len(rest) == 0 {
			rest = config.Cmd
		}
	}
	args := slices.Concat(program, rest)
	if len(args) == 0 {
		return nil, fault.WithReason(fault.New(fault.Invalid,
			"create container %s: neither spec nor image %s says what to run; set command", in.id, in.config.Name), "NO_COMMAND")
	}
	return args, nil
}

// environment: the image's, with the spec's in place of what has the same name.
func environment(in input) []string {
	env := slices.Clone(in.config.Config.Env)
	set := func(entry string) {
		name, _, _ := strings.Cut(entry, "=")
		i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
		if i < 0 {
			env = append(env, entry)
			return
		}
		env[i] = entry
	}
	if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		set(defaultPath)
	}
	for _, v := range in.container.GetEnv() {
		set(v.GetName() + "=" + v.GetValue())
	}
	return env
}

func workingDir(in input) string {
	for _, dir := range []string{in.container.GetWorkingDir(), in.config.Config.WorkingDir} {
		if dir != "" {
			return filepath.Join("/", dir)
		}
	}
	return "/"
}

func namespaces(in input) []specs.LinuxNamespace {
	list := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.CgroupNamespace},
		{Type: specs.IPCNamespace, Path: in.ipc},
		{Type: specs.UTSNamespace, Path: in.uts},
	}
	if in.net != "" {
		list = append(list, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: in.net})
	}
	return list
}

func resources(in input) *specs.LinuxResources {
	limits := in.container.GetLimits()
	pids := int64(defaultPids)
	if limits != nil && limits.PidsLimit != nil {
		pids = limits.GetPidsLimit()
	}
	r := &specs.LinuxResources{
		Pids:    &specs.LinuxPids{Limit: &pids},
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
	}
	if limits == nil {
		return r
	}
	if limits.MemoryLimitBytes != nil {
		memory := limits.GetMemoryLimitBytes()
		r.Memory = &specs.LinuxMemory{Limit: &memory}
		if in.limitSwap { // no swap beyond the limit
			r.Memory.Swap = &memory
		}
	}
	if limits.CpuLimitMillicores != nil {
		const thousandths = 1000
		quota, period := limits.GetCpuLimitMillicores()*cpuPeriod/thousandths, uint64(cpuPeriod)
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	return r
}
