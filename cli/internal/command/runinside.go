package command

import (
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/exit"
)

// limitOptions are the flags of "run" about what the container may use, beside the
// common ones.
type limitOptions struct {
	swap                string
	cpuShares, ioWeight int64
	oomScore            oomScore
	ulimits             []string
}

// oomScore is a number that may be given or not; 0 means something.
type oomScore struct{ given *int32 }

// String is what was given.
func (s *oomScore) String() string {
	if s.given == nil {
		return ""
	}
	return strconv.Itoa(int(*s.given))
}

// Set reads the number.
func (s *oomScore) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return exit.BadUsage("%q is no number from -1000 to 1000", text)
	}
	s.given = new(int32(n))
	return nil
}

// Type is the word for it in help texts.
func (s *oomScore) Type() string { return "SCORE" }

func limitFlags(f *pflag.FlagSet, o *limitOptions) {
	f.StringVar(&o.swap, "swap", "", "swap beyond the limit of memory, a `SIZE` like 64MiB (default: none)")
	f.Int64Var(&o.cpuShares, "cpu-shares", 0, "`SHARES` of the CPU against others when there is too little (default 1024)")
	f.Int64Var(&o.ioWeight, "io-weight", 0, "`WEIGHT` of its use of disks against others, 10 to 1000")
	f.Var(&o.oomScore, "oom-score-adj", "how readily it is ended when the node is out of memory, a `SCORE` from -1000 to 1000 (first)")
	f.StringArrayVar(&o.ulimits, "ulimit", nil, "limit of its processes, as `NAME=SOFT[:HARD]`, like nofile=4096:8192; -1 means none")
}

// add puts the limits into a spec.
func (o limitOptions) add(_ *resourcev1.SandboxSpec, c *resourcev1.ContainerSpec) error {
	if o.swap != "" {
		swap, err := sizeOf("--swap", o.swap)
		if err != nil {
			return err
		}
		c.Limits.SwapLimitBytes = &swap
	}
	if o.cpuShares != 0 {
		c.Limits.CpuShares = &o.cpuShares
	}
	if o.ioWeight != 0 {
		c.Limits.IoWeight = &o.ioWeight
	}
	c.OomScoreAdjust = o.oomScore.given
	for _, text := range o.ulimits {
		u, err := ulimitOf(text)
		if err != nil {
			return err
		}
		c.Ulimits = append(c.Ulimits, u)
	}
	return nil
}

// ulimitOf reads NAME=SOFT or NAME=SOFT:HARD.
func ulimitOf(text string) (*resourcev1.Ulimit, error) {
	name, values, ok := strings.Cut(text, "=")
	soft, hard, both := strings.Cut(values, ":")
	u := &resourcev1.Ulimit{Name: name}
	var err error
	if u.Soft, err = strconv.ParseInt(soft, 10, 64); err == nil && both {
		var most int64
		most, err = strconv.ParseInt(hard, 10, 64)
		u.Hard = &most
	}
	if !ok || err != nil {
		return nil, exit.BadUsage("--ulimit %q: write NAME=SOFT or NAME=SOFT:HARD, like nofile=4096:8192", text)
	}
	return u, nil
}

// insideOptions are the flags of "run" about what the container finds inside.
type insideOptions struct {
	hostname        string
	hosts, groups   []string
	sysctls, fields []string
	published       []string
	tty, stdin      bool
	userNamespace   bool
	logMode         string
}

func insideFlags(f *pflag.FlagSet, o *insideOptions) {
	f.StringVar(&o.hostname, "hostname", "", "host `NAME` inside (default: the name of the sandbox)")
	f.StringArrayVar(&o.hosts, "add-host", nil, "line of /etc/hosts, as `NAME:ADDRESS`")
	f.StringArrayVarP(&o.published, "publish", "p", nil, "port of the node that leads to one of the sandbox, as `[ADDRESS:]HOSTPORT:PORT[/udp]`")
	f.StringArrayVar(&o.groups, "group-add", nil, "further `GROUP` of the user: a number, or a name that the image knows")
	f.StringArrayVar(&o.sysctls, "sysctl", nil, "parameter of the kernel in its namespaces, as `NAME=VALUE`")
	f.StringArrayVar(&o.fields, "env-from", nil, "`NAME=FIELD` in the environment: name, uid, node, attempt, address, hostname or container")
	f.BoolVar(&o.userNamespace, "user-namespace", false, "give it users and groups of its own: root inside is nobody on the node")
	f.StringVar(&o.logMode, "log-mode", "", "what becomes of its output while the disk takes none, `MODE`: blocking or non-blocking")
	f.BoolVarP(&o.tty, "tty", "t", false, "give it a terminal")
	f.BoolVarP(&o.stdin, "stdin", "i", false, "keep its standard input open; in the foreground yours is passed on, else see staddle attach")
}

// add puts it into a spec.
func (o insideOptions) add(spec *resourcev1.SandboxSpec, c *resourcev1.ContainerSpec) error {
	spec.Hostname, c.Groups, c.Tty, c.Stdin = o.hostname, o.groups, o.tty, o.stdin
	spec.UserNamespace = o.userNamespace
	if o.logMode != "" {
		number := resourcev1.LogMode_value["LOG_MODE_"+strings.ToUpper(strings.ReplaceAll(o.logMode, "-", "_"))]
		if number == 0 {
			return exit.BadUsage("--log-mode %q: write blocking or non-blocking", o.logMode)
		}
		c.LogMode = resourcev1.LogMode(number)
	}
	if err := publishPorts(spec, o.published); err != nil {
		return err
	}
	for _, text := range o.hosts {
		name, address, ok := strings.Cut(text, ":")
		if !ok || name == "" || address == "" {
			return exit.BadUsage("--add-host %q: write NAME:ADDRESS", text)
		}
		spec.Hosts = append(spec.Hosts, &resourcev1.HostEntry{Address: strings.Trim(address, "[]"), Names: []string{name}})
	}
	for _, text := range o.sysctls {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return exit.BadUsage("--sysctl %q: write NAME=VALUE", text)
		}
		spec.Sysctls = append(spec.Sysctls, &resourcev1.Sysctl{Name: name, Value: value})
	}
	for _, text := range o.fields {
		name, field, _ := strings.Cut(text, "=")
		number := resourcev1.SandboxField_value["SANDBOX_FIELD_"+strings.ToUpper(field)]
		if name == "" || number == 0 {
			return exit.BadUsage("--env-from %q: write NAME=FIELD, where FIELD is name, uid, node, attempt, address, hostname or container", text)
		}
		c.Env = append(c.Env, &resourcev1.EnvironmentVariable{Name: name, From: resourcev1.SandboxField(number)})
	}
	return nil
}
