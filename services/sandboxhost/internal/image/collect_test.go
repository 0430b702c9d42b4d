package image

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"staddle.internal/services/sandboxhost/internal/filesystem"
)

var testRules = Rules{HighPercent: 85, LowPercent: 80, MinFree: 10, MinAge: time.Hour, ImportGrace: 24 * time.Hour}

func TestRules_Full(t *testing.T) {
	for _, c := range []struct {
		name     string
		disk     filesystem.Space
		underWay bool
		want     bool
	}{
		{"room", filesystem.Space{Size: 1000, Free: 151}, false, false},
		{"at the high mark", filesystem.Space{Size: 1000, Free: 150}, false, true},
		{"goes on between the marks", filesystem.Space{Size: 1000, Free: 185}, true, true},
		{"does not begin between the marks", filesystem.Space{Size: 1000, Free: 185}, false, false},
		{"ends at the low mark", filesystem.Space{Size: 1000, Free: 200}, true, false},
		{"inodes", filesystem.Space{Size: 1000, Free: 900, Inodes: 100, InodesFree: 15}, false, true},
		{"too little in any case", filesystem.Space{Size: 20, Free: 9}, false, true},
		{"cannot be measured", filesystem.Space{}, false, false},
	} {
		if got := testRules.Full(c.disk, c.underWay); got != c.want {
			t.Errorf("%s: got %t", c.name, got)
		}
	}
	if (Rules{}).Full(filesystem.Space{Size: 1000}, false) {
		t.Error("without rules a full disk begins a cleaning")
	}
}

// kept makes an image that was used so long ago.
func kept(now time.Time, name string, ago time.Duration, change ...func(*Kept)) Kept {
	k := Kept{Name: name, Digest: digest.FromString(name), LastUsed: now.Add(-ago)}
	for _, c := range change {
		c(&k)
	}
	return k
}

func pinned(k *Kept)                    { k.Pinned = true }
func used(k *Kept)                      { k.User = "sandbox web" }
func imported(at time.Time) func(*Kept) { return func(k *Kept) { k.Imported = at } }
func same(d digest.Digest) func(*Kept)  { return func(k *Kept) { k.Digest = d } }

func TestRules_Next(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const h, day, year = time.Hour, 24 * time.Hour, 365 * 24 * time.Hour
	shared := digest.FromString("shared")
	for _, c := range []struct {
		name string
		full bool
		age  time.Duration // MaxAge
		all  []Kept
		want []string
	}{
		{"nothing", true, 0, nil, nil},
		{"room enough", false, 0, []Kept{kept(now, "a", year)}, nil},
		{"unused for longest", true, 0, []Kept{kept(now, "a", 2*h), kept(now, "b", 4*h), kept(now, "c", 3*h)}, []string{"b"}},
		{"the same age, by name", true, 0, []Kept{kept(now, "b", 2*h), kept(now, "a", 2*h)}, []string{"a"}},
		{"too young", true, 0, []Kept{kept(now, "a", h-1)}, nil},
		{"old enough", true, 0, []Kept{kept(now, "a", h)}, []string{"a"}},
		{"used in the future", true, 0, []Kept{kept(now, "a", -year)}, nil},
		{"in use", true, time.Minute, []Kept{kept(now, "a", year, used)}, nil},
		{"pinned", true, time.Minute, []Kept{kept(now, "a", year, pinned)}, nil},
		{"just imported", true, time.Minute, []Kept{kept(now, "a", year, imported(now.Add(-day+1)))}, nil},
		{"imported before the grace", true, 0, []Kept{kept(now, "a", year, imported(now.Add(-day)))}, []string{"a"}},
		{"imported ones last", true, 0, []Kept{kept(now, "a", year, imported(now.Add(-year))), kept(now, "b", 2*h)}, []string{"b"}},
		{"imported, never for its age", false, h, []Kept{kept(now, "a", year, imported(now.Add(-year)))}, nil},
		{"past the age", false, day, []Kept{kept(now, "a", day-1), kept(now, "b", day)}, []string{"b"}},
		{"all names together", true, 0, []Kept{kept(now, "b", 2*h, same(shared)), kept(now, "a", 3*h, same(shared))}, []string{"a", "b"}},
		{"one name is used", true, 0, []Kept{kept(now, "b", 2*h, same(shared), used), kept(now, "a", 3*h, same(shared))}, nil},
		{"one name is pinned", true, 0, []Kept{kept(now, "b", 2*h, same(shared), pinned), kept(now, "a", 3*h, same(shared))}, nil},
		{"one name was just used", true, 0, []Kept{kept(now, "b", 0, same(shared)), kept(now, "a", 3*h, same(shared))}, nil},
	} {
		rules := testRules
		rules.MaxAge = c.age
		got, found := rules.Next(now, c.full, c.all)
		if found != (c.want != nil) || !slices.Equal(got.Names, c.want) {
			t.Errorf("%s: got %+v, %t, want %v", c.name, got, found, c.want)
		}
		if found && (!strings.Contains(got.Why, "unused for") || c.full != strings.Contains(got.Why, "disk is full")) {
			t.Errorf("%s: why is %q", c.name, got.Why)
		}
	}
}

