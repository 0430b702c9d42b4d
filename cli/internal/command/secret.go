package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/id"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"
)

var secretColumns = []string{"NAME", "KEYS", "REVISION", "AGE", "CHANGED"}

func (a *app) secretCommand() *cobra.Command {
	list := &cobra.Command{
		Use: "ls", Short: "List secrets and their keys, without values", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withCluster(cmd.Context(), func(ctx context.Context, t *target.Cluster) error {
				secrets, err := t.Secrets(ctx)
				if err != nil {
					return err
				}
				return a.printSecrets(secrets)
			})
		},
	}
	rotate := &cobra.Command{
		Use: "rotate-key", Short: "Encrypt all secrets with a new key", Args: args(cobra.NoArgs),
		Long: `Make a new key at the coordinator, and encrypt all secrets with it. Older keys stay in
the file of keys, so that a backup of the store can be read. Where several coordinators
serve one store, bring the file, which is named, to the others afterwards.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withCluster(cmd.Context(), func(ctx context.Context, t *target.Cluster) error {
				done, err := t.RotateSecretKey(ctx)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(a.out, "%d secrets are encrypted with the new key in %s\n", done.GetSecrets(), done.GetKeyFile())
				return err
			})
		},
	}
	c := group("secret", "Secrets of the cluster", a.secretSetCommand(), list, a.secretRemoveCommand(), rotate)
	c.Long = `Secrets are kept by the coordinator, encrypted, and given only to nodes whose sandboxes
refer to them. No command shows a value.`
	return c
}

// secretOptions is what the flags and arguments of "secret set" say.
type secretOptions struct {
	pairs, files []string
	stdin        string
	replace      bool
}

func (a *app) secretSetCommand() *cobra.Command {
	var o secretOptions
	c := &cobra.Command{
		Use: "set NAME [KEY=VALUE...]", Short: "Make a secret or change it", Args: args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.secretNames(1),
		Long: `Make a secret, or change the values of some of its keys; what it has under other keys
stays, unless --replace is given. Sandboxes that wait for it start at once. Those that
have its values keep them until they are stopped and started, or replaced.

A value on the command line can be seen by everybody on this machine while the command
runs, and stays in the shell's history: prefer --from-file or --from-stdin. A value is
taken byte by byte, the line end at the end of a file too.`,
		Example: `  staddle secret set db --from-file password=/run/keys/db-password
  openssl rand -hex 32 | tr -d '\n' | staddle secret set session --from-stdin key`,
		RunE: func(cmd *cobra.Command, given []string) error {
			o.pairs = given[1:]
			return a.secretSet(cmd.Context(), given[0], o)
		},
	}
	c.Flags().StringArrayVar(&o.files, "from-file", nil, "value from a file, as `KEY=PATH`")
	c.Flags().StringVar(&o.stdin, "from-stdin", "", "`KEY` whose value is read from standard input")
	c.Flags().BoolVar(&o.replace, "replace", false, "remove what the secret has under other keys")
	completeFlags(c, nil, "from-file")
	return c
}

func (a *app) secretSet(ctx context.Context, name string, o secretOptions) error {
	if err := id.CheckName("secret", name); err != nil {
		return err
	}
	entries, err := a.secretEntries(o)
	if err != nil {
		return err
	}
	return a.withCluster(ctx, func(ctx context.Context, t *target.Cluster) error {
		kept, err := t.PutSecret(ctx, name, entries, o.replace)
		if err != nil {
			return err
		}
		if a.format == output.Table {
			_, err := fmt.Fprintf(a.out, "secret %s has %s\n", name, strings.Join(kept.GetKeys(), ", "))
			return err
		}
		return output.PrintOne(a.out, a.format, secretColumns, secretRow(time.Now(), kept))
	})
}

// maxSecretValue is the most that the contract takes of one value.
const maxSecretValue = 64 << 10

// secretEntries gathers the values from all that was given; no error repeats one.
func (a *app) secretEntries(o secretOptions) ([]*resourcev1.SecretEntry, error) {
	var entries []*resourcev1.SecretEntry
	var errs []error
	add := func(key string, value []byte, err error) {
		switch {
		case err != nil:
			errs = append(errs, err)
		case len(value) > maxSecretValue:
			errs = append(errs, exit.BadUsage("secret set: the value of %s has more than 64 KiB", key))
		case slices.ContainsFunc(entries, func(e *resourcev1.SecretEntry) bool { return e.GetKey() == key }):
			errs = append(errs, exit.BadUsage("secret set: key %s is given twice", key))
		default:
			entries = append(entries, &resourcev1.SecretEntry{Key: key, Value: value})
		}
	}
	for i, pair := range o.pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" { // the pair may be a value by mistake: it is not repeated
			errs = append(errs, exit.BadUsage("secret set: argument %d behind the name is not KEY=VALUE", i+1))
			continue
		}
		add(key, []byte(value), nil)
	}
	for _, pair := range o.files {
		key, path, ok := strings.Cut(pair, "=")
		if !ok || key == "" || path == "" {
			errs = append(errs, exit.BadUsage("--from-file %q: write KEY=PATH", pair))
			continue
		}
		value, err := readUpTo(path, maxSecretValue)
		if errors.Is(err, errTooLarge) {
			err = fmt.Errorf("%s has more than 64 KiB", path)
		}
		if err != nil {
			err = exit.BadUsage("--from-file: %w", err)
		}
		add(key, value, err)
	}
	if o.stdin != "" {
		value, err := io.ReadAll(io.LimitReader(a.in, maxSecretValue+1))
		add(o.stdin, value, err)
	}
	if len(errs) == 0 && len(entries) == 0 {
		return nil, exit.Try(exit.BadUsage("secret set: no value is given"), "staddle secret set NAME --from-stdin KEY")
	}
	return entries, joined(errs)
}

func (a *app) secretRemoveCommand() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "rm NAME...", Short: "Remove secrets", Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: a.secretNames(maxNames),
		Long: `Remove secrets with all their values. One that sandboxes refer to is not removed, unless
--force is given: they keep the values that they have until they are removed.`,
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withCluster(cmd.Context(), func(ctx context.Context, t *target.Cluster) error {
				var errs []error
				for _, name := range given {
					err := t.DeleteSecret(ctx, name, force)
					if err == nil {
						_, err = fmt.Fprintln(a.out, name)
					}
					errs = append(errs, err)
				}
				return joined(slices.DeleteFunc(errs, func(err error) bool { return err == nil }))
			})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also while sandboxes refer to it")
	return c
}

// maxNames is for commands that take any number of names.
const maxNames = 1 << 10

// secretNames offers the secrets that are not named yet, at most so many.
func (a *app) secretNames(most int) completer {
	return func(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(given) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeLimit)
		defer cancel()
		var names []string
		if err := a.withCluster(ctx, func(ctx context.Context, t *target.Cluster) error {
			secrets, err := t.Secrets(ctx)
			for _, s := range secrets {
				names = append(names, s.GetName())
			}
			return err
		}); err != nil { // a shell has no place for an error
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return without(names, given), cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) printSecrets(secrets []*coordinatorv1.Secret) error {
	rows := make([]output.Row, len(secrets))
	for i, s := range secrets {
		rows[i] = secretRow(time.Now(), s)
	}
	return output.Print(a.out, a.format, secretColumns, rows)
}

func secretRow(now time.Time, s *coordinatorv1.Secret) output.Row {
	return output.Row{
		ID: s.GetName(), Message: s,
		Cells: []string{
			s.GetName(), strings.Join(s.GetKeys(), ","), fmt.Sprint(s.GetRevision()),
			output.Age(now, s.GetCreatedAt()), output.Age(now, s.GetUpdatedAt()),
		},
	}
}
