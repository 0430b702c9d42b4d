package link

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/clusteraccess/internal/mirror"
)

const (
	// reasonCompacted is the coordinator's word for "begin again".
	reasonCompacted = "COMPACTED"
	// reasonOtherHistory is its word for a position that is not in its history.
	reasonOtherHistory = "OTHER_HISTORY"
	// reasonAnew marks an end after which the watch begins anew at once.
	reasonAnew = "BEGIN_ANEW"
	// maxRecords bounds what a node's mirror holds.
	maxRecords = 20_000
	// catchUpTimeout bounds how long a resumed watch may take to its marker.
	catchUpTimeout = 5 * time.Second
)

// watch is the stream of records, opened again and again by its follower.
type watch struct {
	client coordinatorv1.ResourceServiceClient
	mirror target
	from   string // this machine and boot
	anew   bool   // the next one does not resume
}

func newWatch(conn grpc.ClientConnInterface, m target, from string) *watch {
	return &watch{client: coordinatorv1.NewResourceServiceClient(conn), mirror: m, from: from}
}

// run follows one stream to its end and returns why it ended, never nil. live is
// called when the mirror has become live.
func (w *watch) run(ctx context.Context, live func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	at := w.mirror.Place()
	if w.anew || at.Term == "" { // what cannot be proved to go on begins anew
		at = mirror.Place{}
	}
	w.anew = false
	stream, err := w.client.WatchResources(ctx, &coordinatorv1.WatchResourcesRequest{
		ResumeAfterRevision: at.Revision, ResumeTerm: at.Term, Instance: w.from,
	})
	if err != nil {
		return w.ended(ctx, err)
	}
	b := &beginning{resumed: at.Revision > 0, at: at}
	if b.resumed {
		timer := time.AfterFunc(catchUpTimeout, func() { cancel(errNoMarker) })
		defer timer.Stop()
		err = b.read(stream)
		if !timer.Stop() && err == nil {
			err = errNoMarker
		}
	} else {
		err = b.read(stream)
	}
	if err != nil {
		return w.ended(ctx, err)
	}
	b.apply(w.mirror)
	live()
	return w.ended(ctx, w.follow(stream))
}

var errNoMarker = fault.WithReason(fault.New(fault.Unavailable, "watch records: a resumed watch did not catch up in time"), reasonAnew)

// ended says why the stream is over, and whether the next one must begin anew.
func (w *watch) ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if r := fault.Reason(err); r == reasonCompacted || r == reasonOtherHistory {
		err = fault.WithReason(err, reasonAnew)
	}
	w.anew = fault.Reason(err) == reasonAnew
	return err
}

// follow applies changes as they come.
func (w *watch) follow(stream grpc.ServerStreamingClient[coordinatorv1.WatchResourcesResponse]) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return streamEnd(err)
		}
		change, ok, err := changeOf(msg)
		if err != nil {
			return err
		}
		if ok {
			w.mirror.Apply([]mirror.Change{change}, msg.GetRevision())
		}
	}
}

// beginning is what a stream sends up to its marker.
type beginning struct {
	resumed bool
	at      mirror.Place // resumed from, then that of the marker
	changes []mirror.Change
}

func (b *beginning) read(stream grpc.ServerStreamingClient[coordinatorv1.WatchResourcesResponse]) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return streamEnd(err)
		}
		if marker := msg.GetSynced(); marker != nil {
			return b.finish(marker, msg.GetRevision())
		}
		change, ok, err := changeOf(msg)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if b.changes = append(b.changes, change); len(b.changes) > maxRecords {
			return fault.New(fault.Exhausted, "watch records: more than %d came before the marker", maxRecords)
		}
	}
}

// finish checks that a resumed watch went on in the same history.
func (b *beginning) finish(marker *coordinatorv1.SnapshotMarker, revision uint64) error {
	if marker.GetIncarnation() == "" {
		return fault.New(fault.Internal, "watch records: the marker names no incarnation")
	}
	if b.resumed && marker.GetIncarnation() != b.at.Incarnation {
		return fault.WithReason(fault.New(fault.Conflict,
			"watch records: the coordinator's history is %s and was %s", marker.GetIncarnation(), b.at.Incarnation), reasonAnew)
	}
	if b.resumed && revision < b.at.Revision {
		return fault.WithReason(fault.New(fault.Conflict,
			"watch records: the coordinator's history ends at %d and was at %d", revision, b.at.Revision), reasonAnew)
	}
	b.at = mirror.Place{Revision: revision, Incarnation: marker.GetIncarnation(), Term: marker.GetTerm()}
	return nil
}

func (b *beginning) apply(m target) {
	if b.resumed {
		m.CaughtUp(b.changes, b.at)
		return
	}
	at := make(map[string]int, len(b.changes))
	var records []*resourcev1.Resource
	for _, c := range b.changes {
		if i, twice := at[c.Record.GetMeta().GetUid()]; twice {
			records[i] = c.Record
			continue
		}
		at[c.Record.GetMeta().GetUid()] = len(records)
		records = append(records, c.Record)
	}
	m.Replace(records, b.at)
}

// changeOf reads one message. An event of a later version of the contract is
// passed over; a record without uid is a fault of the sender.
func changeOf(msg *coordinatorv1.WatchResourcesResponse) (mirror.Change, bool, error) {
	c := mirror.Change{Record: msg.GetChanged()}
	if msg.GetDeleted() != nil {
		c = mirror.Change{Record: msg.GetDeleted(), Deleted: true}
	}
	if c.Record == nil {
		return c, false, nil
	}
	if c.Record.GetMeta().GetUid() == "" {
		return c, false, fault.New(fault.Internal, "watch records: a record has no uid")
	}
	return c, true, nil
}

// streamEnd makes a clean end a failure: a watch has none.
func streamEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return fault.New(fault.Unavailable, "watch records: the coordinator closed the stream")
	}
	return err
}
