package mirror

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"staddle.internal/kit/id"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

func open(t *testing.T, path string) (*Mirror, func()) {
	t.Helper()
	m := New(Config{Path: path, BootID: "boot"}, Deps{
		Log: slog.New(slog.DiscardHandler), LinkChanged: func(bool, string) {},
	})
	ctx, cancel := context.WithCancel(t.Context())
	up, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- m.Run(ctx, func() { close(up) }) }()
	select {
	case <-up:
	case err := <-done:
		t.Fatal(err)
	}
	return m, func() { cancel(); <-done }
}

func rec(name string, revision uint64) *resourcev1.Resource {
	return &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_SANDBOX, Name: name, Uid: string(id.NewSandbox()), Revision: revision},
		Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{}},
	}
}

// drain writes what a reader is owed now as words.
func drain(t *testing.T, r *Reader) string {
	t.Helper()
	var words []string
	for {
		msg, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		switch e := msg.GetEvent().(type) {
		case nil:
			return strings.Join(words, " ")
		case *clusteraccessv1.WatchResourcesResponse_Snapshot:
			words = append(words, "start")
		case *clusteraccessv1.WatchResourcesResponse_Changed:
			words = append(words, "+"+e.Changed.GetMeta().GetName())
		case *clusteraccessv1.WatchResourcesResponse_Deleted:
			words = append(words, "-"+e.Deleted.GetMeta().GetName())
		case *clusteraccessv1.WatchResourcesResponse_Mirror:
			words = append(words, fmt.Sprintf("live=%v@%d", e.Mirror.GetLive(), e.Mirror.GetRevision()))
		}
	}
}

func place(revision uint64, incarnation string) Place {
	return Place{Revision: revision, Incarnation: incarnation, Term: incarnation + "-1"}
}

