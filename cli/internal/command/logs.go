package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/follow"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
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

What a removed sandbox wrote is shown too, as long as its node keeps it: of several of one
name that of the last.

The output is kept by the node that has the sandbox: this reads it from the node's own
socket, which root may and the members of the group staddle-admin, and that of other nodes
through their gateways, which operators of the cluster may.`,
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
	f.StringVarP(&o.selector, "selector", "l", "", "`SELECTOR` of sandboxes by their labels, such as app=web,tier=front")
	completeFlags(c, map[string][]cobra.Completion{"stream": {"stdout", "stderr", "both"}})
	a.completeContainer(c, firstArgument)
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
	found := newLogSources(settings)
	defer func() { err = errors.Join(err, found.close()) }()
	readings, err := a.readings(ctx, found, o)
	if err != nil {
		return err
	}
	return a.readLogs(ctx, readings, req, o)
}

// reading is one container whose output is shown.
type reading struct {
	sandbox, container string
	located
}

// readings lists what the options are about.
func (a *app) readings(ctx context.Context, sources *logSources, o logsOptions) ([]reading, error) {
	var found []located
	if o.selector != "" {
		var err error
		if found, err = sources.selected(ctx, o.selector); err != nil {
			return nil, err
		}
	}
	for _, ref := range o.refs {
		s, err := sources.find(ctx, ref)
		if err != nil {
			return nil, err
		}
		found = append(found, s)
	}
	var all []reading
	for i := range found {
		s := &found[i].Sandbox
		names := []string{o.container}
		if found[i].removed {
			names[0] = cmp.Or(o.container, found[i].only)
		} else if o.allContainers || o.selector != "" && o.container == "" {
			names = lasting(s)
		} else if err := chooseContainer(s, &names[0]); err != nil {
			return nil, err
		}
		for _, name := range names {
			all = append(all, reading{s.Name, name, found[i]})
		}
	}
	if len(all) > maxReadings {
		return nil, exit.BadUsage("logs of %d containers: at most %d are read at once; narrow the selector", len(all), maxReadings)
	}
	return all, nil
}

// readLogs shows all readings: one after the other, or when following at once. What
// cannot be read does not keep the others from being shown.
func (a *app) readLogs(ctx context.Context, all []reading, req follow.Request, o logsOptions) error {
	turn := &sync.Mutex{}
	errs := make([]error, len(all))
	show := func(i int) {
		r, req := all[i], req
		req.UID, req.Container, req.Removed = r.UID, r.container, r.removed
		if r.UID == "" {
			req.Name = r.sandbox
		}
		out := follow.Output{Stdout: a.out, Stderr: a.err, Turn: turn}
		if len(all) > 1 || o.times || a.format == output.JSON {
			out.Lines = &follow.Format{Times: o.times, JSON: a.format == output.JSON, Sandbox: r.sandbox, Container: r.container}
		}
		if len(all) > 1 {
			out.Lines.Prefix = r.sandbox + "/" + r.container + " "
		}
		if errs[i] = r.err; r.err == nil {
			errs[i] = follow.Run(ctx, r.host, req, out)
		}
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
