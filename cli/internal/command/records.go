package command

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"
)

// kindWords are the words for kinds on the command line.
var kindWords = map[string]resourcev1.Kind{
	"sandbox": resourcev1.Kind_KIND_SANDBOX, "sandboxes": resourcev1.Kind_KIND_SANDBOX,
	"disk": resourcev1.Kind_KIND_DISK, "disks": resourcev1.Kind_KIND_DISK,
	"disklease": resourcev1.Kind_KIND_DISK_LEASE, "diskleases": resourcev1.Kind_KIND_DISK_LEASE,
	"service": resourcev1.Kind_KIND_SERVICE, "services": resourcev1.Kind_KIND_SERVICE,
	"node": resourcev1.Kind_KIND_NODE, "nodes": resourcev1.Kind_KIND_NODE,
}

const kindList = "sandbox, service, disk, disklease or node"

// kindOf reads the first argument; the others are for the command that it suggests.
func kindOf(cmd *cobra.Command, given []string) (resourcev1.Kind, error) {
	word := strings.ToLower(given[0])
	if k, ok := kindWords[word]; ok {
		return k, nil
	}
	err := exit.BadUsage("there is no kind %q: write %s", word, kindList)
	var known []string
	for w := range kindWords {
		known = append(known, w)
	}
	if near := config.Nearest(word, known); near != "" {
		return 0, exit.Try(err, "%s", strings.Join(append([]string{cmd.CommandPath(), near}, given[1:]...), " "))
	}
	return 0, err
}

