package command

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/graph"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

// completeLimit is how long a shell is kept waiting for names.
const completeLimit = 2 * time.Second

// completer offers words for the next argument, after those given.
type completer = func(cmd *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective)

// sandboxNames offers the sandboxes that are not named yet, at most so many. A
// target that does not answer offers nothing: a shell has no place for an error.
func (a *app) sandboxNames(most int) completer {
	return func(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(given) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var list []sandbox.Sandbox
		ctx, cancel := context.WithTimeout(cmd.Context(), completeLimit)
		defer cancel()
		if err := a.withSandboxes(ctx, func(t sandboxes) (err error) {
			list, err = t.List(ctx)
			return err
		}); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for i := range list {
			names = append(names, list[i].Name)
		}
		return without(names, given), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeContainer has the flag --container offer the containers of the sandbox that the arguments
// name, by refs.
func (a *app) completeContainer(c *cobra.Command, refs func(given []string) []string) {
	offer := func(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var names []string
		for _, ref := range refs(given) {
			names = append(names, a.containerNames(cmd.Context(), ref)...)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	if err := c.RegisterFlagCompletionFunc("container", offer); err != nil {
		panic(err) // as below
	}
}

// containerNames lists the containers of a sandbox, none if it cannot be found.
func (a *app) containerNames(ctx context.Context, ref string) []string {
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	var names []string
	if err := a.withSandboxes(ctx, func(t sandboxes) error {
		s, err := t.Find(ctx, ref)
		for _, c := range s.Spec.GetContainers() {
			names = append(names, c.GetName())
		}
		return err
	}); err != nil {
		return nil
	}
	return names
}

// firstArgument is the sandbox of a command that names one first.
func firstArgument(given []string) []string { return given[:min(1, len(given))] }

// componentNames offers the processes of this machine that are not named yet, at
// most so many.
func (a *app) componentNames(most int) completer {
	return func(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		settings, err := a.settings()
		if err != nil || len(given) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeLimit)
		defer cancel()
		g, err := graph.New(settings.Paths).Now(ctx)
		if err != nil { // a shell has no place for an error
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, c := range g.GetComponents() {
			names = append(names, c.GetName())
		}
		return without(names, given), cobra.ShellCompDirectiveNoFileComp
	}
}

// imageNames offers the images of this node that are not named yet.
func (a *app) imageNames(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []string
	ctx, cancel := context.WithTimeout(cmd.Context(), completeLimit)
	defer cancel()
	if err := a.withNode(ctx, func(ctx context.Context, n *target.Node) error {
		images, err := n.Images(ctx)
		for _, i := range images {
			names = append(names, i.GetName())
		}
		return err
	}); err != nil { // a shell has no place for an error
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return without(names, given), cobra.ShellCompDirectiveNoFileComp
}

// recordNames offers the kinds and then the records of that kind, at most so many.
func (a *app) recordNames(most int) completer {
	return func(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(given) == 0 {
			return []cobra.Completion{"sandbox", "service", "disk", "disklease", "node"}, cobra.ShellCompDirectiveNoFileComp
		}
		kind, err := kindOf(cmd, given)
		if err != nil || len(given) > most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.namesOf(cmd, kind, given[1:]), cobra.ShellCompDirectiveNoFileComp
	}
}

// describable offers sandboxes, and after the word service the services of the cluster.
func (a *app) describable(cmd *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch {
	case len(given) == 0:
		names, directive := a.sandboxNames(1)(cmd, given, prefix)
		return append(names, "service"), directive
	case len(given) == 1 && kindWords[given[0]] == resourcev1.Kind_KIND_SERVICE:
		return a.namesOf(cmd, resourcev1.Kind_KIND_SERVICE, nil), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// diskNames offers the disks that are not named yet.
func (a *app) diskNames(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.namesOf(cmd, resourcev1.Kind_KIND_DISK, given), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) namesOf(cmd *cobra.Command, kind resourcev1.Kind, given []string) []cobra.Completion {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeLimit)
	defer cancel()
	var names []string
	if err := a.withCluster(ctx, func(ctx context.Context, t *target.Cluster) error {
		records, err := t.Records(ctx, kind, "")
		for _, r := range records {
			names = append(names, r.GetMeta().GetName())
		}
		return err
	}); err != nil {
		return nil
	}
	return without(names, given)
}

func without(names, given []string) []cobra.Completion {
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(given, name) })
}

// anyFile leaves an argument to the shell's own completion of files.
func anyFile(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// completeFlags says what flags may have as value: words, or a file.
func completeFlags(c *cobra.Command, words map[string][]cobra.Completion, files ...string) {
	var errs []error
	for name, list := range words {
		errs = append(errs, c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)))
	}
	for _, name := range files {
		errs = append(errs, c.RegisterFlagCompletionFunc(name, anyFile))
	}
	if err := errors.Join(errs...); err != nil {
		panic(err) // a flag of that name is not defined: a mistake in this program
	}
}

// completeStarts says how the values of flags may begin; the shell sets no blank after them.
func completeStarts(c *cobra.Command, starts map[string][]cobra.Completion) {
	var errs []error
	for name, list := range starts {
		errs = append(errs, c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoSpace|cobra.ShellCompDirectiveNoFileComp)))
	}
	if err := errors.Join(errs...); err != nil {
		panic(err) // as above
	}
}

// completeGlobals is completeFlags for the flags that all commands have.
func completeGlobals(root *cobra.Command) {
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	completeFlags(root, map[string][]cobra.Completion{"output": output.Formats()}, "root", "node-socket", "ca", "cert", "key")
}
