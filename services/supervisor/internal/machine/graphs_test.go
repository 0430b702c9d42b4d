package machine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The kinds of edges of a small graph.
const (
	none = iota
	need
	orderOnly
)

// shape is a small graph: the kind of the edge from each component to an earlier
// one, row by row.
type shape struct {
	size  int
	edges []int // of 1 to 0, 2 to 0, 2 to 1, 3 to 0, ...
}

func (s shape) edge(from, to int) int {
	if to >= from {
		return none
	}
	return s.edges[from*(from-1)/2+to]
}

// canon is the same text for two graphs that differ only in names.
func (s shape) canon() string {
	best := ""
	for _, order := range permutations(s.size) {
		var b strings.Builder
		for _, from := range order {
			for _, to := range order {
				fmt.Fprint(&b, s.edge(from, to))
			}
		}
		if text := b.String(); best == "" || text < best {
			best = text
		}
	}
	return best
}

func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var out [][]int
	for _, p := range permutations(n - 1) {
		for at := range n {
			out = append(out, slices.Insert(slices.Clone(p), at, n-1))
		}
	}
	return out
}

// shapes lists every graph without circles of a size, once up to names, with edges
// of the first so many kinds.
func shapes(size, kinds int) []shape {
	var out []shape
	seen := map[string]bool{}
	edges := make([]int, size*(size-1)/2)
	for {
		s := shape{size, slices.Clone(edges)}
		if name := s.canon(); !seen[name] {
			seen[name] = true
			out = append(out, s)
		}
		i := 0
		for ; i < len(edges) && edges[i] == kinds; i++ {
			edges[i] = none
		}
		if i == len(edges) {
			return out
		}
		edges[i]++
	}
}

// plansOf lists every graph of a size in every order that it can be started in: each
// set of edges to earlier components, once. The order matters, as the stop is its
// reverse; so graphs that differ only in names are not the same here.
func plansOf(size, kinds int) []shape {
	var out []shape
	edges := make([]int, size*(size-1)/2)
	for {
		out = append(out, shape{size, slices.Clone(edges)})
		i := 0
		for ; i < len(edges) && edges[i] == kinds; i++ {
			edges[i] = none
		}
		if i == len(edges) {
			return out
		}
		edges[i]++
	}
}

// String names the edges: "b>a c~a" means that b needs a, and c only comes after a.
func (s shape) String() string {
	var words []string
	for from := range s.size {
		for to := range from {
			if kind := s.edge(from, to); kind != none {
				words = append(words, fmt.Sprintf("%c%c%c", 'a'+from, " >~"[kind], 'a'+to))
			}
		}
	}
	return fmt.Sprintf("%d components, %s", s.size, strings.Join(words, " "))
}

func (s shape) components() []Component {
	out := make([]Component, s.size)
	for from := range out {
		out[from].Name = string(rune('a' + from))
		for to := range from {
			switch s.edge(from, to) {
			case need:
				out[from].Needs = append(out[from].Needs, out[to].Name)
			case orderOnly:
				out[from].OrderOnly = append(out[from].OrderOnly, out[to].Name)
			}
		}
	}
	return out
}

// The number of graphs without circles is known from elsewhere.
func TestShapes_AreAllThereAre(t *testing.T) {
	for size, want := range map[int]int{1: 1, 2: 2, 3: 6, 4: 31} {
		if got := len(shapes(size, need)); got != want {
			t.Errorf("got %d graphs of %d components, want %d", got, size, want)
		}
	}
	for size, kinds := range map[int]int{1: 1, 2: 3, 3: 21} {
		if got := len(shapes(size, orderOnly)); got != kinds {
			t.Errorf("got %d graphs of %d components with both kinds of edges, want %d", got, size, kinds)
		}
	}
}
