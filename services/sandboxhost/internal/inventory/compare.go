package inventory

import (
	"cmp"
	"slices"

	"staddle.internal/kit/id"
)

// key is the identity of an object.
type key struct {
	kind Kind
	name string
}

func (o Object) key() key { return key{o.Kind, o.Name} }

// Compare returns how what was found differs from the stocks of all sandboxes that
// are known. Parts names what there must be of a sandbox that runs; it is asked for
// every sandbox that is known.
func Compare(stocks map[id.Sandbox]Stock, parts func(Stock) []Object, found []Object) []Difference {
	there := map[key]bool{}
	for _, o := range found {
		there[o.key()] = true
	}
	var differences []Difference
	claimed := map[key]bool{}
	for _, s := range stocks {
		for _, o := range parts(s) {
			if s.Stands || !s.Quiet {
				claimed[o.key()] = true
			}
			if s.Quiet && s.Runs && !there[o.key()] {
				differences = append(differences, Difference{Object: o, Missing: true})
			}
		}
	}
	for _, o := range found {
		if o.Kind == Network { // it is found only when something is wrong
			differences = append(differences, Difference{Object: o, Missing: true})
			continue
		}
		if s, known := stocks[o.UID]; !claimed[o.key()] && !(known && s.mayHave(o)) {
			differences = append(differences, Difference{Object: o})
		}
	}
	slices.SortFunc(differences, order)
	return slices.CompactFunc(differences, same)
}

// mayHave says whether an object that names the sandbox may be there.
func (s Stock) mayHave(o Object) bool {
	switch {
	case !s.Quiet:
		return true
	case o.Kind == Output || o.Kind == Scratch:
		return s.Written
	case o.Container != "":
		return slices.Contains(s.Containers, o.Container)
	case s.HostNetwork && (o.Kind == Interface || o.Kind == Address):
		return false
	}
	return s.Stands
}

// Stayed returns those of the differences that are in both lists: what was seen
// twice.
func Stayed(first, second []Difference) []Difference {
	var both []Difference
	for _, d := range second {
		if slices.ContainsFunc(first, func(f Difference) bool { return same(f, d) }) {
			both = append(both, d)
		}
	}
	return both
}

func same(a, b Difference) bool { return a.key() == b.key() && a.Missing == b.Missing }

func order(a, b Difference) int {
	return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// Mendable says whether a difference can be mended without ending a container that
// is wished for. What is missing of a sandbox that runs cannot, but for what the
// network has of it.
func (d Difference) Mendable() bool {
	return !d.Missing || d.Kind == Interface || d.Kind == Address || d.Kind == Network
}
