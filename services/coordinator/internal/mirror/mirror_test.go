package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	"staddle.internal/services/coordinator/internal/etcd/etcdtest"
	"staddle.internal/services/coordinator/internal/mirror"
	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

func disk(name string) *record.Resource {
	return &record.Resource{
		Meta: &resourcev1.Metadata{Kind: record.Disk, Name: name, Uid: id.New()},
		Kind: &resourcev1.Resource_Disk{Disk: &resourcev1.Disk{Spec: &resourcev1.DiskSpec{}}},
	}
}

func start(t *testing.T, cfg mirror.Config) (*mirror.Mirror, *store.Store, *clientv3.Client) {
	t.Helper()
	c := etcdtest.Start(t)
	s := store.New(c, "/test/")
	m := mirror.New(cfg, mirror.Deps{Store: s, Log: slog.New(slog.DiscardHandler), NotReady: func(string) {}})
	etcdtest.Run(t, "mirror", m.Run)
	return m, s, c
}

func create(t *testing.T, s *store.Store, names ...string) (last uint64) {
	t.Helper()
	for _, n := range names {
		r, err := s.Create(t.Context(), disk(n), store.Change{}, "", &record.Resource{})
		if err != nil {
			t.Fatal(err)
		}
		last = r.GetMeta().GetRevision()
	}
	return last
}

// take reads n events.
func take(t *testing.T, r *mirror.Reader, n int) []mirror.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), etcdtest.Limit)
	defer cancel()
	var out []mirror.Event
	for len(out) < n {
		events, err := r.Next(ctx)
		if err != nil {
			t.Fatalf("after %d of %d events: %v", len(out), n, err)
		}
		out = append(out, events...)
	}
	return out
}

func isCompacted(err error) bool {
	return errors.Is(err, fault.Conflict) && fault.Reason(err) == store.ReasonCompacted
}

// ETC-3: what changed between two watches is told to the second, once.
func TestMirror_ResumesWithoutGap(t *testing.T) {
	m, s, _ := start(t, mirror.Config{})
	rev := create(t, s, "d0")
	if err := m.Await(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	snapshot, _, err := m.Begin(record.Kinds())
	if err != nil {
		t.Fatal(err)
	}
	if len(snapshot.Records) != 1 || snapshot.Revision != rev || snapshot.Incarnation == "" {
		t.Errorf("got %d records at %d of %q, want 1 at %d", len(snapshot.Records), snapshot.Revision, snapshot.Incarnation, rev)
	}
	create(t, s, "d1", "d2", "d3")
	reader, err := m.Resume(t.Context(), rev)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range take(t, reader, 3) {
		if got, want := e.Record.GetMeta().GetName(), fmt.Sprintf("d%d", i+1); got != want {
			t.Errorf("event %d: got %s, want %s", i, got, want)
		}
	}
}

func TestMirror_DeletedEventCarriesTheLastRecord(t *testing.T) {
	m, s, _ := start(t, mirror.Config{})
	rev := create(t, s, "d1")
	r, err := s.Get(t.Context(), record.Key{Kind: record.Disk, Name: "d1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), store.Change{Remove: []*record.Resource{r}}); err != nil {
		t.Fatal(err)
	}
	if err := m.Await(t.Context(), rev+1); err != nil {
		t.Fatal(err)
	}
	reader, err := m.Resume(t.Context(), rev)
	if err != nil {
		t.Fatal(err)
	}
	e := take(t, reader, 1)[0]
	if e.Record != nil || e.Before.GetMeta().GetUid() != r.GetMeta().GetUid() {
		t.Errorf("got %v before %v, want nothing before %s", e.Record, e.Before, r.GetMeta().GetUid())
	}
}

// A reader that leaves in the middle of one revision gets the rest of it.
func TestMirror_PositionNeverSplitsARevision(t *testing.T) {
	m, s, _ := start(t, mirror.Config{})
	_, reader, err := m.Begin(record.Kinds())
	if err != nil {
		t.Fatal(err)
	}
	rev, err := s.Commit(t.Context(), store.Change{Create: []*record.Resource{disk("d1"), disk("d2"), disk("d3")}})
	if err != nil {
		t.Fatal(err)
	}
	events := take(t, reader, 3)
	if p := events[1].Position; p != rev-1 {
		t.Errorf("second of three: got position %d, want %d", p, rev-1)
	}
	if p := events[2].Position; p != rev {
		t.Errorf("last of three: got position %d, want %d", p, rev)
	}
	again, err := m.Resume(t.Context(), events[0].Position)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(take(t, again, 3)); got != 3 {
		t.Errorf("got %d events, want 3", got)
	}
}

func TestMirror_CutsOffASlowReader(t *testing.T) {
	m, s, _ := start(t, mirror.Config{MaxEvents: 8})
	_, slow, err := m.Begin(record.Kinds())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("d%02d", i))
	}
	if err := m.Await(t.Context(), create(t, s, names...)); err != nil {
		t.Fatal(err)
	}
	if _, err := slow.Next(t.Context()); !isCompacted(err) {
		t.Errorf("slow reader: got %v, want COMPACTED", err)
	}
	if _, err := m.Resume(t.Context(), 1); !isCompacted(err) {
		t.Errorf("old revision: got %v, want COMPACTED", err)
	}
	if _, err := m.Resume(t.Context(), 1_000_000); !isCompacted(err) {
		t.Errorf("revision of another history: got %v, want COMPACTED", err)
	}
}

