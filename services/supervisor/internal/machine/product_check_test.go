package machine

import (
	"errors"
	"fmt"
)

// move is one step from a state, with what happens in it.
type move struct {
	from  codes
	to    codes
	event string // for an input of no component
	who   int
	input int
	due   uint8
	quiet bool // nothing happens at all
	acts  [maxSize]acts
}

// tell describes a move in a message.
func (p *product) tell(s *move) string {
	what := s.event
	if what == "" {
		what = p.plan.Components[s.who].Name + " " + p.tables[s.who].classes.inputs[s.input].name
	}
	if s.due != 0 {
		what += fmt.Sprintf(" and the timers of %v end", p.names(s.due))
	}
	return what
}

// checkActs checks what all do when they have seen each other. What each does for
// itself is checked for one component in any environment.
func (p *product) checkActs(s *move, mids codes) error {
	told := -1
	for i := range p.size {
		name := p.plan.Components[i].Name
		switch {
		case s.acts[i].has(Start):
			if err := p.checkStart(i, s.to); err != nil {
				return err
			}
		case s.acts[i].has(Terminate) && told >= 0:
			return fmt.Errorf("%s is stopped together with %s", name, p.plan.Components[told].Name)
		case s.acts[i].has(Terminate):
			told = i
		case told >= 0 && p.tables[i].mids[mids[i]].alive:
			return fmt.Errorf("%s is stopped before %s", p.plan.Components[told].Name, name)
		}
	}
	return nil
}

func (p *product) checkStart(i int, next codes) error {
	name, is := p.plan.Components[i].Name, p.code(next, i)
	if is.stopping {
		return fmt.Errorf("%s is started while everything stops", name)
	}
	if is.served {
		return nil
	}
	if lacking := p.lacking(i, next); lacking != 0 {
		return fmt.Errorf("%s is started without %v", name, p.names(lacking))
	}
	return nil
}

// lacking are those that hold up the first start of a component, by the plan alone.
func (p *product) lacking(i int, c codes) (set uint8) {
	return p.needs[i]&^p.ready(c) | p.orderOnly[i]&^p.served(c)
}

func (p *product) ready(c codes) (set uint8) {
	for i := range p.size {
		if p.code(c, i).state == Ready {
			set |= 1 << i
		}
	}
	return set
}

func (p *product) served(c codes) (set uint8) {
	for i := range p.size {
		if p.code(c, i).served {
			set |= 1 << i
		}
	}
	return set
}

// checkState checks a state in which nothing more follows from what happened: each
// component that is not where it should be is on its way, or has a reason to wait.
func (p *product) checkState(c codes) error {
	for i := range p.size {
		if p.code(c, i).stopping != p.code(c, 0).stopping {
			return fmt.Errorf("%s does not stop with the others", p.plan.Components[i].Name)
		}
	}
	if p.code(c, 0).stopping {
		return p.checkStop(c)
	}
	for i := range p.size {
		one := p.code(c, i)
		excuse := one.outer || one.mask&^p.ready(c) != 0
		name := p.plan.Components[i].Name
		switch {
		case one.state == Waiting && (one.served || p.lacking(i, c) == 0):
			return fmt.Errorf("%s waits for nobody", name)
		case one.state == Starting && one.timer == excuse:
			return fmt.Errorf("the start time-out of %s runs: %v, and it has an excuse: %v", name, one.timer, excuse)
		}
	}
	return nil
}

// checkStop checks that a stop that is not over goes on: the last process is asked
// to end, or is about to be there and will be. When it is gone, or was made, the stop
// is nearer to its end, and nothing takes it farther away.
func (p *product) checkStop(c codes) error {
	for i := p.size - 1; i >= 0; i-- {
		if one := p.code(c, i); one.live || one.asked {
			if one.state != Stopping {
				return fmt.Errorf("%s has the last process and is not being stopped", p.plan.Components[i].Name)
			}
			return nil
		}
	}
	return nil
}

// settle lets a state run on in which nothing goes wrong any more and nobody wants
// anything but that all runs: it must come to all ready.
func (p *product) settle(c codes) error {
	var path []uint64
	for range 20 * p.size {
		n := p.number(c)
		if p.settled.has(n) || p.code(c, 0).stopping || p.ready(c) == 1<<p.size-1 {
			for _, n := range path {
				p.settled.set(n)
			}
			return nil
		}
		path = append(path, n)
		next, err := p.better(c)
		if err != nil {
			return err
		}
		c = next
	}
	return fmt.Errorf("never comes to rest, but to %s", p.describe(c))
}

// better is the state after one good thing has happened.
func (p *product) better(c codes) (codes, error) {
	m := p.mode(c)
	for i := range p.size {
		g := p.tables[i].good[m][c[i]]
		if g.mid < 0 {
			continue
		}
		mids := p.still(c, m, 0)
		if g.fails {
			mids = p.still(c, halt, 0)
		}
		mids[i] = g.mid
		s := &move{from: c, event: "something good happens"}
		err := p.land(s, mids)
		return s.to, err
	}
	return c, errors.New("is stuck: nothing good can happen")
}
