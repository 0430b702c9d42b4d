package tree

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	quoted = regexp.MustCompile("`([^`\n]+)`")
	// A path is made of names and slashes and begins with what lies in the root.
	pathLike = regexp.MustCompile(`^[\w.-]+(/[\w.-]+)*/?$`)
	// What is built does not lie in the repository.
	built = regexp.MustCompile(`^(bin|third_party)/`)
	// A row of the trail: number, file, what happens, identifier.
	trailRow = regexp.MustCompile("(?m)^\\| (\\d) \\| `([^`]+)` \\| .* \\| `(\\w+)` \\|$")
)

// rootEntries are the names that lie in the root, where every path begins.
func rootEntries(r *repository) []string {
	var out []string
	for _, f := range r.files {
		first, _, _ := strings.Cut(f, "/")
		out = append(out, first)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestDocuments_NameWhatExists(t *testing.T) {
	r := open(t)
	entries := rootEntries(r)
	checked := 0
	for _, doc := range r.matching(".md") {
		for _, m := range quoted.FindAllStringSubmatch(r.read(t, doc), -1) {
			name := m[1]
			first, _, below := strings.Cut(name, "/")
			file := below || path.Ext(name) != "" && path.Base(name) == name && slices.Contains([]string{".md", ".yml", ".work", ".sh"}, path.Ext(name))
			if !pathLike.MatchString(name) || built.MatchString(name) || !file || below && !slices.Contains(entries, first) {
				continue
			}
			checked++
			if !exists(filepath.Join(r.root, name)) {
				t.Errorf("%s names %s, which does not exist", doc, name)
			}
		}
	}
	if checked < 10 {
		t.Errorf("found %d paths in documents, want at least the trail's", checked)
	}
}

// The trail of ARCHITECTURE.md leads from a request to a running sandbox: each file
// holds the name by which it leads on.
func TestDocuments_TrailLeadsOn(t *testing.T) {
	r := open(t)
	rows := trailRow.FindAllStringSubmatch(r.read(t, "ARCHITECTURE.md"), -1)
	if len(rows) != 6 {
		t.Fatalf("the trail has %d rows, want 6", len(rows))
	}
	for _, row := range rows {
		file, identifier := row[2], row[3]
		if !exists(filepath.Join(r.root, file)) {
			t.Errorf("step %s: %s does not exist", row[1], file)
			continue
		}
		if !regexp.MustCompile(`\b` + identifier + `\b`).MatchString(r.read(t, file)) {
			t.Errorf("step %s: %s does not mention %s", row[1], file, identifier)
		}
	}
}

// testName is a test that a document names as a proof.
var testName = regexp.MustCompile("`(Test[A-Z]\\w*)`")

// Every test that a document names is there: what nothing proves any more must not
// be said to be proved.
func TestDocuments_NameTestsThatExist(t *testing.T) {
	r := open(t)
	var tests strings.Builder
	for _, file := range r.matching("_test.go") {
		tests.WriteString(r.read(t, file))
	}
	checked := 0
	for _, doc := range r.matching(".md") {
		for _, m := range testName.FindAllStringSubmatch(r.read(t, doc), -1) {
			checked++
			if !strings.Contains(tests.String(), "\nfunc "+m[1]+"(t *testing.T)") {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
			}
		}
	}
	if checked < 20 {
		t.Errorf("found %d tests in documents, want at least those of the registries", checked)
	}
}

// developerPath is a place on the machine of whoever wrote a file. What lies in an
// image or in /proc is behind another name, so a letter or slash before it counts.
var developerPath = regexp.MustCompile(`(^|[\s"'=(:,` + "`" + `])/(work|Users|root/go|home/\w+|tmp/\w+)/`)

func TestFiles_NameNoDevelopersMachine(t *testing.T) {
	r := open(t)
	for _, file := range r.files {
		if strings.HasSuffix(file, ".sum") || strings.HasPrefix(file, "proto/gen/") {
			continue
		}
		for line := range strings.Lines(r.read(t, file)) {
			m := developerPath.FindString(line)
			example := strings.HasSuffix(file, "_test.go") && strings.Contains(m, "/home/") // tests make up users
			if m != "" && !example {
				t.Errorf("%s names %q, which is on one machine only", file, strings.TrimSpace(m))
			}
		}
	}
}
