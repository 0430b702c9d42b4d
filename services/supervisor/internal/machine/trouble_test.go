package machine

import (
	"testing"
	"time"
)

func TestStep_KillsAgainUntilGone(t *testing.T) {
	b := booted(t)
	b.about(Hung, "c", "no answer")
	b.wantActions("kill c")
	b.pass(killAgain - time.Second)
	b.wantActions()
	for range 3 {
		b.pass(killAgain)
		b.wantActions("kill c")
		b.wantState("c", Stopping, "was killed and is not gone yet")
	}
	b.about(Exited, "c", "signal killed")
	b.wantState("c", BackingOff, "no answer")
}

func TestStep_TwoThatWaitForEachOtherRunOutOfTime(t *testing.T) {
	b := newBench(t, testPlan(Component{Name: "a"}, Component{Name: "b"}))
	says := func(name, other string) {
		b.send(Event{Kind: NotServing, Name: name, PID: b.table.Members[name].PID, Reason: "waiting for " + other, WaitingFor: []string{name, other}})
	}
	says("a", "b")
	says("b", "a")
	b.pass(time.Minute)
	b.wantActions("terminate a")
	b.wantState("a", Stopping, "not ready within 1m0s: waiting for b")
	b.wantState("b", Starting, "waiting for a")
}

func TestStep_WhatCannotBeMadeWasNotStable(t *testing.T) {
	plan := testPlan(Component{Name: "a"})
	table, _ := plan.Step(plan.Start(epoch), Event{Kind: Tick, At: epoch})
	now := epoch
	for want := 1; want <= 3; want++ {
		now = now.Add(plan.Backoff.Stable) // as long as the stable time, and short of the start time-out
		table.Members["a"].left = time.Hour
		table, _ = plan.Step(table, Event{Kind: SpawnFailed, Name: "a", At: now, Reason: "no memory"})
		if got := table.Members["a"].failures; got != want {
			t.Fatalf("got failure %d in a row, want %d", got, want)
		}
		now = table.Deadline()
		table, _ = plan.Step(table, Event{Kind: Tick, At: now})
	}
}

func TestStep_StopWaitsForNobodyWithoutAProcess(t *testing.T) {
	b := booted(t)
	b.about(Exited, "a", "exit code 1")
	b.send(Event{Kind: StopAsked})
	b.wantState("a", Stopped, "")
	b.wantActions("terminate c")
	b.pass(time.Second) // its back-off would be over
	b.wantStarts()
}

// TestStep_StartTimeoutKeepsWhatIsLeft halts the start time-out for a while: it goes
// on where it was.
func TestStep_StartTimeoutKeepsWhatIsLeft(t *testing.T) {
	b := newBench(t, testPlan(Component{Name: "a"}))
	b.pass(40 * time.Second)
	b.send(Event{Kind: NotServing, Name: "a", PID: b.table.Members["a"].PID, Reason: "no lease ever", External: true})
	b.pass(time.Hour)
	b.wantActions()
	b.about(NotServing, "a", "recovering")
	b.pass(19 * time.Second)
	b.wantActions()
	b.pass(time.Second)
	b.wantActions("terminate a")
}