func TestRules_Prunable(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	all := []Kept{
		kept(now, "young", time.Minute), kept(now, "old", time.Hour), kept(now, "used", time.Hour, used),
		kept(now, "pinned", time.Hour, pinned), kept(now, "imported", time.Hour, imported(now.Add(-time.Hour))),
	}
	if got := testRules.Prunable(now, all, false); !slices.Equal(got, []string{"old"}) {
		t.Errorf("got %v", got)
	}
	if got := testRules.Prunable(now, all, true); !slices.Equal(got, []string{"imported", "old", "young"}) {
		t.Errorf("all: got %v", got)
	}
}

func TestNoteOf(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		noted, needed bool
		want          string
		change        bool
	}{
		{false, false, "", false}, {true, true, "", false}, {false, true, nowValue, true}, {true, false, "2026-01-02T03:04:05Z", true},
	} {
		if got, change := noteOf(c.noted, c.needed, now); got != c.want || change != c.change {
			t.Errorf("noted %t, needed %t: got %q, %t", c.noted, c.needed, got, change)
		}
	}
}

func TestFreed(t *testing.T) {
	all := map[string]parts{
		"a": {"base": 100, "a": 10, "both": 5}, "b": {"base": 100, "b": 20, "both": 5}, "c": {"base": 100},
	}
	for _, c := range []struct {
		going []string
		want  int64
	}{
		{nil, 0}, {[]string{"a"}, 10}, {[]string{"a", "b"}, 35}, {[]string{"c"}, 0}, {[]string{"a", "b", "c"}, 135},
	} {
		going := map[string]bool{}
		for _, name := range c.going {
			going[name] = true
		}
		if got := freed(all, going); got != c.want {
			t.Errorf("%v: got %d, want %d", c.going, got, c.want)
		}
	}
}

func TestUses_NothingIsTakenFromUnderItsUser(t *testing.T) {
	u, start := newUses(), time.Now()
	if again, err := u.claim(t.Context(), "a", start); again || err != nil {
		t.Fatalf("claim: %t, %v", again, err)
	}
	if done, why := u.leave("a", start); done != nil || !strings.Contains(why, "just asked") {
		t.Errorf("asked for after the users were counted: got %q", why)
	}
	release, ok := u.read("a")
	if !ok {
		t.Fatal("not read")
	}
	if done, why := u.leave("a", start.Add(time.Second)); done != nil || why != "an export" {
		t.Errorf("read: got %q", why)
	}
	release()
	release() // harmless
	done, why := u.leave("a", start.Add(time.Second))
	if done == nil {
		t.Fatalf("not taken: %s", why)
	}
	if again, why := u.leave("a", start.Add(time.Second)); again != nil || why != "another removal" {
		t.Errorf("taken twice: got %q", why)
	}
	if _, ok := u.read("a"); ok {
		t.Error("read what is being removed")
	}
	waited := make(chan bool)
	go func() {
		again, err := u.claim(t.Context(), "a", time.Now())
		waited <- again && err == nil
	}()
	done(true)
	if !<-waited && u.last("a").IsZero() { // it came before or after the end
		t.Error("who came meanwhile neither waited nor has it")
	}
}
