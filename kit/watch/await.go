package watch

import (
	"context"
	"errors"
	"fmt"
)

// Await returns the first value of key for which done is true, looking at the
// present one first. If ctx ends before, the error says what the value was last.
// It is how a test waits for a condition.
func Await[K comparable, V any](ctx context.Context, h *Hub[K, V], key K, done func(V) bool) (V, error) {
	last := "never set"
	for ev := range h.Subscribe(ctx) {
		if ev.Kind == Synced || ev.Key != key {
			continue
		}
		if ev.Kind == Deleted {
			last = fmt.Sprintf("deleted as %+v", ev.Value)
			continue
		}
		if done(ev.Value) {
			return ev.Value, nil
		}
		last = fmt.Sprintf("%+v", ev.Value)
	}
	var none V
	return none, fmt.Errorf("await %v: last seen: %s: %w", key, last, cause(ctx))
}

// AwaitGone returns when key is not in the table. If ctx ends before, the error
// says what the value was last.
func AwaitGone[K comparable, V any](ctx context.Context, h *Hub[K, V], key K) error {
	last, there := "", false
	for ev := range h.Subscribe(ctx) {
		if ev.Kind != Synced && ev.Key == key {
			there = ev.Kind != Deleted
			last = fmt.Sprintf("%+v", ev.Value)
		}
		if !there && ev.Kind != Snapshot {
			return nil
		}
	}
	return fmt.Errorf("await end of %v: last seen: %s: %w", key, last, cause(ctx))
}

func cause(ctx context.Context) error {
	if ctx.Err() == nil {
		return errors.New("reader was cut off")
	}
	return context.Cause(ctx)
}
