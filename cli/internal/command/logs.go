package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/follow"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

type logsOptions struct {
	refs                        []string
	container, stream, selector string
	since                       string
	attempt                     uint64
	tail                        int64
	follow, previous, times     bool
	allContainers               bool
}

// maxLogsTail is how many lines a node counts.
const maxLogsTail = 100_000

// maxReadings is how many containers are read at once.
const maxReadings = 64

func (a *app) logsCommand() *cobra.Command {
	var o logsOptions
	c := &cobra.Command{
		Use: "logs [flags] SANDBOX... | -l SELECTOR", Short: "Show what sandboxes wrote",
		Args:              args(o.arguments),
		ValidArgsFunction: a.sandboxNames(maxReadings),
		Long: `Show the output of the newest attempt of a sandbox that has any, standard output and
standard error apart, as bytes. With --follow go on, through later attempts and restarts
of the node's software, until the sandbox has ended for good or is removed.

With --timestamps, of several sandboxes or containers, and with -o json, lines are shown
whole, each behind where it is from; one over 1 MiB in pieces of that. In JSON each line
is an object with sandbox, container, attempt, stream, offset, time and text, or bytes in
base64 where they are no UTF-8; partial says that no end of a line follows.

The output is kept by the node: this reads it from the node's own socket, which
root may and the members of the group staddle-admin.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			o.refs = given
			if !cmd.Flags().Changed("tail") {
				o.tail = -1
			}
			return a.logs(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what is written from now on")
	f.StringVarP(&o.container, "container", "c", "", "`NAME` of the container, where there are several (default: the only one that is no init container)")
	f.BoolVar(&o.allContainers, "all-containers", false, "show all containers that are no init containers")
	f.Uint64Var(&o.attempt, "attempt", 0, "`NUMBER` of the attempt to show (default: the newest)")
	f.BoolVarP(&o.previous, "previous", "p", false, "show the attempt before the present one")
	f.StringVar(&o.stream, "stream", "both", "`STREAM` to show: stdout, stderr or both")
	f.StringVar(&o.since, "since", "", "leave out what is older: a `TIME` such as 2026-01-31T10:00:00Z, or how long ago, such as 10m")
	f.Int64VarP(&o.tail, "tail", "n", 0, "`NUMBER` of lines to begin with, the last (default: all that are kept)")
	f.BoolVarP(&o.times, "timestamps", "t", false, "put before each line when it was written, in UTC and to the second or better")
	f.StringVarP(&o.selector, "selector", "l", "", "`SELECTOR` of sandboxes by their labels, such as app=web,tier!=db")
	completeFlags(c, map[string][]cobra.Completion{"stream": {"stdout", "stderr", "both"}})
	return c
}

// arguments are needed unless there is a selector.
func (o *logsOptions) arguments(cmd *cobra.Command, given []string) error {
	if o.selector != "" && len(given) == 0 {
		return nil
	}
	return cobra.MinimumNArgs(1)(cmd, given)
}

// check says what is wrong with the options alone.
func (o *logsOptions) check() error {
	switch {
	case len(o.refs) > 0 && o.selector != "":
		return exit.BadUsage("logs: name sandboxes, or give a --selector, not both")
	case o.tail < -1 || o.tail > maxLogsTail:
		return exit.BadUsage("--tail %d: write 0 to %d", o.tail, maxLogsTail)
	case o.previous && (o.follow || o.attempt != 0):
		return exit.BadUsage("--previous is an attempt that has ended: leave out --follow and --attempt")
	case o.container != "" && o.allContainers:
		return exit.BadUsage("write --container or --all-containers, not both")
	}
	return nil
}

// sinceOf reads a time, or how long ago it was.
func sinceOf(word string, now time.Time) (time.Time, error) {
	if word == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(word); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, word)
	if err != nil || at.Year() < 1970 || at.Year() > 9999 {
		return time.Time{}, exit.BadUsage("--since %q: write a time such as 2026-01-31T10:00:00Z, or how long ago, such as 90s, 10m or 24h", word)
	}
	return at, nil
}

func (a *app) logs(ctx context.Context, o logsOptions) (err error) {
	only, err := streamOf(o.stream)
	if err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	since, err := sinceOf(o.since, time.Now())
	if err != nil {
		return err
	}
	req := follow.Request{Attempt: o.attempt, Only: only, Follow: o.follow, Previous: o.previous, Since: since}
	if o.tail >= 0 {
		tail := uint32(o.tail)
		req.Tail = &tail
	}
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	settings, err := a.settings()
	if err != nil {
		return err
	}
	host, err := settings.Node(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	readings, err := a.readings(ctx, settings, host, o)
	if err != nil {
		return err
	}
	return a.readLogs(ctx, host, readings, req, o)
}

// reading is one container whose output is shown.
type reading struct {
	uid, sandbox, container string
}

// readings lists what the options are about.
func (a *app) readings(ctx context.Context, settings *target.Settings, host *target.Node, o logsOptions) ([]reading, error) {
	var found []sandbox.Sandbox
	if o.selector != "" {
		var err error
		if found, err = selected(ctx, settings, o.selector); err != nil {
			return nil, err
		}
	}
	for _, ref := range o.refs {
		s, err := a.findForLogs(ctx, settings, host, ref)
		if err != nil {
			return nil, err
		}
		found = append(found, s)
	}
	var all []reading
	for i := range found {
		s := &found[i]
		names := []string{o.container}
		if o.allContainers || o.selector != "" && o.container == "" {
			names = lasting(s)
		} else if err := chooseContainer(s, &names[0]); err != nil {
			return nil, err
		}
		for _, name := range names {
			all = append(all, reading{s.UID, s.Name, name})
		}
	}
	if len(all) > maxReadings {
		return nil, exit.BadUsage("logs of %d containers: at most %d are read at once; narrow the selector", len(all), maxReadings)
	}
	return all, nil
}

// selected lists the sandboxes that a selector takes, as the coordinator finds them.
func selected(ctx context.Context, settings *target.Settings, selector string) (found []sandbox.Sandbox, err error) {
	if settings.Direct {
		return nil, exit.BadUsage("--selector: only a coordinator is asked for labels; leave out --node-socket, or name the sandboxes")
	}
	cluster, err := settings.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	records, err := cluster.Records(ctx, resourcev1.Kind_KIND_SANDBOX, selector)
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, exit.Try(fault.New(fault.NotFound, "no sandbox has labels that match %q", selector), "staddle get sandbox -l %s", selector)
	}
	for _, r := range records {
		found = append(found, sandbox.FromRecord(r))
	}
	return found, nil
}

// readLogs shows all readings: one after the other, or when following at once. What
// cannot be read does not keep the others from being shown.
func (a *app) readLogs(ctx context.Context, host *target.Node, all []reading, req follow.Request, o logsOptions) error {
	turn := &sync.Mutex{}
	errs := make([]error, len(all))
	show := func(i int) {
		r, req := all[i], req
		req.UID, req.Container = r.uid, r.container
		out := follow.Output{Stdout: a.out, Stderr: a.err, Turn: turn}
		if len(all) > 1 || o.times || a.format == output.JSON {
			out.Lines = &follow.Format{Times: o.times, JSON: a.format == output.JSON, Sandbox: r.sandbox, Container: r.container}
		}
		if len(all) > 1 {
			out.Lines.Prefix = r.sandbox + "/" + r.container + " "
		}
		errs[i] = follow.Run(ctx, host, req, out)
		if errs[i] != nil && len(all) > 1 {
			errs[i] = fmt.Errorf("logs of %s/%s: %w", r.sandbox, r.container, errs[i])
		}
	}
	var wg sync.WaitGroup
	for i := range all {
		if !o.follow {
			show(i)
			continue
		}
		wg.Go(func() { show(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// lasting names the containers that are no init containers.
func lasting(s *sandbox.Sandbox) []string {
	var names []string
	for _, c := range s.Spec.GetContainers() {
		if !c.GetInit() {
			names = append(names, c.GetName())
		}
	}
	return names
}

// findForLogs looks at the node first: it has the output, also when no
// coordinator can be reached. What the node does not know, the coordinator may.
func (a *app) findForLogs(ctx context.Context, settings *target.Settings, host *target.Node, ref string) (sandbox.Sandbox, error) {
	s, err := host.Find(ctx, ref)
	if settings.Direct || fault.KindOf(err) != fault.NotFound {
		return s, err
	}
	cluster, dialErr := settings.Cluster(ctx)
	if dialErr != nil {
		return s, err // the node's answer; the coordinator could only have said where else it is
	}
	record, findErr := cluster.Find(ctx, ref)
	if findErr == nil {
		findErr = elsewhere(ctx, cluster, record)
	}
	return s, errors.Join(findErr, cluster.Close())
}

func streamOf(word string) (sandboxhostv1.LogStream, error) {
	switch word {
	case "both":
		return sandboxhostv1.LogStream_LOG_STREAM_UNSPECIFIED, nil
	case "stdout":
		return sandboxhostv1.LogStream_LOG_STREAM_STDOUT, nil
	case "stderr":
		return sandboxhostv1.LogStream_LOG_STREAM_STDERR, nil
	}
	return 0, exit.BadUsage("--stream %q: write stdout, stderr or both", word)
}

// chooseContainer checks the name, or fills in the only one that is no init container.
func chooseContainer(s *sandbox.Sandbox, name *string) error {
	var names []string
	for _, c := range s.Spec.GetContainers() {
		if c.GetName() == *name {
			return nil
		}
		names = append(names, c.GetName())
	}
	if last := lasting(s); *name == "" && len(last) == 1 {
		*name = last[0]
		return nil
	}
	if *name == "" {
		return exit.BadUsage("sandbox %s has several containers: name one of %s with --container, or give --all-containers", s.Name, strings.Join(names, ", "))
	}
	return fault.New(fault.NotFound, "sandbox %s has no container %q: it has %s", s.Name, *name, strings.Join(names, ", "))
}
