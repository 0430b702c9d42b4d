package command

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/follow"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

type logsOptions struct {
	ref, container, stream string
	attempt                uint64
	follow                 bool
}

func (a *app) logsCommand() *cobra.Command {
	var o logsOptions
	c := &cobra.Command{
		Use: "logs [flags] SANDBOX", Short: "Show what a sandbox wrote", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: a.sandboxNames(1),
		Long: `Show the output of the newest attempt of a sandbox, standard output and standard
error apart, as bytes. With --follow go on, through later attempts and restarts
of the node's software, until the sandbox has ended for good or is removed.

The output is kept by the node: this reads it from the node's own socket, which
root may and the members of the group staddle-admin.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			o.ref = given[0]
			return a.logs(cmd.Context(), o)
		},
	}
	c.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what is written from now on")
	c.Flags().StringVarP(&o.container, "container", "c", "", "`NAME` of the container, where there are several (default: the only one that is no init container)")
	c.Flags().Uint64Var(&o.attempt, "attempt", 0, "`NUMBER` of the attempt to show (default: the newest)")
	c.Flags().StringVar(&o.stream, "stream", "both", "`STREAM` to show: stdout, stderr or both")
	completeFlags(c, map[string][]cobra.Completion{"stream": {"stdout", "stderr", "both"}})
	return c
}

func (a *app) logs(ctx context.Context, o logsOptions) (err error) {
	only, err := streamOf(o.stream)
	if err != nil {
		return err
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
	s, err := a.findForLogs(ctx, settings, host, o.ref)
	if err != nil {
		return err
	}
	if err := chooseContainer(&s, &o.container); err != nil {
		return err
	}
	return follow.Run(ctx, host, follow.Request{
		UID: s.UID, Container: o.container, Attempt: o.attempt, Only: only, Follow: o.follow,
	}, follow.Output{Stdout: a.out, Stderr: a.err})
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
	var names, lasting []string
	for _, c := range s.Spec.GetContainers() {
		if c.GetName() == *name {
			return nil
		}
		names = append(names, c.GetName())
		if !c.GetInit() {
			lasting = append(lasting, c.GetName())
		}
	}
	if *name == "" && len(lasting) == 1 {
		*name = lasting[0]
		return nil
	}
	if *name == "" {
		return exit.BadUsage("sandbox %s has several containers: name one of %s with --container", s.Name, strings.Join(names, ", "))
	}
	return fault.New(fault.NotFound, "sandbox %s has no container %q: it has %s", s.Name, *name, strings.Join(names, ", "))
}
