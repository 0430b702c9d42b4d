package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
)

// runOptions is what the flags and arguments of "run" say.
type runOptions struct {
	name, image      string
	entrypoint, args []string
	env, labels      []string
	disks            []string
	memory, cpu      string
	pids             int64
	network, restart string
	networkGroup     string
	user, workdir    string
	stopSignal       string
	pull             string
	expose           []string
	grace            time.Duration
	detach, remove   bool
	mounts           mountOptions
	limits           limitOptions
	inside           insideOptions
	security         securityOptions
	secrets          secretRefs
	life             lifeOptions
	init             bool
}

func (a *app) runCommand() *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use: "run [flags] IMAGE [-- ARG...]", Short: "Run a sandbox with one container",
		Long: `Run a sandbox with one container of an image.

In the foreground its output is shown until it has ended for good, and the
command ends with the container's exit code. An interrupt asks the sandbox to
stop; a second one leaves it alone and ends the command at once. With --detach
the command ends when the sandbox runs, and with --expose, --startup or
--readiness when it is ready.

With --stdin standard input goes to the container, and its end ends that of the
container; with --tty too it has a terminal of the size of yours, which hands on
every key, Ctrl-C too.

What follows "--" takes the place of the image's own arguments, one by one, as
given: no shell reads it.

A probe is http://:PORT/PATH, https://:PORT/PATH, tcp://:PORT,
grpc://:PORT/SERVICE or exec:COMMAND. It is asked inside the sandbox, at its own
address; a host in an http probe is the one that the request names.`,
		Example: `  staddle run --rm registry.example/tool:1 -- --verbose "two words"
  staddle run -d --name web --memory 64MiB registry.example/web:1
  staddle run -d --expose 8080 --readiness http://:8080/healthy --liveness "exec:/web check" --pre-stop "/web leave" registry.example/web:1
  staddle run -d --scratch work:/work --init-container ". migrate" registry.example/shop:1
  staddle run -d --security restricted --user 1000 --tmpfs /tmp --config-file web.conf:/etc/web.conf registry.example/web:1`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			o.image = given[0]
			switch dash := cmd.ArgsLenAtDash(); {
			case dash == 1:
				o.args = given[1:]
			case dash >= 0 || len(given) > 1:
				return exit.Try(exit.BadUsage("run: one image is run, and its arguments stand behind --"),
					"staddle run %s -- %s", given[0], strings.Join(given[1:], " "))
			}
			return a.run(cmd.Context(), o)
		},
	}
	runFlags(c, &o)
	return c
}

