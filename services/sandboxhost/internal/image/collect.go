package image

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"staddle.internal/services/sandboxhost/internal/filesystem"
)

// Rules say when images are taken away by themselves. Zero values take none.
type Rules struct {
	// HighPercent of the filesystem in use, of its bytes or its inodes, begins a
	// cleaning, which ends at LowPercent. 0 means that use begins none.
	HighPercent, LowPercent int
	// MinFree begins a cleaning as well, when less is free, in bytes.
	MinFree int64
	// MinAge is for how long an image stays after its last use.
	MinAge time.Duration
	// MaxAge is after how long without use an image goes whatever the disk looks like.
	// 0 means never.
	MaxAge time.Duration
	// ImportGrace is for how long an imported image stays after its import. It never
	// goes for its age.
	ImportGrace time.Duration
}

// Full says whether the disk asks for a cleaning; under way says that one has begun,
// which goes on to the lower mark.
func (r Rules) Full(d filesystem.Space, underWay bool) bool {
	mark := r.HighPercent
	if underWay {
		mark = r.LowPercent + 1
	}
	return d.Size > 0 && (d.Free < r.MinFree || r.HighPercent > 0 && d.UsedPercent() >= mark)
}

// Kept is an image as the decision sees it.
type Kept struct {
	// Name under which the runtime has it; several may share one Digest, and only
	// together they give anything back.
	Name   string
	Digest digest.Digest
	// Pinned, or needed by somebody whose name is User.
	Pinned bool
	User   string
	// Imported is when it came from an archive; zero if it did not.
	Imported time.Time
	// LastUsed is when it was used or made present last.
	LastUsed time.Time
}

// Victim is what goes next: all names of one image.
type Victim struct {
	Names []string
	Why   string
}

// Next says which image goes next, or none. With full, the disk asks for it: the one
// that was unused for longest, of those that a registry gave first. Else only one that
// is past MaxAge. It is asked again after each removal, with what is so then.
func (r Rules) Next(now time.Time, full bool, all []Kept) (Victim, bool) {
	groups := groupsOf(all)
	var best *group
	for _, g := range groups {
		if !r.free(now, g) {
			continue
		}
		old := r.MaxAge > 0 && g.imported.IsZero() && now.Sub(g.used) >= r.MaxAge
		if !full && !old {
			continue
		}
		if best == nil || goesBefore(g, best) {
			best = g
		}
	}
	if best == nil {
		return Victim{}, false
	}
	why := fmt.Sprintf("unused for %s", now.Sub(best.used).Round(time.Second))
	if full {
		why += ", and the disk is full"
	}
	return Victim{Names: best.names, Why: why}, true
}

// Prunable are the names that a person may have removed, ordered by name. With all,
// neither age nor origin protects.
func (r Rules) Prunable(now time.Time, all []Kept, everything bool) []string {
	var names []string
	for _, g := range groupsOf(all) {
		if g.pinned || g.user != "" || !everything && (!g.imported.IsZero() || now.Sub(g.used) < r.MinAge) {
			continue
		}
		names = append(names, g.names...)
	}
	slices.Sort(names)
	return names
}

// group is one image under all its names: what protects one protects all.
type group struct {
	names    []string
	pinned   bool
	user     string
	imported time.Time
	used     time.Time
}

// groupsOf joins names, ordered by the first.
func groupsOf(all []Kept) []*group {
	all = slices.SortedFunc(slices.Values(all), func(a, b Kept) int { return strings.Compare(a.Name, b.Name) })
	byDigest := map[digest.Digest]*group{}
	var groups []*group
	for _, k := range all {
		g := byDigest[k.Digest]
		if g == nil {
			g = &group{}
			byDigest[k.Digest] = g
			groups = append(groups, g)
		}
		g.names = append(g.names, k.Name)
		g.pinned = g.pinned || k.Pinned
		g.user = max(g.user, k.User)
		g.imported = later(g.imported, k.Imported)
		g.used = later(g.used, k.LastUsed)
	}
	return groups
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// free says that nothing protects an image. A time in the future protects: the clock
// has jumped.
func (r Rules) free(now time.Time, g *group) bool {
	return !g.pinned && g.user == "" && now.Sub(g.used) >= r.MinAge &&
		(g.imported.IsZero() || now.Sub(g.imported) >= r.ImportGrace)
}

// goesBefore orders what a registry can give again before what it cannot.
func goesBefore(a, b *group) bool {
	if a.imported.IsZero() != b.imported.IsZero() {
		return a.imported.IsZero()
	}
	return a.used.Before(b.used)
}
