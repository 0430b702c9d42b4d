package logging

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func TestLevel_GoesBackAfterItsPeriodAndTheLastSetCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLevel(slog.LevelInfo)
		steps := []struct {
			set    slog.Level
			period time.Duration
			wait   time.Duration // and then
			want   slog.Level
		}{
			{slog.LevelDebug, time.Minute, 59 * time.Second, slog.LevelDebug},
			{slog.LevelError, time.Minute, 59 * time.Second, slog.LevelError}, // the first period is over, and ends nothing
			{slog.LevelError, time.Minute, time.Minute, slog.LevelInfo},
			{slog.LevelWarn, time.Minute, time.Second, slog.LevelWarn},
			{slog.LevelDebug, 0, time.Hour, slog.LevelDebug},
		}
		previous := slog.LevelInfo
		for i, s := range steps {
			if got := l.Set(s.set, s.period); got != previous {
				t.Errorf("step %d: got previous %s, want %s", i, got, previous)
			}
			<-time.After(s.wait)
			synctest.Wait()
			if got := l.Level(); got != s.want {
				t.Errorf("step %d: got %s after %s, want %s", i, got, s.wait, s.want)
			}
			previous = s.want
		}
	})
}
