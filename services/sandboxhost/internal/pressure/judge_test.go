package pressure

import (
	"errors"
	"strings"
	"testing"
	"time"

	"staddle.internal/services/sandboxhost/internal/filesystem"
)

const mib = 1 << 20

func TestJudge(t *testing.T) {
	limits := Limits{
		MemoryMinFree: 100 * mib, MemoryStallPercent: 40, DiskMinFree: 50 * mib, DiskMinFreePercent: 5, PIDMinFreePercent: 10,
	}
	disk := func(size, free, inodes, inodesFree int64) Verdict {
		return JudgeDisks([]filesystem.Space{{Path: "/big", Size: 1 << 40, Free: 1 << 39}, {Path: "/d", Size: size, Free: free, Inodes: inodes, InodesFree: inodesFree}}, limits)
	}
	pids := func(now, most int64) Verdict {
		return JudgePIDs([]PIDUse{{Of: "this machine", Now: 1, Most: 1000}, {Of: "all workloads", Now: now, Most: most}}, limits)
	}
	memory := func(available int64, stall float64) Verdict {
		return JudgeMemory(MemoryUse{Available: available, Total: 1 << 30, Stall: stall}, limits)
	}
	for _, c := range []struct {
		name  string
		got   Verdict
		short string // part of the reason, "" for none
		well  bool
	}{
		{"memory", memory(500*mib, -1), "", true},
		{"memory, just enough", memory(100*mib, -1), "", false},
		{"memory, by the margin", memory(110*mib, -1), "", true},
		{"memory, too little", memory(99*mib, -1), "99.0 MiB of 1.0 GiB memory available, 100.0 MiB have to be", false},
		{"memory, stalled", memory(500*mib, 41), "41 % of ten seconds, 40 % may be", false},
		{"memory, stalled a little less", memory(500*mib, 37), "", false},
		{"memory, hardly stalled", memory(500*mib, 10), "", true},
		{"disk", disk(1000*mib, 500*mib, 1000, 500), "", true},
		{"disk, less than the size", disk(200*mib, 49*mib, 0, 0), "49.0 MiB of 200.0 MiB free on the filesystem of /d; 50.0 MiB have to be free", false},
		{"disk, less than the share", disk(2000*mib, 99*mib, 0, 0), "/d; 100.0 MiB have to be free", false},
		{"disk, inodes", disk(2000*mib, 1000*mib, 1000, 49), "49 of 1000 inodes; 50 inodes have to be free", false},
		{"disk, no inodes counted", disk(2000*mib, 1000*mib, 0, 0), "", true},
		{"pids", pids(50, 100), "", true},
		{"pids, not limited", pids(50, 0), "", true},
		{"pids, too many", pids(91, 100), "91 of 100 process ids of all workloads in use, 10 have to be free", false},
		{"pids, within the margin", pids(90, 100), "", false},
		{"all off", JudgeMemory(MemoryUse{Stall: 100}, Limits{}), "", true},
		{"disk off", JudgeDisks([]filesystem.Space{{Size: 100}}, Limits{}), "", true},
		{"pids off", JudgePIDs([]PIDUse{{Now: 100, Most: 100}}, Limits{}), "", true},
	} {
		if c.got.Err != nil || c.got.Well != c.well || (c.short == "") != (c.got.Short == "") || !strings.Contains(c.got.Short, c.short) {
			t.Errorf("%s: got %+v, want short %q, well %t", c.name, c.got, c.short, c.well)
		}
	}
}

func TestTrack(t *testing.T) {
	const hold = 60 * time.Second
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	well, between := Verdict{Well: true}, Verdict{}
	short := func(why string) Verdict { return Verdict{Short: why} }
	failed := Verdict{Err: errors.New("cannot ask")}
	type step struct {
		at     time.Duration
		v      Verdict
		state  State
		reason string
	}
	for name, steps := range map[string][]step{
		"never measured":               {{0, failed, Unknown, "cannot ask"}, {10, well, Well, ""}},
		"begins at once":               {{0, well, Well, ""}, {10, short("a"), Short, "a"}, {20, short("b"), Short, "a"}},
		"ends after the hold":          {{0, short("a"), Short, "a"}, {10, well, Short, "a"}, {69, well, Short, "a"}, {70, well, Well, ""}},
		"flaps":                        {{0, short("a"), Short, "a"}, {10, well, Short, "a"}, {60, short("b"), Short, "a"}, {70, well, Short, "a"}, {100, well, Short, "a"}, {130, well, Well, ""}},
		"not by the margin":            {{0, short("a"), Short, "a"}, {10, between, Short, "a"}, {100, between, Short, "a"}, {110, well, Short, "a"}, {170, well, Well, ""}},
		"between while well":           {{0, well, Well, ""}, {10, between, Well, ""}},
		"a failed question":            {{0, short("a"), Short, "a"}, {10, well, Short, "a"}, {60, failed, Short, "a"}, {70, well, Short, "a"}, {130, well, Well, ""}},
		"a failed one changes no well": {{0, well, Well, ""}, {10, failed, Well, ""}},
	} {
		var track Track
		for i, s := range steps {
			before := track
			track = track.Next(start.Add(s.at*time.Second), s.v, hold)
			if track.State != s.state || track.Reason != s.reason {
				t.Errorf("%s, step %d: got %+v, want state %d, reason %q", name, i, track, s.state, s.reason)
			}
			if (track.Since != before.Since) != (track.State != before.State || i == 0) {
				t.Errorf("%s, step %d: since went from %v to %v", name, i, before.Since, track.Since)
			}
		}
	}
	if got := (Track{}).Next(start, short("a"), 0).Next(start, well, 0); got.State != Well {
		t.Errorf("without a hold: got %+v", got)
	}
}