// withCluster runs fn with the coordinator, and says so where a node alone was
// asked for.
func (a *app) withCluster(ctx context.Context, fn func(context.Context, *target.Cluster) error) (err error) {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	if settings.Direct {
		return exit.Try(exit.BadUsage("records are kept by a coordinator, not by a node alone"), "the same command without --node-socket")
	}
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	c, err := settings.Cluster(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return fn(ctx, c)
}

func (a *app) getCommand() *cobra.Command {
	var watch bool
	var selector string
	c := &cobra.Command{
		Use: "get KIND [NAME|UID]", Short: "Show records", Args: args(cobra.RangeArgs(1, 2)), ValidArgsFunction: a.recordNames(1),
		Long: "Show records of a kind (" + kindList + "), or one of them. What -o yaml\n" +
			"prints can be changed and given to \"staddle apply -f\".",
		RunE: func(cmd *cobra.Command, given []string) error {
			kind, err := kindOf(cmd, given)
			if err != nil {
				return err
			}
			return a.withCluster(cmd.Context(), func(ctx context.Context, t *target.Cluster) error {
				if len(given) == 2 {
					return a.getOne(ctx, t, kind, given[1], watch)
				}
				return a.getAll(ctx, t, kind, selector, watch)
			})
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "go on with a line per change")
	c.Flags().StringVarP(&selector, "selector", "l", "", "only records with these labels: `KEY=VALUE,...`")
	return c
}

func (a *app) getOne(ctx context.Context, t *target.Cluster, kind resourcev1.Kind, ref string, watch bool) error {
	r, err := t.Lookup(ctx, kind, ref)
	if err != nil {
		return err
	}
	if watch {
		return a.watchRecords(ctx, t, kind, "", r.GetMeta().GetUid())
	}
	return output.PrintOne(a.out, a.format, columnsOf(kind), recordRow(time.Now(), r))
}

func (a *app) getAll(ctx context.Context, t *target.Cluster, kind resourcev1.Kind, selector string, watch bool) error {
	if watch {
		return a.watchRecords(ctx, t, kind, selector, "")
	}
	records, err := t.Records(ctx, kind, selector)
	if err != nil {
		return err
	}
	now := time.Now()
	rows := make([]output.Row, len(records))
	for i, r := range records {
		rows[i] = recordRow(now, r)
	}
	return output.Print(a.out, a.format, columnsOf(kind), rows)
}

func (a *app) watchRecords(ctx context.Context, t *target.Cluster, kind resourcev1.Kind, selector, uid string) error {
	l := &live{app: a, columns: columnsOf(kind)}
	return t.WatchRecords(ctx, kind, selector, func(c target.Change) error {
		if c.Record == nil {
			return l.synced()
		}
		if uid != "" && c.Record.GetMeta().GetUid() != uid {
			return nil
		}
		return l.changed(recordRow(time.Now(), c.Record), c.Gone)
	})
}

func (a *app) deleteCommand() *cobra.Command {
	var noWait bool
	c := &cobra.Command{
		Use: "delete KIND NAME|UID...", Short: "Delete records", Args: args(cobra.MinimumNArgs(2)), ValidArgsFunction: a.recordNames(math.MaxInt),
		Long: "Delete records and wait until they are gone: a sandbox is torn down by its node\n" +
			"first. A disk is deleted with what is on it. A service is gone when its record is;\n" +
			"nodes that are away learn of it when they are back.",
		RunE: func(cmd *cobra.Command, given []string) error {
			kind, err := kindOf(cmd, given)
			if err != nil {
				return err
			}
			if kind == resourcev1.Kind_KIND_DISK_LEASE {
				return exit.Try(exit.BadUsage("a disk lease is not deleted by hand: it goes away with its sandbox"), "staddle rm SANDBOX")
			}
			return a.withCluster(cmd.Context(), func(ctx context.Context, t *target.Cluster) error {
				return a.deleteAll(ctx, t, kind, given[1:], !noWait)
			})
		},
	}
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until they are gone")
	return c
}

func (a *app) deleteAll(ctx context.Context, t *target.Cluster, kind resourcev1.Kind, refs []string, wait bool) error {
	var errs []error
	for _, ref := range refs {
		if err := a.deleteOne(ctx, t, kind, ref, wait); err != nil {
			errs = append(errs, err)
		}
	}
	return joined(errs)
}

func (a *app) deleteOne(ctx context.Context, t *target.Cluster, kind resourcev1.Kind, ref string, wait bool) error {
	r, err := t.Lookup(ctx, kind, ref)
	if err != nil {
		return err
	}
	if err := a.deleteWhenFree(ctx, t, r); err != nil {
		return err
	}
	if wait {
		if err := a.untilGone(ctx, t, r); err != nil {
			return exit.Try(err, "staddle get %s %s; the deletion goes on by itself", target.KindName(kind), r.GetMeta().GetName())
		}
	}
	return a.printRecord(r, "deleted")
}

// deleteWhenFree deletes a record. A disk whose holder was removed a moment ago is
// held until its node has given it back, which is waited for.
func (a *app) deleteWhenFree(ctx context.Context, t *target.Cluster, r *resourcev1.Resource) error {
	ctx, cancel := context.WithTimeout(ctx, waitRelease)
	defer cancel()
	for tries := 1; ; tries++ {
		err := t.DeleteRecord(ctx, r)
		if fault.Reason(err) != "IN_USE" || r.GetMeta().GetKind() != resourcev1.Kind_KIND_DISK {
			return err
		}
		now, getErr := t.ByUID(ctx, resourcev1.Kind_KIND_DISK, r.GetMeta().GetUid())
		if getErr != nil {
			return errors.Join(err, getErr)
		}
		if holder := now.GetDisk().GetPlacement().GetHolder(); holder != "" {
			if _, getErr := t.ByUID(ctx, resourcev1.Kind_KIND_SANDBOX, holder); fault.KindOf(getErr) != fault.NotFound {
				return err
			}
		}
		if waitErr := backoff.Wait(ctx, reconnect.Delay(tries, 0.5)); waitErr != nil {
			return err
		}
	}
}

// untilGone waits until a record is not there any more. What a watch begins with
// may be older than the deletion, so the end is confirmed by asking.
func (a *app) untilGone(ctx context.Context, t *target.Cluster, r *resourcev1.Resource) error {
	ctx, cancel := a.bounded(ctx, waitStopped)
	defer cancel()
	kind, uid := r.GetMeta().GetKind(), r.GetMeta().GetUid()
	seen := false
	err := t.WatchRecords(ctx, kind, "", func(c target.Change) error {
		switch {
		case c.Record.GetMeta().GetUid() == uid && c.Gone:
			return errEnough
		case c.Record.GetMeta().GetUid() == uid:
			seen = true
		case c.Record == nil && !seen:
			if _, err := t.ByUID(ctx, kind, uid); fault.KindOf(err) == fault.NotFound {
				return errEnough
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fault.New(fault.Unavailable, "delete %s %s: not gone in time", target.KindName(kind), r.GetMeta().GetName())
	}
	return err
}

// printRecord says what was done to a record; with -o it prints the record.
func (a *app) printRecord(r *resourcev1.Resource, done string) error {
	kind := r.GetMeta().GetKind()
	if a.format != output.Table {
		return output.PrintOne(a.out, a.format, columnsOf(kind), recordRow(time.Now(), r))
	}
	_, err := fmt.Fprintf(a.out, "%s %s %s\n", target.KindName(kind), r.GetMeta().GetName(), done)
	return err
}

func (a *app) diskCommand() *cobra.Command {
	var node string
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a disk", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withCluster(cmd.Context(), func(ctx context.Context, t *target.Cluster) error {
				r, err := t.CreateRecord(ctx, &resourcev1.Resource{
					Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_DISK, Name: given[0]},
					Kind: &resourcev1.Resource_Disk{Disk: &resourcev1.Disk{Spec: &resourcev1.DiskSpec{Node: node}}},
				})
				if err != nil {
					return err
				}
				return a.printRecord(r, "created")
			})
		},
	}
	create.Flags().StringVar(&node, "node", "", "`NODE` to make it on (default: chosen at its first use)")
	remove := &cobra.Command{
		Use: "rm NAME|UID...", Short: "Delete disks with what is on them", Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: a.diskNames,
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withCluster(cmd.Context(), func(ctx context.Context, t *target.Cluster) error {
				return a.deleteAll(ctx, t, resourcev1.Kind_KIND_DISK, given, true)
			})
		},
	}
	return group("disk", "Disks: durable volumes of sandboxes", create, a.listCommand("List disks", resourcev1.Kind_KIND_DISK), remove)
}

func (a *app) listCommand(short string, kind resourcev1.Kind) *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use: "ls", Short: short, Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withCluster(cmd.Context(), func(ctx context.Context, t *target.Cluster) error {
				return a.getAll(ctx, t, kind, "", watch)
			})
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "go on with a line per change")
	return c
}