// Keys beside the records raise the revision too: a list names such a revision,
// and a watch may resume from it.
func TestMirror_ResumesFromARevisionItDidNotSee(t *testing.T) {
	m, s, c := start(t, mirror.Config{})
	if err := m.Await(t.Context(), create(t, s, "d1")); err != nil {
		t.Fatal(err)
	}
	put, err := c.Put(t.Context(), "/elsewhere", "x")
	if err != nil {
		t.Fatal(err)
	}
	reader, err := m.Resume(t.Context(), uint64(put.Header.Revision))
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, "d2")
	if got := take(t, reader, 1)[0].Record.GetMeta().GetName(); got != "d2" {
		t.Errorf("got %s, want d2", got)
	}
}

// brokenOnce lets the first watch end as one does whose revision was compacted.
type brokenOnce struct {
	*store.Store
	broken  atomic.Bool
	release chan struct{}
}

func (b *brokenOnce) Follow(ctx context.Context, revision uint64, emit func([]store.Entry)) error {
	if b.broken.CompareAndSwap(false, true) {
		<-b.release
		return fault.WithReason(fault.New(fault.Conflict, "watch records: compacted"), store.ReasonCompacted)
	}
	return b.Store.Follow(ctx, revision, emit)
}

// ETC-3: after a watch that lost changes everything is read again, and readers of
// the old history are told.
func TestMirror_ReadsAllAgainAfterACompactedWatch(t *testing.T) {
	c := etcdtest.Start(t)
	s := store.New(c, "/test/")
	source := &brokenOnce{Store: s, release: make(chan struct{})}
	m := mirror.New(mirror.Config{}, mirror.Deps{Store: source, Log: slog.New(slog.DiscardHandler), NotReady: func(string) {}})
	ready := make(chan struct{}, 8)
	etcdtest.Run(t, "mirror", func(ctx context.Context, up func()) error {
		first := true
		return m.Run(ctx, func() {
			if first {
				up()
			}
			first = false
			ready <- struct{}{}
		})
	})
	_, old, err := m.Begin(record.Kinds())
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, "d1", "d2")
	close(source.release)
	if _, err := old.Next(t.Context()); !isCompacted(err) {
		t.Errorf("got %v, want COMPACTED", err)
	}
	etcdtest.Eventually(t, "both records are mirrored", func() int {
		snapshot, _, err := m.Begin(record.Kinds())
		if err != nil {
			t.Fatal(err)
		}
		return len(snapshot.Records)
	}, func(n int) bool { return n == 2 })
}

// Each position is told with its own term, also when another coordinator begins one.
func TestMirror_ATermThatBeginsElsewhereCutsReaders(t *testing.T) {
	m, s, _ := start(t, mirror.Config{})
	at := create(t, s, "d1")
	if err := m.Await(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	first, r, err := m.Begin(record.Kinds())
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.BeginTerm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, "d2")
	if events, err := r.Next(t.Context()); !errors.Is(err, fault.Unavailable) {
		t.Fatalf("after a term began: got %v and %v, want Unavailable", events, err)
	}
	if err := s.Contains(t.Context(), first.Term, first.Revision); err != nil {
		t.Errorf("the position of the marker: %v", err)
	}
	if r, err = m.Resume(t.Context(), first.Revision); err != nil {
		t.Fatal(err)
	}
	if e := take(t, r, 1)[0]; e.Record.GetMeta().GetName() != "d2" {
		t.Errorf("resumed with %v, want d2", e.Record)
	}
	if _, now, err := r.Backlog(); err != nil || now.Term != second {
		t.Errorf("the marker names term %q (%v), want %q", now.Term, err, second)
	}
}
