package process

import (
	"testing"
	"time"
)

func TestAskedFor(t *testing.T) {
	tests := []struct {
		name, usec, pid string
		want            time.Duration
		wrong           bool
	}{
		{"nobody asks", "", "", 0, false},
		{"asked", "3000000", "", 3 * time.Second, false},
		{"of us", "3000000", "7", 3 * time.Second, false},
		{"of another", "3000000", "8", 0, false},
		{"no number", "soon", "", 0, true},
		{"none", "0", "", 0, true},
		{"too long", "9223372036854775807", "", 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			env := map[string]string{envWatchdog: tt.usec, envWatchdogPID: tt.pid}
			got, err := askedFor(7, func(key string) string { return env[key] })
			if got != tt.want || (err != nil) != tt.wrong {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
		})
	}
}

func TestWatchdog_NamesTheLoopThatIsStuck(t *testing.T) {
	var w Watchdog
	idle, stuck := w.Loop("idle"), w.Loop("stuck")
	stuck.Alive()
	periods := 0
	for ; periods < 100; periods++ {
		idle.Alive()
		if got := w.progress.after(10 * time.Second); got != "" {
			if got != "stuck" {
				t.Errorf("got loop %s, want stuck", got)
			}
			break
		}
	}
	// The first period sees the one sign of life, three more see none.
	if periods != 3 {
		t.Errorf("noticed after %d periods of 10 s without a sign, want 3", periods)
	}
	stuck.Alive()
	if got := w.progress.after(10 * time.Second); got != "" {
		t.Errorf("got loop %s, want none: it goes on", got)
	}
}
