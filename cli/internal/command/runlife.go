package command

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/exit"
)

// lifeOptions are the flags of "run" about how it starts, how it is watched, and how it
// ends.
type lifeOptions struct {
	startup, liveness, readiness string
	settings                     []string
	preStop                      string
	inits                        []string
}

func lifeFlags(f *pflag.FlagSet, o *lifeOptions) {
	f.StringVar(&o.startup, "startup", "", "`PROBE` that is asked first, until it passes: "+probeForms)
	f.StringVar(&o.liveness, "liveness", "", "`PROBE` that passes while it is alive; else its restart policy is applied")
	f.StringVar(&o.readiness, "readiness", "", "`PROBE` that passes while it can do its work")
	f.StringArrayVar(&o.settings, "probe-set", nil, "`PROBE.KEY=VALUE`, like liveness.period=30s; keys as in records: "+strings.Join(probeKeys, ", "))
	f.StringVar(&o.preStop, "pre-stop", "", "`COMMAND` that is run inside before it is asked to end; words may be quoted, no shell reads them")
	f.StringArrayVar(&o.inits, "init-container", nil,
		"`IMAGE [ARG...]` that runs to its end before, with the same mounts, environment, user and limits; . means the same image")
}

const probeForms = "http://:PORT/PATH, https://…, tcp://:PORT, grpc://:PORT/SERVICE or exec:COMMAND"

// probeStarts complete the value of a probe.
var probeStarts = []string{"http://:", "https://:", "tcp://:", "grpc://:", "exec:"}

// Names of the three probes and of what can be set of each.
var (
	probeNames = []string{"startup", "liveness", "readiness"}
	probeKeys  = []string{"initial_delay", "period", "timeout", "success_threshold", "failure_threshold"}
)

// probeSettings complete the beginning of a setting.
func probeSettings() (all []string) {
	for _, name := range probeNames {
		for _, key := range probeKeys {
			all = append(all, name+"."+key+"=")
		}
	}
	return all
}

// add puts it into a spec. It is the last to do so: init containers are like the main one.
func (o lifeOptions) add(spec *resourcev1.SandboxSpec, c *resourcev1.ContainerSpec) error {
	var err error
	if c.StartupProbe, err = probeOf("--startup", o.startup); err != nil {
		return err
	}
	if c.LivenessProbe, err = probeOf("--liveness", o.liveness); err != nil {
		return err
	}
	if c.ReadinessProbe, err = probeOf("--readiness", o.readiness); err != nil {
		return err
	}
	for _, text := range o.settings {
		if err := setProbe(c, text); err != nil {
			return err
		}
	}
	if o.preStop != "" {
		if c.PreStop, err = commandOf("--pre-stop", o.preStop, o.preStop); err != nil {
			return err
		}
	}
	var inits []*resourcev1.ContainerSpec
	for i, text := range o.inits {
		one, err := initContainer(c, i+1, text)
		if err != nil {
			return err
		}
		inits = append(inits, one)
	}
	spec.Containers = slices.Concat(inits, spec.GetContainers())
	return nil
}

// initContainer is the n-th container before the main one, whose surroundings it has.
func initContainer(like *resourcev1.ContainerSpec, n int, text string) (*resourcev1.ContainerSpec, error) {
	given, err := splitWords(text)
	if err != nil || len(given) == 0 {
		return nil, exit.BadUsage("--init-container %q: write IMAGE [ARG...], with quotes around what has blanks: %w", text, orEmpty(err))
	}
	c := proto.CloneOf(like)
	c.Name, c.Init = "init-"+strconv.Itoa(n), true
	if given[0] != "." {
		c.Image = given[0]
	}
	c.Command, c.Args = nil, given[1:]
	c.StartupProbe, c.LivenessProbe, c.ReadinessProbe, c.PreStop, c.Ports = nil, nil, nil, nil, nil
	c.Tty, c.Stdin = false, false // nobody is there yet
	return c, nil
}

