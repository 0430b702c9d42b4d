package image

import (
	"context"
	"errors"
	"testing"
)

func TestQueue_LetsInByTurn(t *testing.T) {
	q := &queue{size: 2}
	turns := make([]chan struct{}, 5)
	for i := range turns {
		turns[i] = make(chan struct{})
	}
	for _, turn := range turns[:2] {
		if err := q.enter(t.Context(), turn); err != nil || q.position(turn) != 0 {
			t.Fatalf("with room: %v, position %d", err, q.position(turn))
		}
	}
	type end struct {
		who int
		err error
	}
	ends := make(chan end, len(turns))
	leaves := make([]context.CancelFunc, len(turns))
	for i := 2; i < len(turns); i++ {
		ctx, cancel := context.WithCancel(t.Context())
		leaves[i] = cancel
		defer cancel()
		go func() { ends <- end{i, q.enter(ctx, turns[i])} }()
		for q.position(turns[i]) == 0 { // until it waits
			if err := t.Context().Err(); err != nil {
				t.Fatal(err)
			}
		}
		if got := q.position(turns[i]); got != i-1 {
			t.Fatalf("%d: position %d, want %d", i, got, i-1)
		}
	}
	leaves[3]()
	if got := <-ends; got.who != 3 || !errors.Is(got.err, context.Canceled) {
		t.Fatalf("who left: got %+v", got)
	}
	if got := q.position(turns[4]); got != 2 {
		t.Errorf("position after one left: %d, want 2", got)
	}
	for _, want := range []int{2, 4} {
		q.leave()
		if got := <-ends; got.who != want || got.err != nil {
			t.Fatalf("got %+v, want %d to be let in", got, want)
		}
	}
	q.leave()
	q.leave()
	if q.inside != 0 || len(q.waiting) != 0 {
		t.Errorf("left: %d inside, %d waiting", q.inside, len(q.waiting))
	}
}

// Who leaves at the moment in which there is room does not keep the room.
func TestQueue_LosesNoRoom(t *testing.T) {
	q := &queue{size: 1}
	for range 1000 {
		if err := q.enter(t.Context(), make(chan struct{})); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		turn, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- q.enter(ctx, turn) }()
		go cancel()
		q.leave()
		if err := <-done; err == nil {
			q.leave()
		}
		cancel()
	}
	if q.inside != 0 || len(q.waiting) != 0 {
		t.Errorf("left: %d inside, %d waiting", q.inside, len(q.waiting))
	}
}
