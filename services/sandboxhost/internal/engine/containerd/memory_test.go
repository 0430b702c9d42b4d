package containerd

import (
	"testing"
	"time"
)

// LIF-5: what the kernel counts says whom it ended, not the exit code alone.
func TestKills_AreAttributed(t *testing.T) {
	type look struct {
		after  time.Duration
		count  uint64
		beside bool // the last of these was not the main process
	}
	for _, tt := range []struct {
		name  string
		looks []look
		code  uint32
		count uint64
		after time.Duration
		want  bool
	}{
		{"main process, nobody looked", nil, killed, 1, time.Hour, true},
		{"main process, counted just before it was gone", []look{{time.Minute, 1, false}}, killed, 1, time.Minute + time.Second, true},
		{"main process, counted twice before it was gone", []look{{time.Minute, 1, false}, {time.Minute + time.Second, 1, false}}, killed, 1, time.Minute + 2*time.Second, true},
		{"child, then SIGKILL of somebody else", []look{{time.Minute, 1, false}}, killed, 1, time.Hour, false},
		{"child, then main process", []look{{time.Minute, 1, false}}, killed, 2, time.Hour, true},
		{"child, then another child and main process at once", []look{{time.Minute, 1, false}, {time.Hour, 2, false}}, killed, 2, time.Hour, true},
		{"two children, then SIGKILL of somebody else", []look{{time.Minute, 1, false}, {time.Hour, 2, false}}, killed, 2, 2 * time.Hour, false},
		{"probe, then SIGKILL of somebody else at once", []look{{time.Minute, 1, true}}, killed, 1, time.Minute, false},
		{"probe, then main process at once", []look{{time.Minute, 1, true}}, killed, 2, time.Minute, true},
		{"probe that was not counted", []look{{time.Minute, 0, true}}, killed, 1, time.Minute, true},
		{"children, then an exit of its own", []look{{time.Minute, 1, false}}, 1, 2, time.Hour, false},
		{"SIGKILL of somebody else", []look{{time.Minute, 0, false}}, killed, 0, time.Hour, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			var k kills
			for _, l := range tt.looks {
				if k = k.saw(l.count, start.Add(l.after)); l.beside {
					k = k.beside()
				}
			}
			if got := k.ended(tt.code, tt.count, start.Add(tt.after)); got != tt.want {
				t.Errorf("ended for memory: %t, want %t (%+v)", got, tt.want, k)
			}
		})
	}
}
