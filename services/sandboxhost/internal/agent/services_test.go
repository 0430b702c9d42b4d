package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

func serviceRecord(uid string, generation, revision uint64) *resourcev1.Resource {
	return &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_SERVICE, Uid: uid, Name: "s-" + strings.ToLower(uid), Generation: generation, Revision: revision},
		Kind: &resourcev1.Resource_Service{Service: &resourcev1.Service{
			Spec:      &resourcev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []*resourcev1.ServicePort{{Port: 80}}},
			Placement: &resourcev1.ServicePlacement{Address: "10.78.128.1"},
		}},
	}
}

func wishOf(r *resourcev1.Resource, at *resourcev1.Position) *sandboxhostv1.ServiceWish {
	return &sandboxhostv1.ServiceWish{
		Uid: r.GetMeta().GetUid(), Name: r.GetMeta().GetName(), Manager: manager, Generation: r.GetMeta().GetGeneration(),
		Spec: r.GetService().GetSpec(), Address: r.GetService().GetPlacement().GetAddress(), Position: at,
	}
}

func TestPlanServices(t *testing.T) {
	at := &resourcev1.Position{Term: termOne, Revision: 5}
	other := serviceRecord("A", 2, 5)
	other.GetService().GetSpec().Ports[0].Port = 81
	for name, tt := range map[string]struct {
		record *resourcev1.Resource
		wish   *sandboxhostv1.ServiceWish
		seen   *resourcev1.Position
		term   string
		absent string // the position that is asked about
		ensure string // the position that is handed over
	}{
		"a new record":                          {record: serviceRecord("A", 1, 5), term: termOne, ensure: termOne + " 7"},
		"a new record in a store that is full":  {record: serviceRecord("A", 1, 5), ensure: "none"},
		"a record ahead of the mirror's state":  {record: serviceRecord("A", 1, 9), term: termOne},
		"a record that is one ahead":            {record: serviceRecord("A", 1, 8), term: termOne, ensure: termOne + " 8"},
		"a kept wish":                           {record: serviceRecord("A", 2, 5), wish: wishOf(serviceRecord("A", 2, 5), at), term: termOne},
		"a changed spec":                        {record: serviceRecord("A", 2, 5), wish: wishOf(serviceRecord("A", 1, 5), at), term: termOne, ensure: termOne + " 7"},
		"a wish of a later generation":          {record: serviceRecord("A", 2, 5), wish: wishOf(serviceRecord("A", 3, 5), at), term: termOne},
		"another spec of the same generation":   {record: serviceRecord("A", 2, 5), wish: wishOf(other, at), term: termOne, ensure: termOne + " 7"},
		"a wish without a position":             {record: serviceRecord("A", 2, 5), wish: wishOf(serviceRecord("A", 2, 5), nil), term: termOne, ensure: termOne + " 7"},
		"a missing record":                      {wish: wishOf(serviceRecord("A", 2, 5), at), term: termOne, absent: termOne + " 5"},
		"a missing record that was seen since":  {wish: wishOf(serviceRecord("A", 2, 5), at), seen: &resourcev1.Position{Term: termTwo, Revision: 6}, absent: termTwo + " 6"},
		"a missing record of an unknown moment": {wish: wishOf(serviceRecord("A", 2, 5), nil), term: termOne, absent: "none"},
	} {
		f := serviceFacts{
			Records: map[string]*resourcev1.Resource{}, Wishes: map[string]*sandboxhostv1.ServiceWish{}, Seen: map[string]*resourcev1.Position{},
			Mirror: &clusteraccessv1.MirrorState{Live: true, Term: tt.term, Revision: 7},
		}
		if tt.record != nil {
			f.Records["A"] = tt.record
		}
		if tt.wish != nil {
			f.Wishes["A"] = tt.wish
		}
		if tt.seen != nil {
			f.Seen["A"] = tt.seen
		}
		absent, ensure := planServices(f)
		var asked, handed string
		for _, a := range absent {
			asked += positionText(a.at)
		}
		for _, e := range ensure {
			handed += positionText(e.at)
		}
		if asked != tt.absent || handed != tt.ensure {
			t.Errorf("%s: got asked about %q and handed over %q, want %q and %q", name, asked, handed, tt.absent, tt.ensure)
		}
	}
}

func positionText(at *resourcev1.Position) string {
	if at == nil {
		return "none"
	}
	return fmt.Sprint(at.GetTerm(), " ", at.GetRevision())
}

