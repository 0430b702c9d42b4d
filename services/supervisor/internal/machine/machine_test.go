package machine

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func testPlan(components ...Component) Plan {
	for i := range components {
		components[i].StartTimeout, components[i].StopTimeout = 60*time.Second, 10*time.Second
	}
	return Plan{
		Components: components, SilentGrace: 3 * time.Second,
		Backoff: backoff.Policy{Initial: 100 * time.Millisecond, Cap: 10 * time.Second, Stable: time.Minute},
	}
}

// bench drives a machine by hand: it answers every Start with a new process.
type bench struct {
	t       *testing.T
	plan    Plan
	table   Table
	now     time.Time
	nextPID int
	actions []Action // since the last take, without starts
	starts  []string // since the last take
}

func newBench(t *testing.T, plan Plan) *bench {
	b := &bench{t: t, plan: plan, table: plan.Start(epoch), now: epoch, nextPID: 100}
	b.send(Event{Kind: Tick})
	return b
}

func (b *bench) send(e Event) {
	todo := []Event{e}
	for len(todo) > 0 {
		e, todo = todo[0], todo[1:]
		e.At = b.now
		var actions []Action
		b.table, actions = b.plan.Step(b.table, e)
		for _, a := range actions {
			if a.Kind != Start {
				b.actions = append(b.actions, a)
				continue
			}
			b.starts = append(b.starts, a.Name)
			b.nextPID++
			todo = append(todo, Event{Kind: Spawned, Name: a.Name, PID: b.nextPID})
		}
	}
}

func (b *bench) about(kind EventKind, name, reason string) {
	b.send(Event{Kind: kind, Name: name, PID: b.table.Members[name].PID, Reason: reason, Exit: Exit{How: reason}})
}

func (b *bench) pass(d time.Duration) {
	b.now = b.now.Add(d)
	b.send(Event{Kind: Tick})
}

func (b *bench) wantStarts(names ...string) {
	b.t.Helper()
	if !slices.Equal(b.starts, names) {
		b.t.Errorf("got starts %v, want %v", b.starts, names)
	}
	b.starts = nil
}

func (b *bench) wantActions(want ...string) {
	b.t.Helper()
	var got []string
	for _, a := range b.actions {
		got = append(got, map[ActionKind]string{Terminate: "terminate ", Kill: "kill "}[a.Kind]+a.Name)
	}
	if !slices.Equal(got, want) {
		b.t.Errorf("got actions %v, want %v", got, want)
	}
	b.actions = nil
}

func (b *bench) wantState(name string, state State, reason string) {
	b.t.Helper()
	m := b.table.Members[name]
	if m.State != state || !strings.Contains(m.Reason, reason) {
		b.t.Errorf("got %s %s (%q), want %s with %q", name, m.State, m.Reason, state, reason)
	}
}

func chain() Plan {
	return testPlan(
		Component{Name: "a"},
		Component{Name: "b", Needs: []string{"a"}},
		Component{Name: "c", OrderOnly: []string{"b"}})
}

func booted(t *testing.T) *bench {
	b := newBench(t, chain())
	for _, name := range []string{"a", "b", "c"} {
		b.about(Serving, name, "")
	}
	b.starts = nil
	if !b.table.Booted {
		t.Fatal("got not booted, want all ready")
	}
	return b
}

func TestStep_StartsInOrderOfReadiness(t *testing.T) {
	b := newBench(t, chain())
	b.wantStarts("a")
	b.wantState("b", Waiting, "waiting for a (starting)")
	b.about(NotServing, "a", "recovering 3 volumes")
	b.wantStarts()
	b.wantState("b", Waiting, "recovering 3 volumes")
	b.about(Serving, "a", "")
	b.wantStarts("b")
	b.about(Serving, "b", "")
	b.wantStarts("c")
}

func TestStep_DependentsWaitWhileANeedFailsAtBoot(t *testing.T) {
	b := newBench(t, chain())
	b.about(Serving, "a", "")
	b.starts = nil
	b.about(Exited, "b", "exit code 1")
	b.wantState("b", BackingOff, "exit code 1")
	b.wantState("c", Waiting, "waiting for b (backing off: exit code 1)")
	b.pass(time.Second)
	b.wantStarts("b")
}

