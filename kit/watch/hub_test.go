package watch_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"staddle.internal/kit/watch"
)

type hub = watch.Hub[string, int]

// drain returns what the reader is owed, as text.
func drain(r *watch.Reader[string, int]) []string {
	var got []string
	for ev, ok := r.Next(); ok; ev, ok = r.Next() {
		got = append(got, text(ev))
	}
	return got
}

func text(ev watch.Event[string, int]) string {
	if ev.Kind == watch.Synced {
		return fmt.Sprintf("synced@%d", ev.Version)
	}
	return fmt.Sprintf("%s %s=%d@%d", ev.Kind, ev.Key, ev.Value, ev.Version)
}

func TestReader_SnapshotThenChanges(t *testing.T) {
	tests := []struct {
		name          string
		before, after func(h *hub)
		want          []string
	}{
		{"empty", func(*hub) {}, func(*hub) {}, []string{"synced@0"}},
		{
			"snapshot is of the moment and in the order of change",
			func(h *hub) { h.Set("b", 1); h.Set("a", 2); h.Set("b", 3); h.Set("c", 4); h.Delete("c", 4) },
			func(h *hub) { h.Set("a", 5) },
			[]string{"snapshot a=2@2", "snapshot b=3@3", "synced@5", "set a=5@6"},
		},
		{
			"newest value only, in the order in which keys fell behind",
			func(*hub) {},
			func(h *hub) { h.Set("a", 1); h.Set("b", 2); h.Set("a", 3) },
			[]string{"synced@0", "set a=3@3", "set b=2@2"},
		},
		{
			"a deletion is told although the key was never seen",
			func(*hub) {},
			func(h *hub) { h.Set("a", 1); h.Delete("a", 9) },
			[]string{"synced@0", "deleted a=9@2"},
		},
		{
			"a deletion is told before the key's next life",
			func(h *hub) { h.Set("a", 1) },
			func(h *hub) { h.Delete("a", 1); h.Set("a", 2); h.Set("a", 3) },
			[]string{"snapshot a=1@1", "synced@1", "deleted a=1@2", "set a=3@4"},
		},
		{
			"two deletions are one",
			func(h *hub) { h.Set("a", 1) },
			func(h *hub) { h.Delete("a", 1); h.Set("a", 2); h.Delete("a", 2) },
			[]string{"snapshot a=1@1", "synced@1", "deleted a=2@4"},
		},
		{
			"deleting what is not there is nothing",
			func(*hub) {}, func(h *hub) { h.Delete("a", 1) }, []string{"synced@0"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := watch.New[string, int]()
			tt.before(h)
			r := h.Read()
			defer r.Close()
			tt.after(h)
			if got := drain(r); !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestReader_LifeBetweenDeletionAndValueIsToldInTwoSteps(t *testing.T) {
	h := watch.New[string, int]()
	h.Set("a", 1)
	r := h.Read()
	defer r.Close()
	drain(r)
	h.Delete("a", 1)
	h.Set("a", 2)
	if ev, _ := r.Next(); text(ev) != "deleted a=1@2" {
		t.Fatalf("first is %s", text(ev))
	}
	h.Delete("a", 2) // replaces the value still owed
	if got, want := drain(r), []string{"deleted a=2@4"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestSubscribe_EndsEqual drives writers against readers of all speeds: each
// reader's table must in the end be the hub's, and no key may go back in time.
func TestSubscribe_EndsEqual(t *testing.T) {
	h := watch.New[int, int]()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const last = -1
	var writers, readers sync.WaitGroup
	for w := range 4 { // owned by the test
		writers.Go(func() {
			for i := range 2000 {
				key := w*10 + rand.IntN(10) // keys of its own, so that it knows their order
				if rand.IntN(4) == 0 {
					h.Delete(key, i)
				} else {
					h.Set(key, i)
				}
			}
		})
	}
	for n := range 3 {
		readers.Go(func() {
			table, version := make(map[int]int), make(map[int]uint64)
			for ev := range h.Subscribe(ctx) {
				if ev.Kind == watch.Synced {
					continue
				}
				if ev.Version <= version[ev.Key] {
					t.Errorf("reader %d: key %d went from version %d to %d", n, ev.Key, version[ev.Key], ev.Version)
				}
				version[ev.Key] = ev.Version
				if table[ev.Key] = ev.Value; ev.Kind == watch.Deleted {
					delete(table, ev.Key)
				}
				if ev.Key == last {
					break
				}
				for range rand.IntN(n*500 + 1) { // slower by number
					h.Len()
				}
			}
			if want := h.Snapshot(); !maps.Equal(table, want) {
				t.Errorf("reader %d: got %v, want %v", n, table, want)
			}
		})
	}
	writers.Wait()
	h.Set(last, 1)
	readers.Wait()
	if ctx.Err() != nil {
		t.Fatal("a reader did not see the last change within a minute")
	}
}

func TestSubscribe_WaitsAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New[string, int]()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var got []string
		time.AfterFunc(time.Minute, func() { h.Set("a", 1) })
		for ev := range h.Subscribe(ctx) {
			got = append(got, text(ev))
		}
		if want := []string{"synced@0", "set a=1@1"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New[string, int]()
		time.AfterFunc(time.Second, func() { h.Set("a", 1) })
		time.AfterFunc(2*time.Second, func() { h.Set("a", 2) })
		time.AfterFunc(3*time.Second, func() { h.Delete("a", 2) })
		if v, err := watch.Await(t.Context(), h, "a", func(v int) bool { return v == 2 }); v != 2 || err != nil {
			t.Errorf("Await = %d, %v", v, err)
		}
		if err := watch.AwaitGone(t.Context(), h, "a"); err != nil {
			t.Errorf("AwaitGone = %v", err)
		}
		if err := watch.AwaitGone(t.Context(), h, "never"); err != nil {
			t.Errorf("AwaitGone of a missing key = %v", err)
		}
		h.Set("a", 7)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := watch.Await(ctx, h, "a", func(v int) bool { return v == 8 }); err == nil || !strings.Contains(err.Error(), "last seen: 7") {
			t.Errorf("Await = %v, want the last value", err)
		}
		if err := watch.AwaitGone(ctx, h, "a"); err == nil {
			t.Error("AwaitGone of a present key = nil")
		}
	})
}