// serviceWorld is the coordinator behind a mirror, and a host that keeps services.
type serviceWorld struct {
	mu       sync.Mutex // guards all below
	truth    map[string]*resourcev1.Resource
	term     string
	revision uint64
	streams  map[chan *clusteraccessv1.WatchResourcesResponse]bool
	kept     map[string]*sandboxhostv1.ServiceWish
	refusal  map[string]error // by uid
	deaf     bool             // the host does not answer
	away     bool             // the coordinator does not answer
	foreign  int
	refused  int
}

func (w *serviceWorld) Watch(ctx context.Context, tell func(*clusteraccessv1.WatchResourcesResponse)) error {
	stream := make(chan *clusteraccessv1.WatchResourcesResponse, 100)
	w.mu.Lock()
	stream <- &clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Snapshot{}}
	for _, r := range w.truth {
		stream <- &clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Changed{Changed: r}}
	}
	stream <- w.stateLocked()
	w.streams[stream] = true
	w.mu.Unlock()
	for {
		select {
		case msg, ok := <-stream:
			if !ok {
				return fault.New(fault.Unavailable, "cut")
			}
			tell(msg)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (w *serviceWorld) stateLocked() *clusteraccessv1.WatchResourcesResponse {
	return &clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Mirror{
		Mirror: &clusteraccessv1.MirrorState{Live: !w.away, Term: w.term, Revision: w.revision},
	}}
}

func (w *serviceWorld) sendLocked(msgs ...*clusteraccessv1.WatchResourcesResponse) {
	for stream := range w.streams {
		for _, msg := range append(msgs, w.stateLocked()) {
			stream <- msg
		}
	}
}

// put writes a record, cut ends all streams, and drop removes a record, of which a stream
// tells.
func (w *serviceWorld) put(r *resourcev1.Resource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revision++
	r.Meta.Revision = w.revision
	w.truth[r.GetMeta().GetUid()] = r
	w.sendLocked(&clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Changed{Changed: r}})
}

func (w *serviceWorld) drop(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revision++
	last := w.truth[uid]
	delete(w.truth, uid)
	w.sendLocked(&clusteraccessv1.WatchResourcesResponse{Event: &clusteraccessv1.WatchResourcesResponse_Deleted{Deleted: last}})
}

func (w *serviceWorld) cut(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for stream := range w.streams {
		close(stream)
	}
	clear(w.streams)
	change()
}

func (w *serviceWorld) Get(_ context.Context, uid string, at *resourcev1.Position) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.away:
		return fault.New(fault.Unavailable, "away")
	case w.truth[uid] != nil:
		return nil
	case at.GetTerm() != w.term || at.GetRevision() > w.revision:
		return fault.WithReason(fault.New(fault.Conflict, "another history"), reasonOtherHistory)
	}
	return fault.New(fault.NotFound, "gone")
}

func (w *serviceWorld) Services(context.Context) ([]*sandboxhostv1.ServiceWish, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deaf {
		return nil, fault.New(fault.Unavailable, "starting")
	}
	return slices.Collect(maps.Values(w.kept)), nil
}

func (w *serviceWorld) EnsureService(_ context.Context, r *resourcev1.Resource, at *resourcev1.Position) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.refusal[r.GetMeta().GetUid()]; err != nil {
		return err
	}
	for uid, other := range w.kept {
		if uid != r.GetMeta().GetUid() && samePort(r.GetService().GetSpec(), other.GetSpec()) {
			return fault.WithReason(fault.New(fault.Conflict, "service %s has the port", other.GetName()), "HOST_PORT_TAKEN")
		}
	}
	w.kept[r.GetMeta().GetUid()] = wishOf(r, at)
	return nil
}

// samePort says whether two services have a port of the node in common.
func samePort(one, other *resourcev1.ServiceSpec) bool {
	for _, p := range one.GetPorts() {
		for _, q := range other.GetPorts() {
			if p.GetNodePort() != 0 && portOf(p) == portOf(q) {
				return true
			}
		}
	}
	return false
}

func (w *serviceWorld) RemoveService(_ context.Context, uid string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.kept, uid)
	return nil
}

