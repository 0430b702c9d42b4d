package machine

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"
)

// happening is what happens to a node.
type happening struct {
	n    node
	mode mode
	in   input
	due  bool
}

func (h happening) kind() EventKind { return h.in.event.Kind }

// checkHappen checks what follows from an event and a timer alone.
func (l *lab) checkHappen(h happening, mid node, e edge) error {
	was, is := h.n.m.State, mid.m.State
	entered := is == BackingOff && was != BackingOff
	switch {
	case (mid.m.PID != 0) != mid.g.live || mid.m.spawning != mid.g.asked:
		return fmt.Errorf("has process %d and asked for one %v, want %+v", mid.m.PID, mid.m.spawning, mid.g)
	case !mid.g.live && !mid.g.asked && (mid.m.external || mid.m.waitingFor != nil):
		return errors.New("remembers what an earlier process said")
	case e.acts.has(Start):
		return errors.New("is started before it has looked at the others")
	case (e.acts.has(Terminate) || e.acts.has(Kill)) && !mid.g.live:
		return errors.New("its process is signalled, and is not there")
	case e.failed != (h.mode == armed && entered):
		return fmt.Errorf("stops everything: %v", e.failed)
	case mid.stopping != (e.failed || h.mode == halt):
		return fmt.Errorf("everything is stopping: %v", mid.stopping)
	}
	for _, check := range []func(happening, node, edge) error{l.checkSignals, l.checkTimer, l.checkWords, l.checkEnd} {
		if err := check(h, mid, e); err != nil {
			return err
		}
	}
	if entered {
		if err := checkBackoff(mid); err != nil {
			return err
		}
	}
	return l.checkGrace(h.n, mid, h.kind() == Hung, e.acts)
}

// checkSignals checks that a process is ended for a reason: health alone is none.
func (l *lab) checkSignals(h happening, mid node, e edge) error {
	mayEnd, mayKill := false, h.due && h.n.m.State == Stopping
	switch h.kind() {
	case RestartAsked, StopOneAsked:
		mayEnd = true
	case Spawned:
		mayEnd = h.n.m.State == Stopping
	case Hung:
		mayKill = true
	}
	mayEnd = mayEnd || h.due && h.n.m.State == Starting
	if e.acts.has(Terminate) && !mayEnd || e.acts.has(Kill) && !mayKill {
		return errors.New("its process is ended for no reason")
	}
	told := e.acts.has(Terminate) || e.acts.has(Kill)
	if newly := h.n.m.State != Stopping || !h.n.g.live; mid.m.State == Stopping && mid.g.live && newly && !told {
		return errors.New("is stopping and its process is not told")
	}
	return nil
}

// checkTimer checks what the end of a timer does when nothing else happens, and that
// nothing comes of nothing.
func (l *lab) checkTimer(h happening, mid node, e edge) error {
	if h.kind() != 0 {
		return nil
	}
	if !h.due {
		if mid.m.State != h.n.m.State || e.acts != 0 {
			return fmt.Errorf("nothing happened and it is %s", mid.m.State)
		}
		return nil
	}
	want := map[State]State{BackingOff: Waiting, Starting: Stopping, Stopping: Stopping}[h.n.m.State]
	if h.n.m.State == Starting && h.mode == halt {
		want = Starting
	}
	switch {
	case mid.m.State != want:
		return fmt.Errorf("its timer ended and it is %s, want %s", mid.m.State, want)
	case want == Stopping && h.n.m.State == Stopping && !e.acts.has(Kill):
		return errors.New("its grace is over and it is not killed")
	}
	return nil
}

// checkWords checks what a process says about itself: it is believed at once, and
// never ends it. So a dip ends with the next word.
func (l *lab) checkWords(h happening, mid node, e edge) error {
	was, is := h.n.m.State, mid.m.State
	want := was
	switch h.kind() {
	case Serving:
		want = Ready
	case NotServing:
		if was == Ready {
			want = NotReady
		}
	case Silent, Answering:
	default:
		return nil
	}
	if h.in.stray || was == Stopping || h.due && was == Starting && want == Starting {
		return nil
	}
	if is != want || e.acts != 0 {
		return fmt.Errorf("is %s, want %s and nothing done", is, want)
	}
	return nil
}

