package graph

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"
)

func TestFit(t *testing.T) {
	long := strings.Repeat("x", 25) + "\n"
	tests := []struct {
		name, text    string
		columns, rows int
		want          string
		taken         int
	}{
		{"no terminal", "a\n" + long, 0, 0, "a\n" + long, 2},
		{"a long line takes several rows", "a\n" + long + "b\n", 10, 24, "a\n" + long + "b\n", 5},
		{"a line as long as the terminal is wide takes one", strings.Repeat("└", 10) + "\n\n", 10, 24, strings.Repeat("└", 10) + "\n\n", 2},
		{"too many rows: lines are cut", "a\n" + long + "b\n", 10, 5, "a\n" + strings.Repeat("x", 10) + "\nb\n", 3},
		{"too many lines: the last are left out", "a\nb\nc\nd\n", 10, 3, "a\nb\n", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, taken := fit(tt.text, func() (int, int) { return tt.columns, tt.rows })
			if got != tt.want || taken != tt.taken {
				t.Errorf("got %q in %d rows, want %q in %d", got, taken, tt.want, tt.taken)
			}
		})
	}
}

func TestView_DrawsOverAllRowsOfTheLastFrame(t *testing.T) {
	var b strings.Builder
	v := &View{w: &b, live: true, size: func() (int, int) { return 10, 24 }}
	for _, text := range []string{strings.Repeat("x", 25) + "\n", "b\n"} {
		if err := v.Show(&supervisorv1.GetGraphResponse{}, func() string { return text }); err != nil {
			t.Fatal(err)
		}
	}
	if want := strings.Repeat("x", 25) + "\n\033[3A\033[Jb\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestTicking_ShowsAgainWhileNothingChangesAndEndsWithTheShower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watch := func(ctx context.Context, show func(*supervisorv1.GetGraphResponse) error) error {
			time.Sleep(10 * time.Second) // nothing to show until then
			if err := show(&supervisorv1.GetGraphResponse{}); err != nil {
				return err
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		enough, shown, begin := errors.New("enough"), 0, time.Now()
		err := Ticking(t.Context(), watch, func(*supervisorv1.GetGraphResponse) error {
			if shown++; shown == 4 {
				return enough
			}
			return nil
		})
		if took := time.Since(begin).Round(time.Second); !errors.Is(err, enough) || took != 13*time.Second {
			t.Errorf("got %v after %s", err, took)
		}
	})
}

func TestTicking_EndsWithTheWatch(t *testing.T) {
	gone := errors.New("gone")
	err := Ticking(t.Context(), func(context.Context, func(*supervisorv1.GetGraphResponse) error) error { return gone },
		func(*supervisorv1.GetGraphResponse) error { return nil })
	if !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}