// inServices runs the loop in a bubble, and gives what holds once it has settled.
func inServices(t *testing.T, f func(w *serviceWorld, holds func(why, want string))) {
	synctest.Test(t, func(t *testing.T) {
		w := &serviceWorld{
			truth: map[string]*resourcev1.Resource{}, term: termOne, streams: map[chan *clusteraccessv1.WatchResourcesResponse]bool{},
			kept: map[string]*sandboxhostv1.ServiceWish{}, refusal: map[string]error{},
		}
		note := func(into *int) func(int) {
			return func(n int) {
				w.mu.Lock()
				defer w.mu.Unlock()
				*into = n
			}
		}
		loop := NewServices(time.Hour, ServiceDeps{Records: w, Host: w, Log: quiet, Foreign: note(&w.foreign), Refused: note(&w.refused)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = loop.Run(ctx, func() {}) // it ends with ctx
		}()
		f(w, func(why, want string) {
			t.Helper()
			settle := time.NewTimer(2 * retryCap) // of the bubble: what failed is tried again within
			<-settle.C
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			got := fmt.Sprintf("%s foreign %d refused %d", strings.Join(slices.Sorted(maps.Keys(w.kept)), ","), w.foreign, w.refused)
			if got != want {
				t.Errorf("%s: got %s, want %s", why, got, want)
			}
		})
		cancel()
		<-ended
	})
}

// Services come with their records and go with them; those that are refused hinder no
// other, and are taken when the cause is gone.
func TestServices_FollowTheRecords(t *testing.T) {
	inServices(t, func(w *serviceWorld, holds func(why, want string)) {
		w.refusal["B"] = fault.WithReason(fault.New(fault.Conflict, "the name is a local one's"), "NAME_TAKEN")
		w.refusal["D"] = fault.WithReason(fault.New(fault.Denied, "no services"), reasonNoServices)
		for _, uid := range []string{"A", "B", "C", "D"} {
			w.put(serviceRecord(uid, 1, 0))
		}
		holds("at first", "A,C foreign 0 refused 1")
		w.cut(func() { w.refusal = map[string]error{} })
		holds("when nothing is refused", "A,B,C,D foreign 0 refused 0")
		w.drop("A")
		holds("when one is deleted", "B,C,D foreign 0 refused 0")
		changed := serviceRecord("B", 2, 0)
		changed.GetService().GetSpec().Ports[0].Port = 81
		w.put(changed)
		holds("after a change", "B,C,D foreign 0 refused 0")
		if got := w.kept["B"]; !proto.Equal(got.GetSpec(), changed.GetService().GetSpec()) {
			t.Errorf("got %v, want the changed one", got)
		}
	})
}

// Services that swapped their ports of the nodes in a circle are all taken by a host that was away meanwhile.
func TestServices_SwapPortsOfTheNode(t *testing.T) {
	record := func(uid string, generation uint64, port uint32) *resourcev1.Resource {
		r := serviceRecord(uid, generation, 0)
		r.GetService().GetSpec().Ports[0].NodePort = port
		return r
	}
	inServices(t, func(w *serviceWorld, holds func(why, want string)) {
		for i, uid := range []string{"A", "B", "C"} {
			w.put(record(uid, 1, 30080+uint32(i)))
		}
		holds("at first", "A,B,C foreign 0 refused 0")
		w.cut(func() { w.deaf = true })
		// C gave its port up for another, B took it, A that of B, and C that of A.
		for _, r := range []*resourcev1.Resource{record("C", 2, 30090), record("B", 2, 30082), record("A", 2, 30081), record("C", 3, 30080)} {
			w.put(r)
		}
		w.cut(func() { w.deaf = false })
		holds("in a circle", "A,B,C foreign 0 refused 0")
		for uid, r := range w.truth {
			if got := w.kept[uid]; !proto.Equal(got.GetSpec(), r.GetService().GetSpec()) || got.GetGeneration() != r.GetMeta().GetGeneration() {
				t.Errorf("service %s: got %v, want %v", uid, got, r)
			}
		}
	})
}

// Only a coordinator that answers, of a history that contains the wish, ends one.
func TestServices_NothingGoesWithoutProof(t *testing.T) {
	inServices(t, func(w *serviceWorld, holds func(why, want string)) {
		for _, uid := range []string{"A", "B"} {
			w.put(serviceRecord(uid, 1, 0))
		}
		holds("at first", "A,B foreign 0 refused 0")
		w.cut(func() { w.away, w.deaf = true, true; delete(w.truth, "A") })
		holds("while nobody answers", "A,B foreign 0 refused 0")
		w.cut(func() { w.away = false })
		holds("while the host does not", "A,B foreign 0 refused 0")
		w.cut(func() { w.deaf = false })
		holds("when the coordinator says so", "B foreign 0 refused 0")
		w.cut(func() { w.term, w.revision, w.truth = termTwo, 1, map[string]*resourcev1.Resource{} })
		w.put(serviceRecord("C", 1, 0))
		holds("in another history", "B,C foreign 1 refused 0")
		w.cut(func() { w.truth["B"] = serviceRecord("B", 1, 1) })
		holds("when that has it, too", "B,C foreign 0 refused 0")
		w.drop("B")
		holds("and loses it", "C foreign 0 refused 0")
	})
}
