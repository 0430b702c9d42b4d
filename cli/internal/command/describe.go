package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

const (
	// describedEvents is how many events are described, the newest.
	describedEvents = 10
	// eventsLimit bounds the question for them: a node that is away holds up nobody who
	// wants to know what is known without it.
	eventsLimit = 10 * time.Second
)

func (a *app) describeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "describe [flags] SANDBOX|service NAME", Short: "Show all that is known of a sandbox or a service",
		Args: args(cobra.RangeArgs(1, 2)), ValidArgsFunction: a.describable,
		Long: `Show all that is known of a sandbox: how it is and why, how long each phase of its
newest attempt took, its containers with what probes and ports say of them, how earlier
attempts ended, and the last ten events that its node keeps. Times are those of its node.
Of a service of the cluster: its address and ports, and the sandboxes of the cluster that
have its labels.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			ctx, cancel := a.bounded(cmd.Context(), 0)
			defer cancel()
			ref := given[len(given)-1]
			if len(given) == 2 {
				switch kind, err := kindOf(cmd, given); {
				case err != nil:
					return err
				case kind == resourcev1.Kind_KIND_SERVICE:
					return a.withCluster(ctx, func(ctx context.Context, t *target.Cluster) error { return a.describeService(ctx, t, ref) })
				case kind != resourcev1.Kind_KIND_SANDBOX:
					return exit.Try(exit.BadUsage("describe: a %s has no more than its record", target.KindName(kind)),
						"staddle get %s %s -o yaml", target.KindName(kind), ref)
				}
			}
			return a.withSandboxes(ctx, func(t sandboxes) error { return a.describe(ctx, t, ref) })
		},
	}
}

func (a *app) describe(ctx context.Context, t reader, ref string) error {
	s, err := t.Find(ctx, ref)
	if err != nil {
		return err
	}
	now := time.Now()
	if a.format != output.Table {
		return output.PrintOne(a.out, a.format, sandboxColumns, sandboxRow(now, &s))
	}
	_, err = io.WriteString(a.out, description(now, &s)+a.whatHappened(ctx, now, &s))
	return err
}

// whatHappened has the last events of a sandbox, or why its node could not be asked.
func (a *app) whatHappened(ctx context.Context, now time.Time, s *sandbox.Sandbox) string {
	if s.Node == "" {
		return "" // nothing happened on any node
	}
	ctx, cancel := context.WithTimeout(ctx, eventsLimit)
	defer cancel()
	var rows [][]string
	err := a.withInside(ctx, s.UID, func(ctx context.Context, inside *target.Inside, _ *sandbox.Sandbox) error {
		req := &sandboxhostv1.ReadEventsRequest{Uid: s.UID, Limit: describedEvents}
		return inside.ReadEvents(ctx, req, func(e *sandboxhostv1.Event) error {
			rows = append(rows, eventCells(now, e))
			return nil
		})
	})
	switch {
	case err != nil:
		return "\n" + output.Align([][]string{{"Events are not known: " + err.Error()}})
	case len(rows) == 0:
		return ""
	}
	return "\n" + output.Align(append([][]string{{"EVENT", "CONTAINER", "COUNT", "AGE", "LAST", "MESSAGE"}}, rows...))
}

func eventCells(now time.Time, e *sandboxhostv1.Event) []string {
	return []string{
		e.GetReason(), e.GetContainer(), fmt.Sprint(e.GetCount()), output.Age(now, e.GetFirstAt()), moment(e.GetLastAt()), e.GetMessage(),
	}
}

// description is all that is known of a sandbox, for people.
func description(now time.Time, s *sandbox.Sandbox) string {
	parts := []string{output.Align(overview(now, s))}
	for _, part := range []struct {
		title string
		table [][]string
	}{
		{"PHASE ENTERED TOOK", phaseCells(now, s.Status)},
		{"CONTAINER STATE PID AGE EXIT OOM-KILLS IMAGE", containerCells(now, s)},
		{"CONDITION OF STATE FOR REASON", conditionCells(now, s.Status)},
		{"ATTEMPT CONTAINER EXIT AT", exitCells(s.Status)},
	} {
		if len(part.table) > 0 {
			parts = append(parts, output.Align(append([][]string{strings.Fields(part.title)}, part.table...)))
		}
	}
	return strings.Join(parts, "\n")
}

func overview(now time.Time, s *sandbox.Sandbox) [][]string {
	ready, why := s.Ready()
	next := ""
	if at := s.Status.GetNextAt(); at != nil {
		next = "in " + max(at.AsTime().Sub(now), 0).Round(time.Second).String()
	}
	all := [][]string{
		{"Name:", s.Name},
		{"Uid:", s.UID},
		{"Manager:", s.Manager},
		{"Node:", s.Node},
		{"Labels:", labelsText(s.Labels)},
		{"Created:", moment(timestamppb.New(s.CreatedAt))},
		{"Desired:", strings.ToLower(enumWord(s.Spec.GetDesired().String(), "DESIRED_STATE_"))},
		{"Phase:", phaseOf(s)},
		{"Attempt:", fmt.Sprint(s.Status.GetAttempt())},
		{"Why:", s.Why()},
		{"Cause:", s.Status.GetCauseReason()},
		{"Next attempt:", next},
		{"Ready:", strings.ToLower(enumWord(ready.String(), "CONDITION_STATE_"))},
		{"Not ready because:", why},
		{"Addresses:", strings.Join(s.Status.GetAddresses(), ",")},
		{"Network group:", s.Spec.GetNetworkGroup()},
	}
	return slices.DeleteFunc(all, func(line []string) bool { return line[1] == "" })
}

// phaseCells says when each phase of the newest attempt began, and how long it took.
func phaseCells(now time.Time, s *resourcev1.SandboxStatus) [][]string {
	var rows [][]string
	times := s.GetPhaseTimes()
	for i, p := range times {
		took := "for " + output.Age(now, p.GetEnteredAt())
		if i+1 < len(times) {
			took = times[i+1].GetEnteredAt().AsTime().Sub(p.GetEnteredAt().AsTime()).Round(time.Millisecond).String()
		}
		rows = append(rows, []string{enumWord(p.GetPhase().String(), "SANDBOX_PHASE_"), moment(p.GetEnteredAt()), took})
	}
	return rows
}

func containerCells(now time.Time, s *sandbox.Sandbox) [][]string {
	var rows [][]string
	for _, spec := range s.Spec.GetContainers() {
		c := containerOf(s.Status, spec.GetName())
		e := s.Exit(spec.GetName())
		state, pid, oom := "waiting", "", ""
		switch {
		case c.GetPid() != 0:
			state, pid = "running", fmt.Sprint(c.GetPid())
		case e != nil:
			state = "ended"
		case c.GetStartedAt() != nil:
			state = "started"
		}
		if c.GetOomKills() > 0 {
			oom = fmt.Sprint(c.GetOomKills())
		}
		if n := c.GetOomKillsBeside(); n > 0 {
			oom += fmt.Sprintf(" (%d beside)", n)
		}
		name := spec.GetName()
		if spec.GetInit() {
			name += " (init)"
		}
		rows = append(rows, []string{name, state, pid, output.Age(now, c.GetStartedAt()), endOf(e), oom, spec.GetImage()})
	}
	return rows
}

func containerOf(s *resourcev1.SandboxStatus, name string) *resourcev1.ContainerStatus {
	for _, c := range s.GetContainers() {
		if c.GetName() == name {
			return c
		}
	}
	return nil
}

// conditionCells are the conditions of the sandbox, and then those of its containers.
func conditionCells(now time.Time, s *resourcev1.SandboxStatus) [][]string {
	var rows [][]string
	add := func(of string, all []*resourcev1.Condition) {
		for _, c := range all {
			rows = append(rows, []string{
				c.GetType(), of, strings.ToLower(enumWord(c.GetState().String(), "CONDITION_STATE_")), output.Age(now, c.GetSince()), c.GetReason(),
			})
		}
	}
	add("sandbox", s.GetConditions())
	for _, c := range s.GetContainers() {
		add(c.GetName(), c.GetConditions())
	}
	return rows
}

// exitCells are the exits that are remembered, newest first.
func exitCells(s *resourcev1.SandboxStatus) [][]string {
	var rows [][]string
	for _, e := range slices.Backward(s.GetExits()) {
		rows = append(rows, []string{fmt.Sprint(e.GetAttempt()), e.GetContainer(), endOf(e), moment(e.GetExitedAt())})
	}
	return rows
}

// endOf is how a container ended, with the signal if one ended it; empty while it has
// not.
func endOf(e *resourcev1.ContainerExit) string {
	switch {
	case e == nil:
		return ""
	case e.GetSignal() != 0 && !e.GetUnknown() && !e.GetOomKilled():
		return fmt.Sprintf("%d (signal %d)", e.GetCode(), e.GetSignal())
	}
	return codeOf(e)
}

// moment is a time of the node, to the millisecond.
func moment(t *timestamppb.Timestamp) string {
	if t.GetSeconds() == 0 {
		return ""
	}
	return t.AsTime().Local().Format("2006-01-02 15:04:05.000")
}
