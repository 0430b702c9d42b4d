package machine

import (
	"fmt"
	"slices"
	"time"
)

// checkStep checks what the machine did at one event: old has the table before it,
// and what is true with it.
func (sp space) checkStep(old world, w *world, e Event, actions []Action) error {
	for _, a := range actions {
		if err := sp.checkAction(old, *w, e, a); err != nil {
			return err
		}
	}
	for i, c := range sp.plan.Components {
		m, was := w.table.Members[c.Name], old.table.Members[c.Name]
		if err := sp.checkBackoff(&w.ghosts[i], i, was, m); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		toldNow := m.PID != 0 && m.State == Stopping && (was.State != Stopping || was.PID == 0)
		if toldNow && !slices.ContainsFunc(actions, func(a Action) bool { return a.Name == c.Name && a.Kind != Start }) {
			return fmt.Errorf("%s is stopping and its process is not told", c.Name)
		}
		if err := checkWishes(old.ghosts[i], m, w.table); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		if c.Name != e.Name && e.Kind != Tick && !w.table.Stopping && m.State != was.State && (was.State != Waiting || m.State != Starting) {
			return fmt.Errorf("%s went from %s to %s without a reason of its own", c.Name, was.State, m.State)
		}
	}
	return nil
}

// checkAction checks one thing that the machine wants done.
func (sp space) checkAction(old, w world, e Event, a Action) error {
	i := sp.index(a.Name)
	g, m := old.ghosts[i], old.table.Members[a.Name]
	if a.Kind == Start {
		return sp.checkStart(old, w, i)
	}
	switch e.Kind {
	case NotServing, Serving, Silent, Answering:
		return fmt.Errorf("%s is ended for a word about its health", a.Name)
	}
	if !g.live || a.PID != i+1 {
		return fmt.Errorf("process %d of %s is signalled, and is not there", a.PID, a.Name)
	}
	if a.Kind == Terminate && w.table.Stopping && m.State != Stopping {
		for j := i + 1; j < len(sp.plan.Components); j++ {
			if old.ghosts[j].live || old.ghosts[j].asked {
				return fmt.Errorf("%s is stopped before %s", a.Name, sp.plan.Components[j].Name)
			}
		}
	}
	return nil
}

func (sp space) checkStart(old, w world, i int) error {
	c, g := sp.plan.Components[i], old.ghosts[i]
	switch {
	case g.live || g.asked:
		return fmt.Errorf("%s gets a second process", c.Name)
	case w.table.Stopping:
		return fmt.Errorf("%s is started while everything stops", c.Name)
	case g.held:
		return fmt.Errorf("%s is started and was stopped by an operator", c.Name)
	case old.table.Members[c.Name].wasReady:
		return nil
	}
	for _, name := range c.Needs {
		if w.table.Members[name].State != Ready {
			return fmt.Errorf("%s is started and its need %s is %s", c.Name, name, w.table.Members[name].State)
		}
	}
	for _, name := range c.OrderOnly {
		if !w.table.Members[name].wasReady {
			return fmt.Errorf("%s is started and %s was never ready", c.Name, name)
		}
	}
	return nil
}

// checkBackoff counts failures in a row and checks that each is followed by the
// delay of its number, from the first to the cap, and from the first again after a
// stable run. It knows nothing of how the machine counts.
func (sp space) checkBackoff(g *ghost, i int, was, m *Member) error {
	if m.State != BackingOff || was.State == BackingOff {
		return nil
	}
	if sp.details[i] != full {
		return nil
	}
	g.streak = min(g.streak+1, maxStreak)
	if g.stable {
		g.streak = 1
	}
	delays := [...]time.Duration{1: time.Second, 2: 2 * time.Second, maxStreak: 4 * time.Second}
	if got := m.NextStart.Sub(epoch); got != delays[g.streak] {
		return fmt.Errorf("waits %s after failure %d in a row, want %s", got, g.streak, delays[g.streak])
	}
	return nil
}

// checkWishes checks that what an operator stopped is on its way to stopped, or is.
func checkWishes(g ghost, m *Member, t Table) error {
	if g.held && m.State != Stopped && m.State != Stopping {
		return fmt.Errorf("is %s and was stopped by an operator", m.State)
	}
	if !g.held && m.State == Stopped && !t.Stopping {
		return fmt.Errorf("is stopped and nobody wanted that")
	}
	return nil
}

// checkRest checks a world in which nothing more follows from what happened.
func (sp space) checkRest(before, w world, m move) error {
	for i, c := range sp.plan.Components {
		g, member := w.ghosts[i], w.table.Members[c.Name]
		if w.table.Over && (g.live || g.asked) {
			return fmt.Errorf("over, and %s is there", c.Name)
		}
		if (member.PID != 0) != g.live || member.spawning != g.asked {
			return fmt.Errorf("%s has process %d, asked for one %v; want %+v", c.Name, member.PID, member.spawning, g)
		}
		if member.State == Waiting && !w.table.Stopping && !sp.held(w, c) {
			return fmt.Errorf("%s waits for nobody", c.Name)
		}
		if member.State == Stopping && !g.live && !g.asked {
			return fmt.Errorf("%s is stopping and has no process", c.Name)
		}
	}
	i := sp.index(m.event.Name)
	if i < 0 || before.table.Stopping {
		return nil
	}
	was, is := before.table.Members[m.event.Name], w.table.Members[m.event.Name]
	switch m.event.Kind {
	case Serving:
		if was.State != Stopping && is.State != Ready {
			return fmt.Errorf("%s serves and is %s", m.event.Name, is.State)
		}
	case NotServing:
		if was.State == Ready && is.State != NotReady {
			return fmt.Errorf("%s does not serve any more and is %s", m.event.Name, is.State)
		}
	case Exited, RestartAsked:
		if m.event.PID > i+1 && is.State != was.State {
			return fmt.Errorf("%s went from %s to %s for an earlier process", m.event.Name, was.State, is.State)
		}
	}
	return nil
}

// held reports whether a component has somebody to wait for.
func (sp space) held(w world, c Component) bool {
	if w.table.Members[c.Name].wasReady {
		return false
	}
	for _, name := range c.Needs {
		if w.table.Members[name].State != Ready {
			return true
		}
	}
	for _, name := range c.OrderOnly {
		if !w.table.Members[name].wasReady {
			return true
		}
	}
	return false
}
