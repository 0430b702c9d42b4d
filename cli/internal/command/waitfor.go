package command

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/spf13/cobra"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
)

// goals are what "staddle wait" can wait for, by their word.
var goals = map[string]func(*sandbox.Sandbox) (bool, error){
	"running": func(now *sandbox.Sandbox) (bool, error) { return lives(now, (*sandbox.Sandbox).Running) },
	"ready":   func(now *sandbox.Sandbox) (bool, error) { return lives(now, isReady) },
	"stopped": func(now *sandbox.Sandbox) (bool, error) { return now == nil || now.AtRest(), nil },
	"removed": func(now *sandbox.Sandbox) (bool, error) { return now == nil, nil },
}

const goalList = "running, ready, stopped or removed"

func (a *app) waitCommand() *cobra.Command {
	var goal string
	c := &cobra.Command{
		Use: "wait [flags] SANDBOX...", Short: "Wait until sandboxes are as they should be", Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: a.sandboxNames(math.MaxInt),
		Long: `Wait until each of the sandboxes is running, ready (it runs, its ports are open and its
probes say yes), stopped (it has ended and nothing starts it again) or removed. Asks for
nothing to be done. A sandbox that has come to rest never runs, and ends the wait with
an error; so does the end of --timeout (default 5m).`,
		RunE: func(cmd *cobra.Command, refs []string) error {
			see, ok := goals[goal]
			if !ok {
				return exit.BadUsage("--for %s: write %s", goal, goalList)
			}
			ctx, cancel := a.bounded(cmd.Context(), waitRunning)
			defer cancel()
			return a.withSandboxes(ctx, func(t sandboxes) error { return a.waitFor(ctx, t, refs, goal, see) })
		},
	}
	c.Flags().StringVar(&goal, "for", "ready", "what to wait for: "+goalList)
	completeFlags(c, map[string][]string{"for": {"running", "ready", "stopped", "removed"}})
	return c
}

func (a *app) waitFor(ctx context.Context, t sandboxes, refs []string, goal string, see func(*sandbox.Sandbox) (bool, error)) error {
	var found []sandbox.Sandbox
	var errs []error
	for _, ref := range refs { // all at once, so that one that is removed meanwhile is known
		s, err := t.Find(ctx, ref)
		switch {
		case err == nil:
			found = append(found, s)
		case goal != "removed" || fault.KindOf(err) != fault.NotFound:
			errs = append(errs, err)
		}
	}
	for _, s := range found {
		err := a.awaited(ctx, t, s, see)
		if err == nil {
			err = a.printDone(s)
		}
		if err != nil {
			errs = append(errs, exit.Try(err, "staddle describe %s", s.Name))
		}
	}
	return joined(errs)
}

// awaited waits for one, and says meanwhile how it is.
func (a *app) awaited(ctx context.Context, t reader, s sandbox.Sandbox, see func(*sandbox.Sandbox) (bool, error)) error {
	progress := output.NewProgress(a.err)
	defer progress.Done("")
	return await(ctx, t, s, func(now *sandbox.Sandbox) (bool, error) {
		if now != nil {
			progress.Watch(s.Name + ": " + stateOf(now))
		}
		enough, err := see(now)
		if err != nil {
			err = fmt.Errorf("wait for sandbox %s: %w", s.Name, err)
		}
		return enough, err
	})
}

// lives judges a sandbox that should run and is not known to have ended.
func lives(now *sandbox.Sandbox, is func(*sandbox.Sandbox) bool) (bool, error) {
	switch {
	case now == nil:
		return false, fault.New(fault.NotFound, "it was removed")
	case is(now):
		return true, nil
	case now.AtRest():
		return false, fault.New(fault.Conflict, "it does not run, and nothing starts it: %s", stateOf(now))
	}
	return false, nil
}

// isReady counts a node that says nothing of readiness as one that asks for no more
// than that it runs.
func isReady(s *sandbox.Sandbox) bool {
	state, _ := s.Ready()
	known := []resourcev1.ConditionState{resourcev1.ConditionState_CONDITION_STATE_TRUE, resourcev1.ConditionState_CONDITION_STATE_UNSPECIFIED}
	return s.Running() && slices.Contains(known, state)
}
