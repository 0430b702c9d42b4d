package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/explain"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use: "explain [flags] SANDBOX", Short: "Say why a sandbox does not run or is not ready", Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.sandboxNames(1),
		Long: `Say how a sandbox is and since when, why, what it waits for and what to do next. The
causes begin with its node, if something is wrong with that, and go on inwards. The
exit code is 0 if it is as its spec asks and ready, else 7. With -o json the same as an
object.`,
		RunE: func(cmd *cobra.Command, refs []string) error {
			if a.format != output.Table && a.format != output.JSON {
				return exit.BadUsage("explain: -o %s: write table or json", a.format)
			}
			ctx, cancel := a.bounded(cmd.Context(), 0)
			defer cancel()
			return a.withSandboxes(ctx, func(t sandboxes) error { return a.explain(ctx, t, refs[0]) })
		},
	}
}

func (a *app) explain(ctx context.Context, t sandboxes, ref string) error {
	s, err := t.Find(ctx, ref)
	if err != nil {
		return err
	}
	facts := explain.Facts{Sandbox: &s}
	if state, ok := s.Record.(*sandboxhostv1.SandboxState); ok {
		facts.Trouble = state.GetTrouble()
	}
	if facts.Node, err = nodeOf(ctx, t, &s); err != nil {
		return err
	}
	e := explain.Of(facts)
	if a.format == output.JSON {
		encoder := json.NewEncoder(a.out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(e)
	} else {
		_, err = io.WriteString(a.out, explained(time.Now(), &s, e))
	}
	if err == nil && !e.Healthy {
		err = exit.WithCode(exit.Unhealthy)
	}
	return err
}

// nodeOf is the record of a sandbox's node. Nil where no coordinator is asked, it has
// none, or its node was removed.
func nodeOf(ctx context.Context, t sandboxes, s *sandbox.Sandbox) (*resourcev1.Resource, error) {
	cluster, ok := t.(*target.Cluster)
	if !ok || s.Node == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	node, err := cluster.ByName(ctx, resourcev1.Kind_KIND_NODE, s.Node)
	if errors.Is(err, fault.NotFound) {
		return nil, nil //nolint:nilnil // there is none
	}
	return node, err
}

// explained is an explanation for people.
func explained(now time.Time, s *sandbox.Sandbox, e explain.Explanation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s is %s%s\n", s.Name, e.State, forHow(now, e.Since))
	for _, c := range e.Causes {
		fmt.Fprintf(&b, "  %s", c.What)
		if c.Reason != "" {
			fmt.Fprintf(&b, " (%s)", c.Reason)
		}
		if c.Text != "" {
			fmt.Fprintf(&b, ": %s", c.Text)
		}
		fmt.Fprintf(&b, "%s\n", forHow(now, c.Since))
	}
	for _, line := range [][2]string{{"waits for", e.WaitsFor}, {"next", e.Next}} {
		if line[1] != "" {
			fmt.Fprintf(&b, "%s: %s\n", line[0], line[1])
		}
	}
	return b.String()
}

// forHow says for how long something has been so.
func forHow(now time.Time, since *time.Time) string {
	if since == nil {
		return ""
	}
	return ", for " + output.Age(now, timestamppb.New(*since))
}
