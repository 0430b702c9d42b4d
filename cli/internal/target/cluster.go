package target

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/sandbox"
)

// Cluster is the resource API of a coordinator, and its secrets.
type Cluster struct {
	conn    *grpc.ClientConn
	api     coordinatorv1.ResourceServiceClient
	secrets coordinatorv1.SecretServiceClient
}

// Cluster connects to the coordinator.
func (s *Settings) Cluster(ctx context.Context) (*Cluster, error) {
	conn, err := s.coordinator(ctx)
	if err != nil {
		return nil, err
	}
	return NewCluster(conn), nil
}

// NewCluster uses a connection that is there already.
func NewCluster(conn *grpc.ClientConn) *Cluster {
	return &Cluster{conn, coordinatorv1.NewResourceServiceClient(conn), coordinatorv1.NewSecretServiceClient(conn)}
}

// Close ends the connection.
func (c *Cluster) Close() error { return c.conn.Close() }

// KindName is the word for a kind in messages and on the command line.
func KindName(k resourcev1.Kind) string {
	switch k {
	case resourcev1.Kind_KIND_SANDBOX:
		return "sandbox"
	case resourcev1.Kind_KIND_DISK:
		return "disk"
	case resourcev1.Kind_KIND_DISK_LEASE:
		return "disklease"
	case resourcev1.Kind_KIND_SERVICE:
		return "service"
	case resourcev1.Kind_KIND_NODE:
		return "node"
	default:
		return "resource"
	}
}

// Records returns all records of a kind that the selector takes.
func (c *Cluster) Records(ctx context.Context, kind resourcev1.Kind, selector string) ([]*resourcev1.Resource, error) {
	var out []*resourcev1.Resource
	for token := ""; ; {
		page, err := c.api.ListResources(ctx, &coordinatorv1.ListResourcesRequest{
			Kind: kind, LabelSelector: selector, PageSize: pageSize, PageToken: token,
		})
		if fault.Reason(err) == "COMPACTED" && token != "" {
			out, token = nil, "" // the history moved on under the pages: begin again
			continue
		}
		if err != nil {
			return nil, wrap(err, "list %s records", KindName(kind))
		}
		out = append(out, page.GetResources()...)
		if token = page.GetNextPageToken(); token == "" {
			return out, nil
		}
	}
}

// ByName returns a record by its exact name, read from the store.
func (c *Cluster) ByName(ctx context.Context, kind resourcev1.Kind, name string) (*resourcev1.Resource, error) {
	resp, err := c.api.GetResource(ctx, &coordinatorv1.GetResourceRequest{
		Kind: kind, Which: &coordinatorv1.GetResourceRequest_Name{Name: name},
	})
	if err != nil {
		return nil, wrap(err, "get %s %s", KindName(kind), name)
	}
	return resp.GetResource(), nil
}

// ByUID returns a record by its uid, read from the store.
func (c *Cluster) ByUID(ctx context.Context, kind resourcev1.Kind, uid string) (*resourcev1.Resource, error) {
	resp, err := c.api.GetResource(ctx, &coordinatorv1.GetResourceRequest{
		Kind: kind, Which: &coordinatorv1.GetResourceRequest_Uid{Uid: uid},
	})
	if err != nil {
		return nil, wrap(err, "get %s %s", KindName(kind), uid)
	}
	return resp.GetResource(), nil
}

// Lookup returns the record that ref names: by name from the store, else by uid
// or its beginning among all.
func (c *Cluster) Lookup(ctx context.Context, kind resourcev1.Kind, ref string) (*resourcev1.Resource, error) {
	if id.CheckName("name", ref) == nil {
		r, err := c.ByName(ctx, kind, ref)
		if err == nil || fault.KindOf(err) != fault.NotFound {
			return r, err
		}
	}
	all, err := c.Records(ctx, kind, "")
	if err != nil {
		return nil, err
	}
	named := make([]sandbox.Named, len(all))
	for i, r := range all {
		named[i] = sandbox.Named{Name: r.GetMeta().GetName(), UID: r.GetMeta().GetUid(), Removing: r.GetMeta().GetDeletingAt() != nil}
	}
	i, err := sandbox.Find(KindName(kind), ref, named)
	if err != nil {
		return nil, exit.Try(err, "staddle get %s", KindName(kind))
	}
	return all[i], nil
}

