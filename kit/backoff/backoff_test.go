package backoff_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"staddle.internal/kit/backoff"
)

func TestDelay(t *testing.T) {
	p := backoff.Policy{Initial: time.Second, Cap: 10 * time.Second}
	tests := []struct {
		name    string
		policy  backoff.Policy
		attempt int
		jitter  float64
		want    time.Duration
	}{
		{"first", p, 1, 0, time.Second},
		{"none yet counts as first", p, 0, 0, time.Second},
		{"second", p, 2, 0, 2 * time.Second},
		{"fourth", p, 4, 0, 8 * time.Second},
		{"capped", p, 5, 0, 10 * time.Second},
		{"far on", p, math.MaxInt, 0, 10 * time.Second},
		{"jitter takes up to a quarter", p, 5, 1, 7500 * time.Millisecond},
		{"no cap means no growth", backoff.Policy{Initial: time.Second}, 9, 0, time.Second},
		{"zero policy", backoff.Policy{}, 9, 0.5, 0},
		{"cap without a beginning", backoff.Policy{Cap: time.Second}, 9, 0.5, 0},
		{"largest cap does not overflow", backoff.Policy{Initial: time.Second, Cap: math.MaxInt64}, 100, 0, math.MaxInt64},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.policy.Delay(tt.attempt, tt.jitter); got != tt.want {
				t.Errorf("Delay(%d, %g) = %s, want %s", tt.attempt, tt.jitter, got, tt.want)
			}
		})
	}
}

func TestDelay_StaysInItsBounds(t *testing.T) {
	for range 10_000 {
		p := backoff.Policy{Initial: time.Duration(1 + rand.Int64N(1e12)), Cap: time.Duration(rand.Int64N(1e14))}
		attempt := 1 + rand.IntN(80)
		got, most := p.Delay(attempt, rand.Float64()), max(p.Cap, p.Initial)
		if got < p.Initial*3/4-1 || got > most {
			t.Fatalf("%+v.Delay(%d) = %s, want within [%s, %s]", p, attempt, got, p.Initial*3/4, most)
		}
		if p.Delay(attempt+1, 0) < p.Delay(attempt, 0) {
			t.Fatalf("%+v: delay %d is shorter than the one before", p, attempt+1)
		}
	}
}

func TestNext(t *testing.T) {
	p := backoff.Policy{Initial: time.Second, Stable: time.Minute}
	if got := p.Next(4, 59*time.Second); got != 5 {
		t.Errorf("Next(4) after 59s = %d, want 5", got)
	}
	if got := p.Next(4, time.Minute); got != 1 {
		t.Errorf("Next(4) after a stable minute = %d, want 1", got)
	}
	if got := (backoff.Policy{}).Next(4, time.Hour); got != 5 {
		t.Errorf("Next(4) without Stable = %d, want 5", got)
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := backoff.Wait(t.Context(), time.Hour); err != nil || time.Since(began) != time.Hour {
			t.Errorf("Wait = %v after %s", err, time.Since(began))
		}
		boom := errors.New("boom")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, boom)
		defer cancel()
		if err := backoff.Wait(ctx, time.Hour); !errors.Is(err, boom) {
			t.Errorf("Wait = %v, want the cause", err)
		}
		if err := backoff.Wait(ctx, 0); !errors.Is(err, boom) {
			t.Errorf("Wait(0) = %v, want the cause", err)
		}
		if err := backoff.Wait(t.Context(), -1); err != nil {
			t.Errorf("Wait(-1) = %v", err)
		}
	})
}