func runFlags(c *cobra.Command, o *runOptions) {
	f := c.Flags()
	f.StringVar(&o.name, "name", "", "`NAME` of the sandbox (default: made from the image's)")
	f.StringArrayVarP(&o.env, "env", "e", nil, "`NAME=VALUE` in the environment; not for secrets: it is stored and shown")
	f.StringArrayVar(&o.entrypoint, "entrypoint", nil, "`PROGRAM` in place of the image's; given again, its leading arguments")
	f.StringVar(&o.memory, "memory", "", "limit of memory, a `SIZE` like 64MiB")
	f.StringVar(&o.cpu, "cpu", "", "limit of CPU in `CORES`, like 0.5")
	f.Int64Var(&o.pids, "pids", 0, "limit of the `NUMBER` of processes and threads (default 4096)")
	f.StringVar(&o.network, "network", "sandbox", "`NETWORK` that it sees: sandbox or host")
	f.StringVar(&o.networkGroup, "network-group", "", "`GROUP` of sandboxes that it is with; others do not reach it (default: that of all that name none)")
	f.StringVar(&o.restart, "restart", "", "`POLICY` for when it ends: always, on-failure or never (default: never, with --detach always)")
	f.StringVar(&o.pull, "pull", "", "`POLICY` for asking the registry: if-not-present, always or never (default: if-not-present)")
	f.StringVar(&o.user, "user", "", "`USER` in the container: uid, uid:gid, name or name:group")
	f.StringVar(&o.workdir, "workdir", "", "working `DIRECTORY` in the container")
	f.DurationVar(&o.grace, "grace", -1, "`TIME` between the request to stop and the end by force (default 10s)")
	f.StringVar(&o.stopSignal, "stop-signal", "", "`SIGNAL` that asks it to end, like SIGQUIT (default: the image's, else SIGTERM)")
	f.StringArrayVar(&o.expose, "expose", nil, "`PORT[/udp]` on which it will listen: it is ready when that is open")
	f.StringArrayVarP(&o.labels, "label", "l", nil, "label of the record, as `KEY=VALUE`")
	f.StringArrayVar(&o.disks, "disk", nil, "disk to mount, as `NAME:/PATH[:ro]`")
	mountFlags(f, &o.mounts)
	limitFlags(f, &o.limits)
	insideFlags(f, &o.inside)
	securityFlags(f, &o.security)
	secretFlags(f, &o.secrets)
	lifeFlags(f, &o.life)
	f.BoolVar(&o.init, "init", false, "begin with a small first process that hands signals on and takes in the ends of orphans")
	f.BoolVarP(&o.detach, "detach", "d", false, "end when the sandbox runs, and leave it running")
	f.BoolVar(&o.remove, "rm", false, "remove the sandbox when it has ended")
	f.Lookup("grace").DefValue = "0s" // the help text shows none then: -1 only means that it is not given
	completeFlags(c, map[string][]cobra.Completion{
		"network": {"sandbox", "host"}, "restart": {"always", "on-failure", "never"}, "security": {"default", "restricted"},
		"seccomp": {"default", "unconfined"}, "apparmor": {"default", "unconfined"}, "pull": {"if-not-present", "always", "never"},
		"log-mode": {"blocking", "non-blocking"},
	}, "config-file", "device", "host-path")
	completeStarts(c, map[string][]cobra.Completion{
		"startup": probeStarts, "liveness": probeStarts, "readiness": probeStarts, "probe-set": probeSettings(),
	})
}

func (a *app) run(ctx context.Context, o runOptions) error {
	if o.detach && o.remove {
		return exit.BadUsage("run: --detach leaves the sandbox running and --rm removes it; choose one")
	}
	spec, err := specOf(o)
	if err != nil {
		return err
	}
	labels, err := labelsOf(o.labels)
	if err != nil {
		return err
	}
	if o.name == "" {
		o.name = nameFor(o.image)
	}
	if err := id.CheckName("--name", o.name); err != nil {
		return err
	}
	return a.withSandboxes(ctx, func(t sandboxes) error {
		if o.detach {
			return a.runDetached(ctx, t, o, labels, spec)
		}
		return a.runAttached(ctx, t, o, labels, spec)
	})
}

func (a *app) runDetached(ctx context.Context, t sandboxes, o runOptions, labels map[string]string, spec *resourcev1.SandboxSpec) error {
	s, err := t.Create(ctx, o.name, labels, spec)
	if err != nil {
		return err
	}
	now, err := a.untilStarted(ctx, t, s)
	if ctx.Err() != nil {
		_, tellErr := fmt.Fprintf(a.err, "staddle: sandbox %s is there and goes on\ntry: staddle rm %s\n", s.Name, s.Name)
		return errors.Join(err, tellErr)
	}
	if err != nil {
		return err
	}
	if a.format == output.Table {
		_, err := fmt.Fprintf(a.out, "%s\n", now.UID)
		return err
	}
	return output.PrintOne(a.out, a.format, sandboxColumns, sandboxRow(time.Now(), now))
}

