package schedule

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/coordinator/internal/mirror"
	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

// cluster is a store that refuses some, and remembers what was written and awaited.
type cluster struct {
	newest  uint64
	view    mirror.View
	refuse  map[string]error // by uid of the sandbox
	written []string
	awaited uint64
}

func (c *cluster) Commit(_ context.Context, change store.Change) (uint64, error) {
	uid := change.Replace[0].GetMeta().GetUid()
	if err := c.refuse[uid]; err != nil {
		return 0, err
	}
	c.written = append(c.written, uid)
	return uint64(len(c.written)), nil
}

func (c *cluster) Newest(context.Context) (uint64, error) { return c.newest, nil }

func (c *cluster) View() mirror.View { return c.view }

func (c *cluster) Await(_ context.Context, revision uint64) error {
	c.awaited = revision
	return nil
}

func TestLoop_OneThatCannotBeWrittenHoldsUpNobody(t *testing.T) {
	view := mirror.View{Records: map[record.Kind]map[string]*record.Resource{
		record.Node: {"a": node("a", nil).Record}, record.Sandbox: {}, record.Disk: {},
	}}
	for _, uid := range []string{"1", "2", "3"} {
		view.Records[record.Sandbox][uid] = &record.Resource{
			Meta: &resourcev1.Metadata{Kind: record.Sandbox, Name: uid, Uid: uid},
			Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{Spec: spec(0)}},
		}
	}
	for _, c := range []struct {
		name    string
		err     error
		written []string
		awaited uint64
		fails   bool
	}{
		{"refused for good", fault.New(fault.Invalid, "too large"), []string{"1", "3"}, 2, false},
		{"changed meanwhile", fault.WithReason(fault.New(fault.Conflict, "changed"), store.ReasonRevision), []string{"1", "3"}, 2, false},
		{"no answer", fault.New(fault.Unavailable, "away"), []string{"1"}, 0, true},
	} {
		got := &cluster{refuse: map[string]error{"2": c.err}}
		err := NewLoop(Deps{Store: got, Mirror: got, Log: slog.New(slog.DiscardHandler)}).pass(t.Context(), view)
		if (err != nil) != c.fails || !slices.Equal(got.written, c.written) || got.awaited != c.awaited {
			t.Errorf("%s: got error %v, %v written and revision %d awaited, want %v and %d", c.name, err, got.written, got.awaited, c.written, c.awaited)
		}
	}
}

// Before the first pass of a leader, and after a failure, the mirror must show what
// was placed by others, or by a write without an answer.
func TestLoop_CatchesUpBeforeItPlaces(t *testing.T) {
	c := &cluster{newest: 7}
	l := NewLoop(Deps{Store: c, Mirror: c, Log: slog.New(slog.DiscardHandler)})
	if _, err := l.turn(t.Context(), false); err != nil || c.awaited != 7 {
		t.Errorf("got error %v and revision %d awaited, want 7", err, c.awaited)
	}
}
