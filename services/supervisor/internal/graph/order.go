package graph

import (
	"slices"
	"strings"

	"staddle.internal/kit/config"
)

// order sorts the components so that each comes after its edges, and describes
// the circles among those that cannot be sorted. Edges to the component itself
// and to nothing are reported elsewhere and do not count here.
func order(components []config.Component) (ordered []config.Component, circles []string) {
	left := slices.Clone(components)
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(c config.Component) bool { return free(c, left) })
		if i < 0 {
			return ordered, findCircles(left)
		}
		ordered = append(ordered, left[i])
		left = slices.Delete(left, i, i+1)
	}
	return ordered, nil
}

// free reports whether nothing that c comes after is still left.
func free(c config.Component, left []config.Component) bool {
	return !slices.ContainsFunc(edges(c), func(need string) bool { return need != c.Name && has(left, need) })
}

// findCircles names each set of members that form a circle, as "a -> b -> a". A
// component that only waits for a circle is no member of it.
func findCircles(left []config.Component) []string {
	var circles []string
	told := map[string]bool{}
	for _, c := range left {
		if told[c.Name] {
			continue
		}
		trail := trailBack(c.Name, c.Name, left, nil)
		if trail == nil {
			continue
		}
		for _, name := range trail {
			told[name] = true
		}
		circles = append(circles, strings.Join(append(trail, c.Name), " -> "))
	}
	return circles
}

// trailBack finds a way from a component along its edges back to the goal.
func trailBack(from, goal string, left []config.Component, trail []string) []string {
	trail = append(slices.Clone(trail), from)
	i := slices.IndexFunc(left, func(c config.Component) bool { return c.Name == from })
	if i < 0 {
		return nil
	}
	for _, need := range edges(left[i]) {
		if need == goal && from != goal {
			return trail
		}
		if slices.Contains(trail, need) {
			continue
		}
		if found := trailBack(need, goal, left, trail); found != nil {
			return found
		}
	}
	return nil
}
