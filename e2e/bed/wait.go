package bed

import (
	"context"
	"time"
)

// Eventually asks until the answer is yes, at most for the limit, and fails the
// test with the last thing that was seen otherwise.
func Eventually(t T, limit time.Duration, what string, ask func(ctx context.Context) (bool, string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	last := "nothing was seen"
	for {
		asked, stop := context.WithTimeout(ctx, 5*time.Second)
		ok, seen := ask(asked)
		stop()
		if ok {
			return
		}
		if seen != "" && ctx.Err() == nil {
			last = seen
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s; last: %s", limit, what, last)
		case <-tick.C:
		}
	}
}
