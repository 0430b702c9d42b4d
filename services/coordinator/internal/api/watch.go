package api

import (
	"context"
	"crypto/sha256"
	"encoding/base64"

	"google.golang.org/grpc"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/selector"

	"staddle.internal/services/coordinator/internal/mirror"
	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/rights"
)

// stream is the server's end of a watch.
type stream = grpc.ServerStreamingServer[coordinatorv1.WatchResourcesResponse]

// watcher is one watch: what it may see, and where it sends.
type watcher struct {
	caller rights.Caller
	from   string // the machine and boot of a node
	kinds  map[record.Kind]bool
	want   selector.Selector
	out    stream
}

// WatchResources serves one watch until the caller leaves, or the watch has to
// begin again.
func (s *Resources) WatchResources(req *coordinatorv1.WatchResourcesRequest, out stream) error {
	c, err := s.caller(out.Context())
	if err != nil {
		return err
	}
	if err := s.oneMachine(c, req.GetInstance()); err != nil {
		return err
	}
	w := &watcher{caller: c, from: req.GetInstance(), kinds: map[record.Kind]bool{}, out: out}
	if w.want, err = selector.Parse(req.GetLabelSelector()); err != nil {
		return err
	}
	kinds := req.GetKinds()
	if len(kinds) == 0 {
		kinds = record.Kinds()
	}
	for _, k := range kinds {
		if err := c.May(rights.Read, k); err != nil {
			return err
		}
		w.kinds[k] = true
	}
	reader, err := s.begin(req, w)
	if err != nil {
		return err
	}
	return s.follow(reader, w)
}

// begin sends what comes before the first change.
func (s *Resources) begin(req *coordinatorv1.WatchResourcesRequest, w *watcher) (*mirror.Reader, error) {
	if after := req.GetResumeAfterRevision(); after != 0 {
		return s.resume(req.GetResumeTerm(), after, w)
	}
	kinds := make([]record.Kind, 0, len(w.kinds))
	for k := range w.kinds {
		kinds = append(kinds, k)
	}
	snapshot, reader, err := s.deps.Mirror.Begin(kinds)
	if err != nil {
		return nil, err
	}
	for _, r := range snapshot.Records {
		if w.sees(r) {
			if err := w.send(0, &coordinatorv1.WatchResourcesResponse_Changed{Changed: r}); err != nil {
				return nil, err
			}
		}
	}
	return reader, w.marker(snapshot)
}

// resume goes on after a position, if that is in this history.
func (s *Resources) resume(term string, after uint64, w *watcher) (*mirror.Reader, error) {
	if term != "" {
		if err := s.deps.Store().Contains(w.out.Context(), term, after); err != nil {
			return nil, err
		}
	}
	reader, err := s.deps.Mirror.Resume(w.out.Context(), after)
	if err != nil {
		return nil, err
	}
	return reader, w.catchUp(reader)
}

// catchUp sends what a resumed watch missed, then the marker: by it the caller
// knows that the history is the one it knew, and that it has caught up.
func (w *watcher) catchUp(reader *mirror.Reader) error {
	for {
		events, now, err := reader.Backlog()
		if err != nil {
			return err
		}
		if len(events) == 0 {
			return w.marker(now)
		}
		for _, e := range events {
			if err := w.event(e); err != nil {
				return err
			}
		}
	}
}

func (w *watcher) marker(s mirror.Snapshot) error {
	return w.out.Send(&coordinatorv1.WatchResourcesResponse{
		Event: &coordinatorv1.WatchResourcesResponse_Synced{
			Synced: &coordinatorv1.SnapshotMarker{Incarnation: s.Incarnation, Term: s.Term},
		},
		Revision: s.Revision,
	})
}

// follow sends changes as they come.
func (s *Resources) follow(reader *mirror.Reader, w *watcher) error {
	for {
		events, err := reader.Next(w.out.Context())
		if err != nil {
			if ended(err) {
				return context.Cause(w.out.Context())
			}
			return err
		}
		if err := s.oneMachine(w.caller, w.from); err != nil { // a session begins with a change of the node's record
			return err
		}
		for _, e := range events {
			if err := w.event(e); err != nil {
				return err
			}
		}
		if n := w.caller.Node(); n != "" && s.deps.Mirror.Removed(n) {
			return fault.WithReason(fault.New(fault.Denied, "watch records: node %s was removed", n), "NODE_REMOVED")
		}
	}
}

func (w *watcher) sees(r *record.Resource) bool {
	return r != nil && w.kinds[record.Body(r)] && w.caller.Sees(r) && w.want.Matches(r.GetMeta().GetLabels())
}

// event sends one change as this watcher sees it: what leaves its view is gone
// for it, in the state in which it left.
func (w *watcher) event(e mirror.Event) error {
	switch before, after := w.sees(e.Before), w.sees(e.Record); {
	case after:
		return w.send(e.Position, &coordinatorv1.WatchResourcesResponse_Changed{Changed: e.Record})
	case before && e.Record != nil:
		return w.sendDeleted(e.Position, e.Record)
	case before:
		return w.sendDeleted(e.Position, e.Before)
	}
	return nil
}

func (w *watcher) send(position uint64, changed *coordinatorv1.WatchResourcesResponse_Changed) error {
	return w.out.Send(&coordinatorv1.WatchResourcesResponse{Event: changed, Revision: position})
}

func (w *watcher) sendDeleted(position uint64, last *record.Resource) error {
	return w.out.Send(&coordinatorv1.WatchResourcesResponse{
		Event: &coordinatorv1.WatchResourcesResponse_Deleted{Deleted: last}, Revision: position,
	})
}

// digest shortens a selector for a token that has its own bound.
func digest(text string) string {
	if text == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}
