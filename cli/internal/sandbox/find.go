package sandbox

import (
	"fmt"
	"slices"
	"strings"

	"staddle.internal/kit/fault"
)

// MinPrefix is the shortest beginning of a uid that is accepted in its place.
// The first ten characters of a uid are its time, so short ones name nothing.
const MinPrefix = 6

// Named is what can be chosen.
type Named struct {
	// Name and UID of the thing.
	Name, UID string
	// Hint tells it from others of the same name, such as its node.
	Hint string
	// Removing is true for one that is going away; it gives way to one of the
	// same name that stays.
	Removing bool
}

// Find returns the index of the one that ref names: by exact name, by uid, or by
// the unique beginning of a uid in either case. A name wins over a beginning.
// Several are refused with fault.Conflict and listed; none is fault.NotFound.
func Find(kind, ref string, all []Named) (int, error) {
	matches := matching(all, func(n Named) bool { return n.Name == ref })
	if len(matches) > 1 {
		if staying := slices.DeleteFunc(slices.Clone(matches), func(i int) bool { return all[i].Removing }); len(staying) > 0 {
			matches = staying
		}
	}
	if prefix := strings.ToUpper(ref); len(matches) == 0 && len(ref) >= MinPrefix {
		matches = matching(all, func(n Named) bool { return strings.HasPrefix(n.UID, prefix) })
	}
	switch len(matches) {
	case 1:
		return matches[0], nil
	case 0:
		if len(ref) < MinPrefix && len(matching(all, func(n Named) bool { return strings.HasPrefix(n.UID, strings.ToUpper(ref)) })) > 0 {
			return 0, fault.New(fault.NotFound, "%s %q: no such name, and too short for a uid: write at least %d characters of it", kind, ref, MinPrefix)
		}
		return 0, fault.New(fault.NotFound, "%s %q: not found", kind, ref)
	}
	lines := make([]string, len(matches))
	for i, m := range matches {
		lines[i] = strings.TrimSpace(fmt.Sprintf("  %s  %s  %s", all[m].UID, all[m].Name, all[m].Hint))
	}
	return 0, fault.New(fault.Conflict, "%s %q is ambiguous:\n  %s", kind, ref, strings.Join(lines, "\n  "))
}

func matching(all []Named, is func(Named) bool) []int {
	var out []int
	for i, n := range all {
		if is(n) {
			out = append(out, i)
		}
	}
	return out
}
