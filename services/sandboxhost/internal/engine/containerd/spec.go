package containerd

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

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
	// defaultPath is the PATH of an image that sets none.
	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// terminalWidth and terminalHeight are the size of a terminal that nobody looks at.
	terminalWidth, terminalHeight = 80, 24
)

// input is everything that the spec of one container is made from.
type input struct {
	id        string
	group     string // its control group
	shim      string // what its shim is shared by
	sandbox   *resourcev1.SandboxSpec
	container *resourcev1.ContainerSpec
	config    image.Image
	user      specs.User
	fields    map[resourcev1.SandboxField]string // what the sandbox knows of itself
	// paths of namespaces; net is empty with the node's own network, users without a
	// user namespace, in which the ids on the node begin with firstID.
	net, ipc, uts, users string
	firstID              uint32
	places               places // on the node
	disks                map[string]string
	devices              []specs.LinuxDevice // that it asks for; all of the node if it is privileged
	able                 abilities
}

// places are where on the node lies what a container mounts.
type places struct {
	shm, etc string // shared by its sandbox: memory, and files of names
	scratch  string // the folder of scratch volumes
	files    string // the folder of its config files, by their number in the spec
	binds    string // the folder of its host mounts, by their number in the spec
	init     string // the program staddle-init
	secrets  string // the folder of what it sees of secrets
}

// spec gathers the input of a container's spec and makes it.
func (e *Engine) spec(ctx context.Context, a engine.Attempt, c *container, spec *resourcev1.ContainerSpec, img image.Image) (*specs.Spec, error) {
	user, err := e.userOf(ctx, spec, img)
	if err != nil {
		return nil, err
	}
	in := input{
		id: c.id, group: c.group, shim: c.uid.Lower(), sandbox: a.Wish.GetSpec(), container: spec, config: img, user: user,
		ipc: e.pins.Path(c.uid, namespace.IPC), uts: e.pins.Path(c.uid, namespace.UTS),
		places: e.places(c), disks: a.Disks, able: e.able(),
	}
	if !hostNetwork(a) {
		in.net = e.pins.Path(c.uid, namespace.Net)
	}
	if in.sandbox.GetUserNamespace() {
		in.users = e.pins.Path(c.uid, namespace.User)
		in.firstID, _ = e.ids.First(c.uid)
	}
	if in.fields, err = e.fields(a, c); err != nil {
		return nil, err
	}
	if in.devices, err = devicesOf(c.id, spec.GetSecurity()); err != nil {
		return nil, err
	}
	for _, what := range in.lacks() {
		e.tellOnce(what)
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
	if err := errors.Join(in.checkUser(), in.checkMapped()); err != nil {
		return nil, err
	}
	s := &specs.Spec{
		Version:     specs.Version,
		Root:        &specs.Root{Path: "rootfs", Readonly: in.readOnlyRoot()},
		Annotations: map[string]string{groupAnnotation: in.shim},
		Mounts:      mounts,
		Process: &specs.Process{
			Args: underInit(in.container, args), Env: environment(in), Cwd: workingDir(in), User: in.user, Terminal: in.container.GetTty(),
			Rlimits: rlimits(in), OOMScoreAdj: oomScore(in),
		},
		Linux: &specs.Linux{
			CgroupsPath: in.group,
			Namespaces:  namespaces(in),
			Resources:   resources(in),
			Devices:     in.devices,
			Sysctl:      sysctls(in),
			UIDMappings: in.mapping(),
			GIDMappings: in.mapping(),
		},
	}
	if s.Process.Terminal {
		s.Process.ConsoleSize = &specs.Box{Width: terminalWidth, Height: terminalHeight}
	}
	confine(s, in)
	return s, nil
}

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
	if in.container.GetTty() && !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "TERM=") }) {
		set("TERM=xterm")
	}
	for _, v := range in.container.GetEnv() {
		if v.GetSecret() != nil { // staddle-init sets it
			continue
		}
		value := v.GetValue()
		if from := v.GetFrom(); from != resourcev1.SandboxField_SANDBOX_FIELD_UNSPECIFIED {
			value = in.fields[from]
		}
		set(v.GetName() + "=" + value)
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
	if in.users != "" {
		list = append(list, specs.LinuxNamespace{Type: specs.UserNamespace, Path: in.users})
	}
	if in.net != "" {
		list = append(list, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: in.net})
	}
	return list
}