func TestStep_CrashRestartsOnlyTheCrashed(t *testing.T) {
	b := booted(t)
	b.about(Exited, "a", "signal killed")
	b.wantState("b", Ready, "")
	b.pass(100 * time.Millisecond)
	b.wantStarts("a")
	b.wantActions()
}

func TestStep_WhoWasReadyDoesNotWaitForItsNeeds(t *testing.T) {
	b := booted(t)
	b.about(Exited, "a", "exit code 1")
	b.about(Exited, "b", "exit code 1")
	b.pass(100 * time.Millisecond)
	b.wantStarts("a", "b")
}

func TestStep_BackoffGrowsToItsCapAndResetsWhenStable(t *testing.T) {
	b := newBench(t, testPlan(Component{Name: "a"}))
	var waits []time.Duration
	for range 10 {
		b.about(Exited, "a", "exit code 1")
		wait := b.table.Deadline().Sub(b.now)
		waits = append(waits, wait)
		b.pass(wait)
	}
	if waits[0] > time.Second || waits[9] != 10*time.Second || !slices.IsSorted(waits) {
		t.Errorf("got waits %v, want them to grow from the first to 10s", waits)
	}
	b.pass(time.Minute - time.Second)
	b.about(Serving, "a", "")
	b.pass(2 * time.Second)
	b.about(Exited, "a", "exit code 1")
	if wait := b.table.Deadline().Sub(b.now); wait != waits[0] {
		t.Errorf("got wait %s after a stable minute, want %s", wait, waits[0])
	}
}

func TestStep_RestartCutsTheWaitAndKeepsTheCount(t *testing.T) {
	b := newBench(t, testPlan(Component{Name: "a"}))
	for range 8 {
		b.about(Exited, "a", "exit code 1")
		b.pass(10 * time.Second)
	}
	b.about(Exited, "a", "exit code 1")
	b.starts = nil
	b.send(Event{Kind: RestartAsked, Name: "a"})
	b.wantStarts("a")
	b.about(Exited, "a", "exit code 1")
	if wait := b.table.Deadline().Sub(b.now); wait != 10*time.Second {
		t.Errorf("got wait %s, want the count kept at 10s", wait)
	}
}

func TestStep_StartTimeoutCountsOnlyOwnTime(t *testing.T) {
	tests := []struct {
		name string
		says Event
		ends bool
	}{
		{"own reason", Event{Reason: "recovering"}, true},
		{"reason outside the machine", Event{Reason: "no lease ever", External: true}, false},
		{"waits for one that is not ready", Event{Reason: "waiting for a", WaitingFor: []string{"a"}}, false},
		{"claims to wait for one that is ready", Event{Reason: "waiting for c", WaitingFor: []string{"c"}}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, testPlan(Component{Name: "a"}, Component{Name: "b"}, Component{Name: "c"}))
			b.about(Serving, "c", "")
			says := tt.says
			says.Kind, says.Name, says.PID = NotServing, "b", b.table.Members["b"].PID
			b.about(NotServing, "a", "waiting") // a is held up by itself, and does not count here
			b.table.Members["a"].external = true
			b.send(says)
			b.pass(61 * time.Second)
			if got := b.table.Members["b"].State == Stopping; got != tt.ends {
				t.Errorf("got %s (%s), want it ended: %v", b.table.Members["b"].State, b.table.Members["b"].Reason, tt.ends)
			}
		})
	}
}

func TestStep_StartTimeoutEndsAndBacksOff(t *testing.T) {
	b := newBench(t, testPlan(Component{Name: "a"}))
	b.about(NotServing, "a", "recovering")
	b.pass(60 * time.Second)
	b.wantActions("terminate a")
	b.pass(10 * time.Second)
	b.wantActions("kill a")
	b.about(Exited, "a", "signal killed")
	b.wantState("a", BackingOff, "not ready within 1m0s: recovering")
}

