package condition

import (
	"strings"
	"testing"
	"time"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

const (
	unknown = resourcev1.ConditionState_CONDITION_STATE_UNKNOWN
	yes     = resourcev1.ConditionState_CONDITION_STATE_TRUE
	no      = resourcev1.ConditionState_CONDITION_STATE_FALSE
)

func TestTracked_Condition(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const hold = 5 * time.Second
	type said struct {
		after time.Duration
		what  Observation
	}
	serving, away, gone := Observation{Answer: Serving}, Observation{Away, "no answer"}, Observation{Gone, "stopping"}
	for _, c := range []struct {
		name  string
		said  []said
		at    time.Duration
		want  resourcev1.ConditionState
		due   time.Duration // 0: never
		since time.Duration
	}{
		{"nothing was heard yet", nil, time.Second, unknown, hold, 0},
		{"nothing was heard at all", nil, hold, no, 0, hold},
		{"it serves", []said{{time.Second, serving}}, time.Second, yes, 0, time.Second},
		{"it crashed a moment ago", []said{{time.Second, serving}, {2 * time.Second, away}}, 6 * time.Second, yes, 7 * time.Second, time.Second},
		{"it crashed and stayed away", []said{{time.Second, serving}, {2 * time.Second, away}}, 7 * time.Second, no, 0, 7 * time.Second},
		{"it says no again and again", []said{{time.Second, serving}, {2 * time.Second, away}, {6 * time.Second, away}}, 7 * time.Second, no, 0, 7 * time.Second},
		{"it came back in time", []said{{time.Second, serving}, {2 * time.Second, away}, {3 * time.Second, serving}}, 60 * time.Second, yes, 0, time.Second},
		{"it crashed twice, each for a moment", []said{{time.Second, serving}, {2 * time.Second, away}, {6 * time.Second, serving}, {7 * time.Second, away}}, 11 * time.Second, yes, 12 * time.Second, time.Second},
		{"it was stopped", []said{{time.Second, serving}, {2 * time.Second, gone}}, 2 * time.Second, no, 0, 2 * time.Second},
		{"it was stopped and its socket is gone", []said{{time.Second, serving}, {2 * time.Second, gone}, {3 * time.Second, away}}, 3 * time.Second, no, 7 * time.Second, 2 * time.Second},
		{"it never served", []said{{time.Second, away}}, 2 * time.Second, unknown, hold, 0},
		{"it never served for long", []said{{time.Second, away}}, hold, no, 0, hold},
	} {
		t.Run(c.name, func(t *testing.T) {
			tracked := Track("Storage", start)
			for _, s := range c.said {
				tracked.Observe(start.Add(s.after), s.what)
				tracked.Condition(start.Add(s.after), hold)
			}
			got, due := tracked.Condition(start.Add(c.at), hold)
			if got.GetState() != c.want || got.GetSince().AsTime().Sub(start) != c.since {
				t.Errorf("got %v since %v, want %v since %v", got.GetState(), got.GetSince().AsTime().Sub(start), c.want, c.since)
			}
			if want := c.due; (want == 0) != due.IsZero() || want != 0 && due.Sub(start) != want {
				t.Errorf("due at %v, want %v", due.Sub(start), want)
			}
			if (got.GetReason() == "") != (got.GetState() == yes) {
				t.Errorf("reason of %v is %q", got.GetState(), got.GetReason())
			}
		})
	}
}

func TestConjunction(t *testing.T) {
	c := func(kind string, s resourcev1.ConditionState) *resourcev1.Condition {
		return &resourcev1.Condition{Type: kind, State: s, Reason: "why"}
	}
	for _, tt := range []struct {
		name string
		all  []*resourcev1.Condition
		want resourcev1.ConditionState
		says string
	}{
		{"all hold", []*resourcev1.Condition{c("A", yes), c("B", yes)}, yes, ""},
		{"one fails", []*resourcev1.Condition{c("A", yes), c("B", no), c("C", unknown)}, no, "B: why"},
		{"two fail", []*resourcev1.Condition{c("A", no), c("B", no)}, no, "A: why; B: why"},
		{"one is not known", []*resourcev1.Condition{c("A", yes), c("B", unknown)}, unknown, "B: why"},
		{"one was never set", []*resourcev1.Condition{{Type: "A"}}, unknown, "A: "},
	} {
		got, says := Conjunction(tt.all)
		if got != tt.want || says != tt.says {
			t.Errorf("%s: got %v %q, want %v %q", tt.name, got, says, tt.want, tt.says)
		}
	}
}

func TestTypeOf(t *testing.T) {
	for process, want := range map[string]string{
		"clusteraccess": "ClusterAccess", "storage": "Storage", "storage-agent": "StorageAgent",
		"sandboxhost": "SandboxHost", "sandbox-agent": "SandboxAgent", "x--y": "XY",
	} {
		if got := TypeOf(process); got != want {
			t.Errorf("type of %s is %s, want %s", process, got, want)
		}
	}
}

func TestClip_StaysValidText(t *testing.T) {
	got := clip(strings.Repeat("€", 1000))
	if len(got) > maxReason || strings.ToValidUTF8(got, "") != got {
		t.Errorf("clipped to %d bytes of text that is valid: %v", len(got), strings.ToValidUTF8(got, "") == got)
	}
}
