package supervise

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"staddle.internal/services/supervisor/internal/machine"
)

func TestHistory_IsARingThatSaysWhatItLost(t *testing.T) {
	h := NewHistory()
	_, _, changed := h.After(0)
	for n := range keptTransitions + 10 {
		if got := h.add(Transition{Attempt: uint32(n)}); got.Seq != uint64(n+1) {
			t.Fatalf("got number %d, want %d", got.Seq, n+1)
		}
	}
	select {
	case <-changed:
	default:
		t.Error("got no word of the additions")
	}
	for _, tt := range []struct{ after, first, missed uint64 }{
		{0, 11, 10}, {9, 11, 1}, {10, 11, 0}, {500, 501, 0}, {keptTransitions + 9, keptTransitions + 10, 0},
	} {
		found, missed, _ := h.After(tt.after)
		if len(found) != int(keptTransitions+10-tt.first+1) || found[0].Seq != tt.first || missed != tt.missed {
			t.Errorf("after %d: got %d from number %d with %d missed, want from %d with %d", tt.after, len(found), found[0].Seq, missed, tt.first, tt.missed)
		}
		for i := range found {
			if found[i].Seq != tt.first+uint64(i) || uint64(found[i].Attempt) != found[i].Seq-1 {
				t.Fatalf("got number %d of attempt %d in place %d", found[i].Seq, found[i].Attempt, i)
			}
		}
	}
	for _, after := range []uint64{keptTransitions + 10, 1 << 60} {
		if found, missed, _ := h.After(after); len(found) > 0 || missed > 0 {
			t.Errorf("after %d: got %v and %d missed, want nothing", after, found, missed)
		}
	}
	if other := NewHistory(); other.Life() == h.Life() {
		t.Error("two histories have one name")
	}
}

func TestBounded_CutsBetweenCharacters(t *testing.T) {
	for n := range 8 {
		got := bounded(strings.Repeat("x", n) + strings.Repeat("ö", maxCause))
		if len(got) > maxCause || !utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
			t.Errorf("got %d bytes ending in %q", len(got), got[len(got)-6:])
		}
	}
	if got := bounded("a\xffb"); got != "a?b" {
		t.Errorf("got %q", got)
	}
}

// told is one transition in words.
func told(t Transition) string {
	exit := ""
	if t.Exit != nil {
		exit = ", " + t.Exit.How
	}
	return fmt.Sprintf("%d %s: %s > %s (%s) attempt %d%s, next %s", t.Seq, t.Component, t.From, t.To, t.Cause, t.Attempt, exit, t.NextDelay.Round(100*time.Millisecond))
}

func TestLoop_EachTransitionIsOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &obedient{}
		l, stop := run(t, o, false)
		o.end("a", l.Table().Members["a"].PID, "exit code 3")
		<-time.After(time.Second)
		for _, wish := range []error{l.Stop(t.Context(), "b"), l.Stop(t.Context(), "b"), l.Start(t.Context(), "b"), l.Start(t.Context(), "b")} {
			if wish != nil {
				t.Error(wish)
			}
			synctest.Wait()
		}
		_ = stop() // by its end, which is looked at elsewhere
		var got []string
		found, _, _ := l.History().After(0)
		for _, tr := range found {
			got = append(got, told(tr))
		}
		if text := strings.Join(got, "\n"); text != wantStory {
			t.Errorf("got\n%s\nwant\n%s", text, wantStory)
		}
	})
}

const wantStory = `1 a: waiting > starting (starting) attempt 1, next 0s
2 a: starting > ready () attempt 1, next 0s
3 b: waiting > starting (starting) attempt 1, next 0s
4 b: starting > ready () attempt 1, next 0s
5 a: ready > backing off (exit code 3) attempt 1, exit code 3, next 100ms
6 a: backing off > starting (its back-off is over) attempt 2, next 0s
7 a: starting > ready () attempt 2, next 0s
8 b: ready > stopping (stopped by an operator) attempt 1, next 0s
9 b: stopping > stopped (stopped by an operator) attempt 1, exit code 0, next 0s
10 b: stopped > starting (start asked for) attempt 2, next 0s
11 b: starting > ready () attempt 2, next 0s
12 b: ready > stopping (the supervisor is stopping) attempt 2, next 0s
13 b: stopping > stopped () attempt 2, exit code 0, next 0s
14 a: ready > stopping (the supervisor is stopping) attempt 2, next 0s
15 a: stopping > stopped () attempt 2, exit code 0, next 0s`

func TestLoop_StopOfOneAnswersWhenItsProcessIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &obedient{deaf: true}
		l, stop := run(t, o, false)
		begin := time.Now()
		answers := make(chan error, 2)
		for range 2 {
			go func() { answers <- l.Stop(t.Context(), "a") }() // waited for below
		}
		synctest.Wait()
		if err := l.Start(t.Context(), "a"); err == nil {
			t.Error("got a start while it is stopping, want Conflict")
		}
		for range 2 {
			if err := <-answers; err != nil || time.Since(begin) != 10*time.Second {
				t.Errorf("got %v after %s, want an answer after the grace of a deaf process", err, time.Since(begin))
			}
		}
		<-time.After(time.Hour)
		table := l.Table()
		if a, b := table.Members["a"], table.Members["b"]; a.State != machine.Stopped || b.State != machine.Ready || b.Starts != 1 {
			t.Errorf("got a %s and b %s after %d starts, want a stopped and b untouched", a.State, b.State, b.Starts)
		}
		if reason, _ := Describe(l.plan, table); !strings.Contains(reason, "a is stopped (stopped by an operator)") {
			t.Errorf("got %q, want the cause", reason)
		}
		_ = stop() // by its end, which is looked at elsewhere
	})
}