func TestStep_HungIsKilledAtOnce(t *testing.T) {
	b := booted(t)
	b.about(Hung, "b", "no answer")
	b.wantActions("kill b")
	b.about(Exited, "b", "signal killed")
	b.wantState("b", BackingOff, "no answer")
	b.wantState("c", Ready, "")
}

func TestStep_DipIsNotForEver(t *testing.T) {
	b := booted(t)
	b.about(NotServing, "a", "disk full")
	b.wantState("a", NotReady, "disk full")
	b.pass(time.Hour)
	b.wantState("a", NotReady, "disk full")
	b.about(Serving, "a", "")
	b.wantState("a", Ready, "")
	b.wantActions()
	b.wantStarts()
}

func TestStep_StopsInExactReverse(t *testing.T) {
	b := booted(t)
	b.send(Event{Kind: StopAsked})
	for _, name := range []string{"c", "b", "a"} {
		b.wantActions("terminate " + name)
		if b.table.Over {
			t.Fatal("got over, want it to wait for " + name)
		}
		b.about(Exited, name, "exit code 0")
	}
	if !b.table.Over {
		t.Error("got not over, want over")
	}
	b.wantStarts()
}

func TestStep_StopWhileWaitingAndStarting(t *testing.T) {
	b := newBench(t, chain())
	b.send(Event{Kind: RestartAsked, Name: "b"}) // still waiting: nothing to end
	b.wantState("b", Waiting, "waiting for a")
	b.send(Event{Kind: StopAsked})
	b.wantActions("terminate a")
	b.wantState("c", Stopped, "")
	b.pass(3 * time.Second) // it never answered: the short grace
	b.wantActions("kill a")
	b.about(Exited, "a", "signal killed")
	if !b.table.Over {
		t.Error("got not over, want over")
	}
}

func TestStep_RestartIsOneProcessAtATime(t *testing.T) {
	b := booted(t)
	b.send(Event{Kind: RestartAsked, Name: "b"})
	b.wantActions("terminate b")
	for range 5 {
		if err := b.table.CanRestart("b"); !errors.Is(err, fault.Conflict) {
			t.Errorf("got %v, want Conflict while it is stopping", err)
		}
		b.send(Event{Kind: RestartAsked, Name: "b"})
	}
	b.wantStarts()
	b.about(Exited, "b", "exit code 0")
	b.wantStarts("b")
	b.wantActions()
}

func TestStep_FailFastUnwindsOnlyTheBoot(t *testing.T) {
	plan := chain()
	plan.FailFast = true
	b := newBench(t, plan)
	b.about(Serving, "a", "")
	b.about(Exited, "b", "exit code 1")
	b.wantActions("terminate a")
	b.about(Exited, "a", "exit code 0")
	if !b.table.Over || !strings.Contains(b.table.Failure, "b: exit code 1") {
		t.Errorf("got over %v, failure %q, want the failure of b", b.table.Over, b.table.Failure)
	}

	b = newBench(t, plan)
	for _, name := range []string{"a", "b", "c"} {
		b.about(Serving, name, "")
	}
	b.about(Exited, "b", "exit code 1")
	if b.table.Stopping {
		t.Error("got stopping, want a crash after the boot to be only a crash")
	}
}

func TestStep_IgnoresWordsAboutAnEarlierProcess(t *testing.T) {
	b := booted(t)
	old := b.table.Members["a"].PID
	b.about(Exited, "a", "exit code 1")
	b.pass(time.Second)
	b.send(Event{Kind: Serving, Name: "a", PID: old})
	b.wantState("a", Starting, "")
	b.send(Event{Kind: Exited, Name: "a", PID: old, Exit: Exit{How: "again"}})
	b.wantState("a", Starting, "")
}

func TestCanRestart(t *testing.T) {
	b := booted(t)
	if err := b.table.CanRestart("x"); !errors.Is(err, fault.NotFound) {
		t.Errorf("got %v, want NotFound", err)
	}
	if err := b.table.CanRestart("a"); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	b.send(Event{Kind: StopAsked})
	if err := b.table.CanRestart("a"); !errors.Is(err, fault.Conflict) {
		t.Errorf("got %v, want Conflict", err)
	}
}