func TestReader_TellsTheWholeThenChanges(t *testing.T) {
	m, stop := open(t, filepath.Join(t.TempDir(), "mirror.db"))
	defer stop()
	a, b := rec("a", 1), rec("b", 2)
	r := m.Read([]resourcev1.Kind{resourcev1.Kind_KIND_SANDBOX})
	defer r.Close()
	nodes := m.Read([]resourcev1.Kind{resourcev1.Kind_KIND_NODE})
	defer nodes.Close()

	for _, step := range []struct {
		name  string
		do    func()
		want  string
		nodes string
	}{
		{"an empty mirror", func() {}, "start live=false@0", "start live=false@0"},
		{"a snapshot", func() { m.Replace([]*resourcev1.Resource{a, b}, place(5, "one")) }, "start +a +b live=true@5", "start live=true@5"},
		{"a change, and a revision that only some need", func() { m.Apply([]Change{{Record: a}}, 6) }, "+a live=true@6", ""},
		{"many changes of one record are one", func() {
			m.Apply([]Change{{Record: a}}, 7)
			m.Apply([]Change{{Record: b}}, 8)
			m.Apply([]Change{{Record: a}}, 9)
		}, "+a +b live=true@9", ""},
		{"a change and a deletion are a deletion", func() {
			m.Apply([]Change{{Record: a}}, 10)
			m.Apply([]Change{{Record: a, Deleted: true}}, 11)
		}, "-a live=true@11", ""},
		{"a loss", func() { m.Lost("cut") }, "live=false@11", "live=false@11"},
		{"the same loss again", func() { m.Lost("cut") }, "", ""},
		{"another reason", func() { m.Lost("refused") }, "live=false@11", "live=false@11"},
		{"a resumption", func() { m.CaughtUp([]Change{{Record: a}}, place(12, "one")) }, "+a live=true@12", "live=true@12"},
		{"a deletion before a snapshot is not left out", func() {
			m.Apply([]Change{{Record: b, Deleted: true}, {Record: a}}, 13)
			m.Replace([]*resourcev1.Resource{rec("c", 20)}, place(20, "one"))
		}, "-b start +c live=true@20", "start live=true@20"},
		{"two snapshots in a row are one", func() {
			m.Replace([]*resourcev1.Resource{rec("d", 21)}, place(21, "one"))
			m.Replace([]*resourcev1.Resource{rec("e", 22)}, place(22, "one"))
		}, "start +e live=true@22", "start live=true@22"},
		{"a deletion that a history which was put back does not have", func() {
			m.Apply([]Change{{Record: a, Deleted: true}}, 23)
			m.Replace([]*resourcev1.Resource{a}, place(9, "two"))
		}, "start +a live=true@9", "start live=true@9"},
	} {
		step.do()
		if got := drain(t, r); got != step.want {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
		if got := drain(t, nodes); got != step.nodes {
			t.Errorf("%s: a reader of nodes got %q, want %q", step.name, got, step.nodes)
		}
	}
}

func TestReader_IsCutOffWhenItFallsBehindWithoutBound(t *testing.T) {
	m, stop := open(t, filepath.Join(t.TempDir(), "mirror.db"))
	defer stop()
	r := m.Read(nil)
	for range maxOwed + 1 {
		m.Apply([]Change{{Record: rec("x", 1), Deleted: true}}, 1)
	}
	if _, err := r.Next(t.Context()); err == nil {
		t.Error("a reader that owes more than its bound goes on")
	}
	r.Close()
}

// Whatever happens, in whatever order a reader reads, what it was told adds up to
// the mirror, and what came before a live state is complete.
func TestReader_AddsUpToTheMirror(t *testing.T) {
	m, stop := open(t, filepath.Join(t.TempDir(), "mirror.db"))
	defer stop()
	rng := rand.New(rand.NewPCG(1, 2))
	pool := make([]*resourcev1.Resource, 12)
	fresh := func(i int) *resourcev1.Resource { return rec(fmt.Sprintf("r%02d", i), 1) }
	for i := range pool {
		pool[i] = fresh(i)
	}
	r := m.Read(nil)
	defer r.Close()
	told, seen := map[string]bool{}, map[string]bool(nil)
	for step := range 3000 {
		i := rng.IntN(len(pool))
		switch rng.IntN(12) {
		case 0:
			m.Replace([]*resourcev1.Resource{pool[i], pool[(i+5)%len(pool)]}, place(uint64(step), "one"))
		case 1:
			m.Lost(fmt.Sprint("reason ", step))
		case 2, 3:
			m.Apply([]Change{{Record: pool[i], Deleted: true}}, uint64(step))
			pool[i] = fresh(i) // a uid is never used again
		default:
			m.Apply([]Change{{Record: pool[i]}}, uint64(step))
		}
		for range rng.IntN(4) {
			msg, err := r.next()
			if err != nil {
				t.Fatal(err)
			}
			switch e := msg.GetEvent().(type) {
			case *clusteraccessv1.WatchResourcesResponse_Snapshot:
				seen = map[string]bool{}
			case *clusteraccessv1.WatchResourcesResponse_Changed:
				told[e.Changed.GetMeta().GetUid()] = true
				if seen != nil {
					seen[e.Changed.GetMeta().GetUid()] = true
				}
			case *clusteraccessv1.WatchResourcesResponse_Deleted:
				delete(told, e.Deleted.GetMeta().GetUid())
				delete(seen, e.Deleted.GetMeta().GetUid())
			case *clusteraccessv1.WatchResourcesResponse_Mirror:
				if e.Mirror.GetLive() && seen != nil {
					told, seen = seen, nil
				}
				if e.Mirror.GetLive() && !adds(told, m.records) {
					t.Fatalf("step %d: told %v, mirror holds %v", step, told, m.records)
				}
			}
		}
	}
}

func adds(told map[string]bool, records map[string]*resourcev1.Resource) bool {
	for uid := range records {
		if !told[uid] {
			return false
		}
	}
	return len(told) == len(records)
}

func TestMirror_KeepsWhatItWasToldWhenItStops(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mirror.db")
	m, stop := open(t, path)
	a, b, c := rec("a", 1), rec("b", 2), rec("c", 3)
	m.Replace([]*resourcev1.Resource{a, b}, place(5, "one"))
	m.Apply([]Change{{Record: c}, {Record: a, Deleted: true}}, 7)
	stop()

	m, stop = open(t, path)
	defer stop()
	got, more, state := m.List(resourcev1.Kind_KIND_SANDBOX, "", 10)
	if len(got) != 2 || more || got[0].GetMeta().GetName() != "b" || got[1].GetMeta().GetName() != "c" {
		t.Errorf("kept %v", got)
	}
	if state.GetLive() || state.GetRevision() != 7 || state.GetIncarnation() != "one" || state.GetTerm() != "one-1" || state.GetBootId() != "boot" || state.GetReason() == "" {
		t.Errorf("kept as %v", state)
	}
	if page, more, _ := m.List(resourcev1.Kind_KIND_SANDBOX, "b", 10); len(page) != 1 || more {
		t.Errorf("page after b is %v", page)
	}
	if page, more, _ := m.List(resourcev1.Kind_KIND_SANDBOX, "", 1); len(page) != 1 || !more {
		t.Errorf("page of one is %v, more %v", page, more)
	}
}

func TestReader_WaitsForWhatComes(t *testing.T) {
	m, stop := open(t, filepath.Join(t.TempDir(), "mirror.db"))
	defer stop()
	r := m.Read(nil)
	defer r.Close()
	drain(t, r)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go m.Apply([]Change{{Record: rec("a", 1)}}, 1)
	msg, err := r.Next(ctx)
	if err != nil || msg.GetChanged().GetMeta().GetName() != "a" {
		t.Errorf("got %v, %v", msg, err)
	}
}
