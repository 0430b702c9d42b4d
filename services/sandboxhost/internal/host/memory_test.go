package host

import (
	"strings"
	"testing"
	"time"

	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// LIF-5: kills for memory are counted while the container runs and after it, and
// told with its end, whatever that was.
func TestNoteExit_TellsKillsForMemory(t *testing.T) {
	for _, tt := range []struct {
		name string
		seen uint64 // counted while it ran
		exit engine.Exit
		says string
	}{
		{"main process", 0, engine.Exit{Code: 137, OOMKilled: true, OOMKills: 1}, "container main was ended for using more memory than its limit"},
		{"main process after a child", 1, engine.Exit{Code: 137, OOMKilled: true, OOMKills: 2}, "its limit, another process of it was ended for using more memory than its limit"},
		{"child", 1, engine.Exit{Code: 137, OOMKills: 1}, "ended by signal 9, another process of it was"},
		{"children", 1, engine.Exit{OOMKills: 3}, "with code 0, 3 other processes of it were"},
		{"nobody can tell", 2, engine.Exit{Unknown: true}, "nobody can tell how"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			note := &sandboxhostv1.ContainerNote{Container: "main", Attempt: 3}
			r := &sandboxhostv1.SandboxRecord{Status: &resourcev1.SandboxStatus{
				Attempt: 3, Containers: []*resourcev1.ContainerStatus{{Name: "main"}},
			}}
			mirror(r, engine.Observed{Containers: []engine.Container{{Note: note, State: engine.Running, OOMKills: tt.seen, OOMKillsBeside: tt.seen}}})
			if n := r.GetStatus().GetContainers()[0].GetOomKills(); n != tt.seen {
				t.Errorf("while it runs it shows %d kills, want %d", n, tt.seen)
			}
			mirror(r, engine.Observed{Containers: []engine.Container{{Note: note, State: engine.Running}}})
			if n := r.GetStatus().GetContainers()[0].GetOomKillsBeside(); n != tt.seen {
				t.Errorf("it shows %d kills beside the main process, want %d, which never fall", n, tt.seen)
			}
			noteExit(r, engine.Container{Note: note, State: engine.Exited, Exit: &tt.exit}, moment{Wall: time.Unix(1, 0)})
			if n := r.GetStatus().GetExits()[0].GetOomKills(); n != tt.exit.OOMKills {
				t.Errorf("its exit shows %d kills, want %d", n, tt.exit.OOMKills)
			}
			if n := r.GetStatus().GetContainers()[0].GetOomKills(); n != max(tt.seen, tt.exit.OOMKills) {
				t.Errorf("after its exit it shows %d kills", n)
			}
			if said := describeExits(r.GetStatus()); !strings.Contains(said, tt.says) {
				t.Errorf("it says %q, not %q", said, tt.says)
			}
		})
	}
}