// CreateRecord writes a new record.
func (c *Cluster) CreateRecord(ctx context.Context, r *resourcev1.Resource) (*resourcev1.Resource, error) {
	resp, err := c.api.CreateResource(ctx, &coordinatorv1.CreateResourceRequest{Resource: r, RequestId: id.New()})
	if err != nil {
		kind, name := KindName(r.GetMeta().GetKind()), r.GetMeta().GetName()
		wrapped := wrap(err, "create %s %s", kind, name)
		if fault.KindOf(err) == fault.Exists {
			return nil, exit.Try(wrapped, "another name, or staddle delete %s %s", kind, name)
		}
		return nil, wrapped
	}
	return resp.GetResource(), nil
}

// UpdateRecord changes a record by change, which gets a copy of the newest one
// and is called again when somebody else was faster. A change that changes
// nothing is not sent.
func (c *Cluster) UpdateRecord(ctx context.Context, r *resourcev1.Resource, change func(*resourcev1.Resource) error) (*resourcev1.Resource, error) {
	kind, name, uid := r.GetMeta().GetKind(), r.GetMeta().GetName(), r.GetMeta().GetUid()
	var last error
	for range updateTries {
		next := proto.CloneOf(r)
		if err := change(next); err != nil {
			return nil, err
		}
		if proto.Equal(next, r) {
			return r, nil
		}
		resp, err := c.api.UpdateResource(ctx, &coordinatorv1.UpdateResourceRequest{Resource: next})
		if err == nil {
			return resp.GetResource(), nil
		}
		last = wrap(err, "update %s %s", KindName(kind), name)
		if fault.Reason(err) != "REVISION" {
			return nil, last
		}
		if r, err = c.ByUID(ctx, kind, uid); err != nil {
			return nil, err
		}
	}
	return nil, last
}

// DeleteRecord marks exactly this record as being deleted. One that is gone is a
// success.
func (c *Cluster) DeleteRecord(ctx context.Context, r *resourcev1.Resource) error {
	kind, name := r.GetMeta().GetKind(), r.GetMeta().GetName()
	_, err := c.api.DeleteResource(ctx, &coordinatorv1.DeleteResourceRequest{Kind: kind, Name: name, Uid: r.GetMeta().GetUid()})
	if err == nil || fault.KindOf(err) == fault.NotFound {
		return nil
	}
	wrapped := wrap(err, "delete %s %s", KindName(kind), name)
	if fault.Reason(err) == "IN_USE" && kind == resourcev1.Kind_KIND_DISK {
		return exit.Try(wrapped, "stop what uses it first: staddle disk ls")
	}
	return wrapped
}

// Change is one message of WatchRecords.
type Change struct {
	// Record that is there, has changed or is gone. Nil marks that all that were
	// there have been sent.
	Record *resourcev1.Resource
	// Gone is true when it is gone for good.
	Gone bool
}

// WatchRecords sends every record of the kind, the mark, and changes until emit
// fails or the stream ends.
func (c *Cluster) WatchRecords(ctx context.Context, kind resourcev1.Kind, selector string, emit func(Change) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	what := "watch " + KindName(kind) + " records"
	stream, err := c.api.WatchResources(ctx, &coordinatorv1.WatchResourcesRequest{Kinds: []resourcev1.Kind{kind}, LabelSelector: selector})
	if err != nil {
		return wrap(err, "%s", what)
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return ended(what, err)
		}
		change := Change{Record: msg.GetChanged()}
		if msg.GetDeleted() != nil {
			change = Change{Record: msg.GetDeleted(), Gone: true}
		}
		if err := emit(change); err != nil {
			return err
		}
	}
}
