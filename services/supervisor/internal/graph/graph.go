// Package graph owns the boot graph as a whole: whether the configured components
// fit together, and in which order they can be started.
//
// Everything in it is a pure function of the configuration. It must never start,
// ask or look at anything, so that a wrong graph is refused before anything has
// happened. In the trail it stands between the configuration and the state
// machine (package machine).
package graph

import (
	"fmt"
	"slices"
	"strings"

	"staddle.internal/kit/config"
	"staddle.internal/kit/id"
)

// Graph is a valid set of components.
type Graph struct {
	// Components, each after all that it needs or is only ordered after; where the
	// edges leave a choice, in the order of the configuration.
	Components []config.Component
}

// Names lists the components in their order.
func (g Graph) Names() []string {
	names := make([]string, len(g.Components))
	for i, c := range g.Components {
		names[i] = c.Name
	}
	return names
}

// New checks the components and puts them in order. outside names what may be
// needed although the supervisor does not start it; such edges are left out, as
// the processes themselves wait. All problems are reported at once, as one
// *config.Error about file.
func New(file string, components []config.Component, outside ...string) (Graph, error) {
	inside := make([]config.Component, len(components))
	for i, c := range components {
		known := func(name string) bool { return has(components, name) || !slices.Contains(outside, name) }
		inside[i] = c
		inside[i].Needs = keep(c.Needs, known)
		inside[i].OrderOnly = keep(c.OrderOnly, known)
	}
	problems := slices.Concat(nameProblems(inside), edgeProblems(inside))
	ordered, circles := order(inside)
	for _, circle := range circles {
		problems = append(problems, problem("components need each other in a circle: "+circle, "remove one of these needs"))
	}
	if len(problems) > 0 {
		return Graph{}, &config.Error{File: file, Problems: problems}
	}
	return Graph{Components: ordered}, nil
}

func problem(text, remedy string) config.Problem {
	return config.Problem{Key: "supervisor.components", Text: text, Remedy: remedy}
}

// nameProblems reports names that are missing, malformed or used twice.
func nameProblems(components []config.Component) []config.Problem {
	var problems []config.Problem
	seen := map[string]bool{}
	for _, c := range components {
		if err := id.CheckName("name", c.Name); err != nil {
			problems = append(problems, problem(err.Error(), ""))
			continue
		}
		if seen[c.Name] {
			problems = append(problems, problem(fmt.Sprintf("component %q is listed twice", c.Name), "join the two"))
		}
		seen[c.Name] = true
	}
	return problems
}

// edgeProblems reports edges to the component itself and to nothing.
func edgeProblems(components []config.Component) []config.Problem {
	var problems []config.Problem
	names := make([]string, len(components))
	for i, c := range components {
		names[i] = c.Name
	}
	for _, c := range components {
		for _, need := range edges(c) {
			switch {
			case need == c.Name:
				problems = append(problems, problem(fmt.Sprintf("component %q needs itself", c.Name), "remove that need"))
			case !slices.Contains(names, need):
				problems = append(problems, problem(fmt.Sprintf("component %q needs %q, which is no component", c.Name, need),
					remedy(need, names)))
			}
		}
	}
	return problems
}

func remedy(need string, names []string) string {
	if near := config.Nearest(need, names); near != "" {
		return fmt.Sprintf("the nearest known component is %q", near)
	}
	return "known components are " + strings.Join(names, ", ")
}

func edges(c config.Component) []string { return slices.Concat(c.Needs, c.OrderOnly) }

func has(components []config.Component, name string) bool {
	return slices.ContainsFunc(components, func(c config.Component) bool { return c.Name == name })
}

func keep(names []string, want func(string) bool) []string {
	var kept []string
	for _, n := range names {
		if want(n) {
			kept = append(kept, n)
		}
	}
	return kept
}