// checkEnd checks what comes after a process, and what a wish makes of a component
// that has none.
func (l *lab) checkEnd(h happening, mid node, _ edge) error {
	hadOne := h.n.g.live || h.n.g.asked
	has := mid.g.live || mid.g.asked
	want := mid.m.State
	switch {
	case hadOne && !has && h.mode == halt, hadOne && !has && mid.g.held:
		want = Stopped
	case hadOne && !has && h.n.g.again:
		want = Waiting
	case hadOne && !has:
		want = BackingOff
	case h.mode == halt || hadOne:
	case h.kind() == StopOneAsked:
		want = Stopped
	case h.kind() == StartOneAsked && h.n.m.State == Stopped, h.kind() == RestartAsked && !h.in.stray:
		want = Waiting
	}
	if mid.m.State != want {
		return fmt.Errorf("is %s, want %s", mid.m.State, want)
	}
	return nil
}

// checkBackoff checks that each failure in a row is followed by the delay of its
// number, from the first to the cap, and from the first again after a stable run. It
// knows nothing of how the machine counts.
func checkBackoff(mid node) error {
	delays := [...]time.Duration{1: time.Second, 2: 2 * time.Second, maxStreak: 4 * time.Second}
	if got := mid.m.NextStart.Sub(epoch); got != delays[mid.g.streak] {
		return fmt.Errorf("waits %s after failure %d in a row, want %s", got, mid.g.streak, delays[mid.g.streak])
	}
	return nil
}

// checkGrace checks how long a process has that was told to end just now.
func (l *lab) checkGrace(old, now node, hung bool, set acts) error {
	want := l.component().StopTimeout
	switch {
	case set.has(Kill):
		want = killAgain
	case !set.has(Terminate):
		return nil
	case now.g.mute:
		want = l.plan.SilentGrace
	}
	if got := now.m.deadline.Sub(epoch); now.m.State != Stopping || got != want {
		return fmt.Errorf("is %s for another %s, want it stopping for %s (hung %v, before %s)", now.m.State, got, want, hung, old)
	}
	return nil
}

// checkStray checks that what is about something else is as good as nothing.
func (l *lab) checkStray(mid node, e, plain edge) error {
	if i := l.addMid(mid); i != plain.to || e.acts != plain.acts {
		return fmt.Errorf("leads to %s, want %s as without it", mid, l.mids[plain.to])
	}
	return nil
}

// checkGoOn checks what a component does when it has seen the others.
func (l *lab) checkGoOn(mid node, v view, rest node, set acts) error {
	may := mid.m.State == Waiting && (!v.blocked) && !mid.stopping
	alive := mid.g.live || mid.g.asked
	told := mid.stopping && v.last && mid.m.State != Stopping && alive
	want := mid.m.State
	switch {
	case may:
		want = Starting
	case mid.stopping && !alive:
		want = Stopped
	case told:
		want = Stopping
	}
	switch {
	case set.has(Start) && (alive || mid.g.held || !may):
		return errors.New("is started and may not be")
	case set.has(Start) != may:
		return errors.New("is not started and may be")
	case set.has(Kill) || set.has(Terminate) != (told && mid.g.live):
		return errors.New("its process is told to end out of turn, or not in its turn")
	case rest.m.State != want:
		return fmt.Errorf("is %s, want %s", rest.m.State, want)
	}
	if err := l.checkGrace(mid, rest, false, set); err != nil {
		return err
	}
	return l.checkRest(rest, v)
}