// probeOf reads what is asked, and how.
func probeOf(flag, text string) (*resourcev1.Probe, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no probe is asked for
	}
	if command, ok := strings.CutPrefix(text, "exec:"); ok {
		action, err := commandOf(flag, text, command)
		return &resourcev1.Probe{Check: &resourcev1.Probe_Exec{Exec: action}}, err
	}
	bad := func(why string) error {
		return exit.BadUsage("%s %q: %s; write %s", flag, text, why, probeForms)
	}
	u, err := url.Parse(text)
	if err != nil || u.Opaque != "" || u.User != nil || u.Fragment != "" {
		return nil, bad("that is no probe")
	}
	if !slices.Contains(probeStarts, u.Scheme+"://:") {
		return nil, bad("there is no such kind of probe")
	}
	port, err := probePort(u)
	if err != nil {
		return nil, bad(err.Error())
	}
	switch u.Scheme {
	case "http", "https":
		return &resourcev1.Probe{Check: &resourcev1.Probe_Http{Http: &resourcev1.HttpCheck{
			Port: port, Path: strings.TrimSuffix(u.RequestURI(), "?"), Tls: u.Scheme == "https", Host: u.Hostname(),
		}}}, nil
	}
	service := strings.TrimPrefix(u.Path, "/")
	switch {
	case u.Hostname() != "" || u.RawQuery != "":
		return nil, bad("the sandbox itself is asked, so there is only a port")
	case u.Scheme == "grpc":
		return &resourcev1.Probe{Check: &resourcev1.Probe_Grpc{Grpc: &resourcev1.GrpcCheck{Port: port, Service: service}}}, nil
	case service != "":
		return nil, bad("a connection has no path")
	}
	return &resourcev1.Probe{Check: &resourcev1.Probe_Tcp{Tcp: &resourcev1.TcpCheck{Port: port}}}, nil
}

// probePort is the port of an address, for http also the usual one.
func probePort(u *url.URL) (uint32, error) {
	text := u.Port()
	if text == "" {
		text = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("a port from 1 to %d is missing", math.MaxUint16)
	}
	return uint32(port), nil
}

// setProbe sets one thing of one probe.
func setProbe(c *resourcev1.ContainerSpec, text string) error {
	where, value, ok := strings.Cut(text, "=")
	name, key, both := strings.Cut(where, ".")
	if !ok || !both || !slices.Contains(probeNames, name) || !slices.Contains(probeKeys, key) {
		return exit.BadUsage("--probe-set %q: write PROBE.KEY=VALUE, with one of %s and one of %s",
			text, strings.Join(probeNames, ", "), strings.Join(probeKeys, ", "))
	}
	p := map[string]*resourcev1.Probe{"startup": c.GetStartupProbe(), "liveness": c.GetLivenessProbe(), "readiness": c.GetReadinessProbe()}[name]
	if p == nil {
		return exit.BadUsage("--probe-set %q: there is no --%s to set it for", text, name)
	}
	var err error
	switch key {
	case "initial_delay":
		p.InitialDelay, err = timeOf(value)
	case "period":
		p.Period, err = timeOf(value)
	case "timeout":
		p.Timeout, err = timeOf(value)
	case "success_threshold":
		p.SuccessThreshold, err = countOf(value)
	default:
		p.FailureThreshold, err = countOf(value)
	}
	if err != nil {
		return exit.BadUsage("--probe-set %q: %w", text, err)
	}
	return nil
}

func timeOf(text string) (*durationpb.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return nil, fmt.Errorf("%q is no time, like 500ms or 10s", text)
	}
	return durationpb.New(d), nil
}

func countOf(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no number from 1", text)
	}
	return uint32(n), nil
}

// commandOf reads a command that is run inside, which is all or the end of a value.
func commandOf(flag, text, command string) (*resourcev1.ExecAction, error) {
	given, err := splitWords(command)
	if err != nil || len(given) == 0 {
		return nil, exit.BadUsage("%s %q: write a program and its arguments, with quotes around what has blanks: %w", flag, text, orEmpty(err))
	}
	return &resourcev1.ExecAction{Command: given}, nil
}
