package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/manifest"
	"staddle.internal/cli/internal/target"
)

func (a *app) applyCommand() *cobra.Command {
	var files []string
	c := &cobra.Command{
		Use: "apply -f FILE|-", Short: "Create or change records as files say", Args: args(cobra.NoArgs),
		Long: `Create the records of one or more YAML files, or change those that are there, to
labels and spec in the file. All documents are checked before anything is sent:
an unknown key, a wrong type or a value out of bounds refuses the whole.
When somebody else changed a record meanwhile, the change is made on top; unless
the document has a generation, as "staddle get -o yaml" prints it: then it is
refused, since it would undo what was changed after it was printed.`,
		Example: `  staddle apply -f - <<EOF
  kind: Sandbox
  name: web
  labels: {app: web}
  spec:
    restart_policy: always
    containers:
    - name: main
      image: registry.example/web:1
      limits: {memory_limit_bytes: 64MiB}
  EOF`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			docs, err := a.readDocuments(files)
			if err != nil {
				return err
			}
			return a.withCluster(cmd.Context(), func(ctx context.Context, t *target.Cluster) error {
				return a.applyAll(ctx, t, docs)
			})
		},
	}
	c.Flags().StringArrayVarP(&files, "file", "f", nil, "`FILE` to read; \"-\" is standard input; may be given again")
	completeFlags(c, nil, "file")
	return c
}

// readDocuments reads all files; what is wrong in any of them is said at once.
func (a *app) readDocuments(files []string) ([]manifest.Document, error) {
	if len(files) == 0 {
		return nil, exit.Try(exit.BadUsage("apply: no file is given"), "staddle apply -f FILE")
	}
	var docs []manifest.Document
	var errs []error
	for _, name := range files {
		some, err := a.readFile(name)
		if err != nil {
			errs = append(errs, err)
		}
		docs = append(docs, some...)
	}
	return docs, joined(errs)
}

func (a *app) readFile(name string) ([]manifest.Document, error) {
	if name == "-" {
		return manifest.Read("standard input", a.in)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, &config.Error{File: name, Problems: []config.Problem{{Text: errors.Unwrap(err).Error()}}}
	}
	docs, err := manifest.Read(name, io.Reader(f))
	return docs, errors.Join(err, f.Close())
}

func (a *app) applyAll(ctx context.Context, t *target.Cluster, docs []manifest.Document) error {
	var errs []error
	for _, doc := range docs {
		r, done, err := applyOne(ctx, t, doc)
		if err == nil {
			err = a.printRecord(r, done)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", doc.Where, err))
		}
	}
	return joined(errs)
}

// applyOne creates the record or puts labels and spec of the document on the
// newest one. A record that appears or goes away between question and act is
// asked for again, once.
func applyOne(ctx context.Context, t *target.Cluster, doc manifest.Document) (*resourcev1.Resource, string, error) {
	meta := doc.Record.GetMeta()
	for again := false; ; again = true {
		now, err := t.ByName(ctx, meta.GetKind(), meta.GetName())
		if fault.KindOf(err) == fault.NotFound {
			if doc.UID != "" {
				return nil, "", fmt.Errorf("the document has uid %s: %w", doc.UID, err)
			}
			r, err := t.CreateRecord(ctx, doc.Record)
			if fault.KindOf(err) == fault.Exists && !again {
				continue
			}
			return r, "created", err
		}
		if err != nil {
			return nil, "", err
		}
		if uid := now.GetMeta().GetUid(); doc.UID != "" && doc.UID != uid {
			return nil, "", exit.Try(fault.New(fault.Conflict, "%s %s has uid %s now, the document is about %s",
				target.KindName(meta.GetKind()), meta.GetName(), uid, doc.UID), "remove uid from the document to change the one that is there")
		}
		r, done, err := change(ctx, t, now, doc)
		if fault.KindOf(err) == fault.NotFound && !again {
			continue
		}
		return r, done, err
	}
}

func change(ctx context.Context, t *target.Cluster, now *resourcev1.Resource, doc manifest.Document) (*resourcev1.Resource, string, error) {
	r, err := t.UpdateRecord(ctx, now, func(r *resourcev1.Resource) error {
		before := proto.CloneOf(r)
		if err := put(r, doc.Record); err != nil {
			return err
		}
		if at := r.GetMeta().GetGeneration(); doc.Generation != 0 && doc.Generation != at && !proto.Equal(before, r) {
			return overtaken(r.GetMeta(), doc.Generation)
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	if r.GetMeta().GetRevision() == now.GetMeta().GetRevision() {
		return r, "unchanged", nil
	}
	return r, "changed", nil
}

// put gives a record the labels and the spec of a document.
func put(r, doc *resourcev1.Resource) error {
	r.Meta.Labels = doc.GetMeta().GetLabels()
	switch r.GetMeta().GetKind() {
	case resourcev1.Kind_KIND_SANDBOX:
		r.GetSandbox().Spec = proto.CloneOf(doc.GetSandbox().GetSpec())
	case resourcev1.Kind_KIND_DISK:
		r.GetDisk().Spec = proto.CloneOf(doc.GetDisk().GetSpec())
	case resourcev1.Kind_KIND_SERVICE:
		r.GetService().Spec = proto.CloneOf(doc.GetService().GetSpec())
	case resourcev1.Kind_KIND_NODE:
		r.GetNode().Spec = proto.CloneOf(doc.GetNode().GetSpec())
	default:
		return fault.New(fault.Invalid, "apply %s: records of this kind are not written by hand", target.KindName(r.GetMeta().GetKind()))
	}
	return nil
}

// overtaken refuses a document that was made from an older spec.
func overtaken(meta *resourcev1.Metadata, from uint64) error {
	kind, name := target.KindName(meta.GetKind()), meta.GetName()
	return exit.Try(fault.New(fault.Conflict, "%s %s was changed meanwhile: it has generation %d now, the document was made from %d",
		kind, name, meta.GetGeneration(), from),
		"staddle get %s %s -o yaml and make the change again, or remove generation from the document to undo what others changed", kind, name)
}