// checkRest checks a node between two steps.
func (l *lab) checkRest(n node, v view) error {
	m := n.m
	running := !m.due().IsZero()
	wantTimer := map[State]bool{
		BackingOff: true, Stopping: n.g.live,
		Starting: !n.stopping && !m.external && !v.heldUp,
	}[m.State]
	switch {
	case (m.PID != 0) != n.g.live || m.spawning != n.g.asked:
		return fmt.Errorf("has process %d and asked for one %v, want %+v", m.PID, m.spawning, n.g)
	case m.wasReady != n.g.served:
		return fmt.Errorf("was ready: %v, want %v", m.wasReady, n.g.served)
	case running != wantTimer:
		return fmt.Errorf("its timer runs: %v, want %v", running, wantTimer)
	case n.g.held && m.State != Stopped && m.State != Stopping:
		return fmt.Errorf("is %s and was stopped by an operator", m.State)
	case !n.g.held && !n.stopping && m.State == Stopped:
		return errors.New("is stopped and nobody wanted that")
	case m.State == Stopping && !n.g.live && !n.g.asked:
		return errors.New("is stopping and has no process")
	case n.stopping && !n.g.live && !n.g.asked && m.State != Stopped:
		return fmt.Errorf("all is stopping, it has no process and is %s", m.State)
	case m.State != BackingOff && !m.NextStart.IsZero():
		return fmt.Errorf("is %s and has a next start", m.State)
	}
	record := m.record(epoch)
	if back := record.resume(epoch); !reflect.DeepEqual(*back, m) {
		return fmt.Errorf("is %+v after it was written down, want %+v", *back, m)
	}
	return nil
}

// checkStill checks that nothing more follows from what happened.
func (l *lab) checkStill(n node, v view) error {
	again := n
	now := &moment{plan: l.plan, at: epoch, stopping: n.stopping}
	one := life{moment: now, component: l.component(), m: &again.m}
	one.doDue()
	one.goOn(v)
	if len(now.actions) > 0 || !reflect.DeepEqual(again, n) {
		return fmt.Errorf("goes on to %s by itself", again)
	}
	return nil
}

// weight is how far a component is from its end while everything stops.
func (n node) weight() int {
	switch {
	case n.g.asked && n.m.State != Stopping:
		return 3
	case n.g.asked, n.g.live && n.m.State != Stopping:
		return 2
	case n.g.live:
		return 1
	}
	return 0
}

// TestStep_OneComponentInAnyEnvironment lets everything happen to one component in
// every order, while the others do whatever they like: so it holds in graphs of any
// size. Each step is checked by the functions above: never two processes, none
// signalled that is not there, a word about health ends nobody, an operator's wish
// holds, back-off grows to its cap and begins anew after a stable minute, a time-out
// runs exactly while it should. Here is what follows for the whole: a stop brings
// each component nearer to its end with every answer and end of a process, and never
// takes it farther away; a dip of readiness leads nowhere but back.
func TestStep_OneComponentInAnyEnvironment(t *testing.T) {
	l, err := explore()
	if err != nil {
		t.Fatal(err)
	}
	edges := 0
	for r, n := range l.rest {
		for m := range modes {
			for i, in := range l.inputs {
				for _, due := range []bool{false, true} {
					first := l.happen[r][l.way(m, i, due)]
					if first.to < 0 {
						continue
					}
					for _, second := range l.goOn[first.to] {
						if second.to < 0 {
							continue
						}
						edges++
						next := l.rest[second.to]
						if err := checkWay(happening{n, m, in, due}, next); err != nil {
							t.Fatalf("%s %s (timer %v): %v, is %s", n, in.name, due, err, next)
						}
					}
				}
			}
		}
	}
	t.Logf("%d states, %d in the middle of a step, %d steps", len(l.rest), len(l.mids), edges)
	if len(l.rest) < 300 || edges < 50_000 {
		t.Errorf("got %d states and %d steps, want more: not all was found", len(l.rest), edges)
	}
}

func checkWay(h happening, next node) error {
	if h.n.stopping {
		answered := !h.in.stray && (h.kind() == Exited || h.kind() == Spawned || h.kind() == SpawnFailed)
		if w := next.weight(); w > h.n.weight() || answered && w == h.n.weight() {
			return errors.New("is no nearer to its end")
		}
		return nil
	}
	up := func(s State) bool { return s == Ready || s == NotReady }
	word := h.kind() == Serving || h.kind() == NotServing || h.kind() == Silent || h.kind() == Answering || h.kind() == StartOneAsked
	if h.mode != halt && up(h.n.m.State) && (word || h.in.stray || h.kind() == 0) && !up(next.m.State) {
		return errors.New("does not come back from a dip")
	}
	return nil
}
