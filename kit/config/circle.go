package config

import (
	"slices"
	"strings"
)

// findCircle returns one circle among edges as "a -> b -> a", or "".
func findCircle(edges map[string][]string) string {
	names := make([]string, 0, len(edges))
	for name := range edges {
		names = append(names, name)
	}
	slices.Sort(names)
	done := map[string]bool{}
	for _, name := range names {
		if circle := walk(name, edges, nil, done); circle != "" {
			return circle
		}
	}
	return ""
}

func walk(name string, edges map[string][]string, trail []string, done map[string]bool) string {
	if i := slices.Index(trail, name); i >= 0 {
		return strings.Join(append(trail[i:], name), " -> ")
	}
	if done[name] {
		return ""
	}
	for _, next := range edges[name] {
		if circle := walk(next, edges, append(trail, name), done); circle != "" {
			return circle
		}
	}
	done[name] = true
	return ""
}
