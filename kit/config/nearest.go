package config

import (
	"slices"
	"strings"
)

// Nearest returns the candidate that a misspelt name most likely means, or ""
// when none is near enough to be helpful.
func Nearest(name string, candidates []string) string {
	best, bestCost := "", len(name)/3+2
	for _, c := range candidates {
		if cost := distance(strings.ToLower(name), c); cost < bestCost {
			best, bestCost = c, cost
		}
	}
	return best
}

// distance counts the single-letter edits, swaps of neighbours included, between
// two words.
func distance(a, b string) int {
	if len(a) > 64 {
		a = a[:64]
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// EnvPrefix begins every environment variable that is ours.
const EnvPrefix = "STADDLE_"

// UnknownEnv returns one sentence for each variable with our prefix in environ
// ("KEY=value" entries) that is not known, with the nearest known name.
func UnknownEnv(environ, known []string) []string {
	var out []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, EnvPrefix) || slices.Contains(known, name) {
			continue
		}
		text := "environment variable " + name + " is unknown and has no effect"
		if near := nearestEnv(name, known); near != "" {
			text += "; the nearest known one is " + near
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

func nearestEnv(name string, known []string) string {
	lower := make([]string, len(known))
	for i, k := range known {
		lower[i] = strings.ToLower(strings.TrimPrefix(k, EnvPrefix))
	}
	near := Nearest(strings.TrimPrefix(name, EnvPrefix), lower)
	if near == "" {
		return ""
	}
	return EnvPrefix + strings.ToUpper(near)
}
