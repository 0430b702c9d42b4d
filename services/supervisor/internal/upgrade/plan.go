// Package upgrade owns the rolling restart of the whole runner, with new binaries
// or in place: component by component in the order of the graph, each ready before
// the next is touched, and all put back when one is not.
//
// New binaries are staged beside the installed ones. While the upgrade goes on the
// installed ones stay as they are, so that a supervisor that dies meanwhile starts
// what is proven; they are replaced once everything is ready with the new ones. It
// must never touch a workload, and never decide when a process is ready: that is the
// machine's. In the trail it stands between the API and the loop of the supervisor.
package upgrade

import "fmt"

// Plan is how far an upgrade has come. It is pure: Next says what to do, and Took
// what came of it.
type Plan struct {
	// Order is the components, each after all that it needs.
	Order []string

	next   int    // in Order, which the next step is about
	back   bool   // old binaries are put back, from next down to the first
	failed string // why
	worse  []string
}

// Step is one thing to do.
type Step struct {
	// Component to restart. Empty means that nothing is left to do.
	Component string
	// Old says that it gets its old binary back.
	Old bool
}

// Next is what to do now.
func (p Plan) Next() Step {
	switch {
	case !p.back && p.next < len(p.Order):
		return Step{Component: p.Order[p.next]}
	case p.back && p.next >= 0:
		return Step{Component: p.Order[p.next], Old: true}
	}
	return Step{}
}

// Took goes on after the step of Next. A failure on the way forward turns the
// upgrade round; one on the way back is kept, and the others are put back all the same.
func (p Plan) Took(err error) Plan {
	switch {
	case p.back && err != nil:
		p.worse = append(p.worse[:len(p.worse):len(p.worse)], fmt.Sprintf("%s is not ready with its old binary either: %v", p.Order[p.next], err))
		p.next--
	case p.back:
		p.next--
	case err != nil:
		p.back, p.failed = true, fmt.Sprintf("component %s: %v", p.Order[p.next], err)
	default:
		p.next++
	}
	return p
}

// Failure says why the upgrade was turned round, and what could not be put back.
// Both are empty for one that was not.
func (p Plan) Failure() (why string, worse []string) { return p.failed, p.worse }
