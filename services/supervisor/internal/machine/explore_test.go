package machine

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// from is how a world was first come to: by which of the moves of which other.
type from struct {
	key  key
	move int
}

// search visits every world of a space, once.
type search struct {
	space
	seen    map[key]from
	settled map[key]bool // good will leads on from here to where it should
}

func (s *search) first() world {
	w := world{table: s.plan.Start(epoch)}
	s.settleDown(&w)
	return w
}

func (s *search) run() error {
	s.seen, s.settled = map[key]from{s.key(s.first()): {}}, map[key]bool{}
	queue := []world{s.first()}
	var moves []move
	for len(queue) > 0 {
		w := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		at := s.key(w)
		if err := s.settle(w); err != nil {
			return fmt.Errorf("%w\nafter%s", err, s.story(at))
		}
		moves = s.moves(w, moves[:0])
		for n, m := range moves {
			next, err := s.happen(w, m)
			if err != nil {
				return fmt.Errorf("%w\nafter%s", err, s.story(at))
			}
			k := s.key(next)
			if _, known := s.seen[k]; !known {
				s.seen[k] = from{at, n}
				queue = append(queue, next)
			}
		}
	}
	return nil
}

// story lists what led to a world, by having it happen once more.
func (s *search) story(k key) string {
	var path []int
	for f := s.seen[k]; f.key != (key{}); f = s.seen[f.key] {
		path = append(path, f.move)
	}
	slices.Reverse(path)
	var text strings.Builder
	w := s.first()
	for _, n := range path {
		m := s.moves(w, nil)[n]
		fmt.Fprintf(&text, "\n  %s", m)
		w, _ = s.happen(w, m) // it did once
	}
	return text.String()
}

// settle lets a world run on in which nothing goes wrong any more and nobody wants
// anything but that all runs: it must come to all ready, or, once it stops, to its
// end, although no process hears a request to end.
func (s *search) settle(w world) error {
	var path []key
	for range 60 * len(s.plan.Components) {
		k := s.key(w)
		path = append(path, k)
		if s.settled[k] || w.table.Over || !w.table.Stopping && len(s.plan.Unready(w.table)) == 0 {
			for _, k := range path {
				s.settled[k] = true
			}
			return nil
		}
		next, err := s.happen(w, s.goodMove(w))
		if err != nil {
			return err
		}
		w = next
	}
	return fmt.Errorf("no rest: %+v", s.key(w))
}

func (s *search) goodMove(w world) move {
	for i, c := range s.plan.Components {
		m, g := w.table.Members[c.Name], w.ghosts[i]
		about := func(k EventKind) move { return move{event: Event{Kind: k, Name: c.Name, PID: i + 1}} }
		switch {
		case g.asked:
			return about(Spawned)
		case m.State == Stopping && g.live && m.killed:
			return about(Exited)
		case m.State == Stopping && g.live, m.State == BackingOff:
			return move{fire: c.Name}
		case (m.State == Starting || m.State == NotReady) && g.live && !w.table.Stopping:
			return about(Serving)
		case m.State == Stopped && !w.table.Stopping:
			return about(StartOneAsked)
		}
	}
	return move{event: Event{Kind: Tick}}
}

// TestStep_EveryReachableState visits every state that all graphs of up to four
// components can come to, with every event in every order, checks each step on the
// way, and that each state leads on to all ready, and to the end once all is to
// stop. What is closely looked at differs, or there were too many states: of one
// component everything, the history of its failures too; of two in any graph all
// but that; of three and four in any graph of one of them all but that, and of the
// others what it can see of them: they come, are ready, and are gone. With three
// that need each other each is looked at; else it is another one from graph to graph.
func TestStep_EveryReachableState(t *testing.T) {
	percent := debug.SetGCPercent(400) // it makes much that is soon not needed any more
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	for _, sweep := range sweeps() {
		t.Run(sweep.name, func(t *testing.T) {
			t.Parallel()
			graphs, states := sweep.run(t)
			t.Logf("%d graphs, %d states", graphs, states)
			if graphs < sweep.graphs || states < sweep.states {
				t.Errorf("got %d graphs and %d states, want at least %d and %d", graphs, states, sweep.graphs, sweep.states)
			}
		})
	}
}

// sweep is the search through a number of graphs.
type sweep struct {
	name   string
	shapes []shape
	// details of each graph, by its number.
	details func(n int) [][]detail
	// graphs and states are how many there are at least.
	graphs, states int
}

func sweeps() []sweep {
	always := func(details ...[]detail) func(int) [][]detail {
		return func(int) [][]detail { return details }
	}
	inTurn := func(size int) func(int) [][]detail {
		return func(n int) [][]detail {
			one := make([]detail, size)
			one[n%size] = plain
			return [][]detail{one}
		}
	}
	four := shapes(4, need)
	return []sweep{
		{"1 component", shapes(1, need), always([]detail{full}), 1, 566},
		{"2 components", shapes(2, orderOnly), always([]detail{plain, plain}, []detail{full, outline}, []detail{outline, full}), 3, 25_578},
		{"3 components", shapes(3, need), always(
			[]detail{plain, outline, outline}, []detail{outline, plain, outline}, []detail{outline, outline, plain}), 6, 19_410},
		{"3 components with both kinds of edges", shapes(3, orderOnly), inTurn(3), 21, 24_166},
		{"4 components, first half", four[:16], inTurn(4), 16, 107_730},
		{"4 components, second half", four[16:], inTurn(4), 15, 68_777},
	}
}

// run searches each graph; up to two components also with a plan that fails fast.
func (s sweep) run(t *testing.T) (graphs, states int) {
	for n, sh := range s.shapes {
		for _, failFast := range []bool{false, true} {
			if failFast && sh.size > 2 {
				continue
			}
			for _, d := range s.details(n) {
				one := &search{space: newSpace(sh, failFast, d...)}
				if err := one.run(); err != nil {
					t.Fatalf("%s, fail fast %v: %v", sh, failFast, err)
				}
				states += len(one.seen)
			}
		}
		graphs++
	}
	return graphs, states
}