// untilStarted waits until the sandbox runs, and is ready if its spec says how to
// find out, or has run to its end. A first
// failed start is an error, also when the sandbox is tried again by its policy.
func (a *app) untilStarted(ctx context.Context, t reader, s sandbox.Sandbox) (*sandbox.Sandbox, error) {
	ctx, cancel := a.bounded(ctx, waitRunning)
	defer cancel()
	progress := output.NewProgress(a.err)
	defer progress.Done("")
	p := newPatience(ctx)
	defer p.stop()
	last := &s
	err := await(p.ctx, t, s, func(now *sandbox.Sandbox) (bool, error) {
		if now == nil {
			return false, fault.New(fault.NotFound, "run sandbox %s: it was removed", s.Name)
		}
		last = now
		progress.Watch(s.Name + ": " + stateOf(now))
		p.see(now)
		return hasStarted(now)
	})
	if errors.Is(context.Cause(p.ctx), errImpatient) {
		err = exit.Try(fault.New(fault.Unavailable, "run sandbox %s: %s", s.Name, last.Why()),
			"%s", nextStep(last))
	}
	if err != nil {
		return nil, exit.Try(err, "staddle ps; staddle rm %s", s.Name)
	}
	return last, nil
}

// hasStarted reports whether the sandbox runs or has run to its end, and makes
// an error of a start that failed.
func hasStarted(now *sandbox.Sandbox) (bool, error) {
	state, _ := now.Ready()
	ready := state == resourcev1.ConditionState_CONDITION_STATE_TRUE || !now.Watched()
	if now.Running() && ready || now.AtRest() && exitOf(now) != "" {
		return true, nil
	}
	if why, failed := now.Failed(); failed {
		return false, failedStart(now, why)
	}
	return now.AtRest(), nil
}

// patienceLimit is how long a step of a start may fail again and again before
// the person is told. A restart of a process of the node is over by then.
const patienceLimit = 10 * time.Second

var errImpatient = errors.New("a step fails again and again")

// patience ends a wait for a sandbox of which a step is tried again and again.
// Nothing changes while it is, so that no event would say so.
type patience struct {
	ctx   context.Context //nolint:containedctx // it is what patience ends
	end   context.CancelCauseFunc
	timer *time.Timer
}

func newPatience(ctx context.Context) *patience {
	p := &patience{}
	p.ctx, p.end = context.WithCancelCause(ctx)
	return p
}

// see starts the clock at the first failure and stops it when things go on.
func (p *patience) see(s *sandbox.Sandbox) {
	retrying := slices.Contains([]string{"RETRYING", secretMissing, "SECRETS_UNAVAILABLE"}, s.Status.GetReason())
	switch {
	case retrying && p.timer == nil:
		p.timer = time.AfterFunc(patienceLimit, func() { p.end(errImpatient) })
	case !retrying && p.timer != nil:
		p.timer.Stop()
		p.timer = nil
	}
}

// stop ends the clock and the wait.
func (p *patience) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
	p.end(nil)
}

// secretMissing is the reason of a sandbox that waits for a secret that nobody has set.
const secretMissing = "SECRET_NOT_FOUND"

// nextStep is what may help a sandbox that does not start.
func nextStep(s *sandbox.Sandbox) string {
	if s.Status.GetReason() == secretMissing {
		return "staddle secret set NAME --from-stdin KEY; it starts by itself then"
	}
	if strings.HasPrefix(s.Why(), "pull image") {
		return fmt.Sprintf("staddle image pull %s, or staddle image import FILE", imagesOf(s))
	}
	return "staddle status"
}

func failedStart(s *sandbox.Sandbox, why string) error {
	if why == "" {
		why = "its node does not say why"
	}
	if init := failedInit(s); init != nil {
		return exit.Try(fault.New(fault.Internal, "run sandbox %s: its init container %s ended with code %s: %s", s.Name, init.GetContainer(), codeOf(init), why),
			"staddle logs %s --container %s", s.Name, init.GetContainer())
	}
	if code := exitOf(s); code != "" {
		return exit.Try(fault.New(fault.Internal, "run sandbox %s: it ended at once with code %s: %s", s.Name, code, why),
			"staddle logs %s", s.Name)
	}
	return exit.Try(fault.New(fault.Internal, "run sandbox %s: %s", s.Name, why), "%s", nextStep(s))
}
