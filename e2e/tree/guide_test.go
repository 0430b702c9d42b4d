package tree

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// troubleRow is a row of the table of errors: what is said, in the first column.
var troubleRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| .* \\| .* \\|$")

// The guide explains errors by their words, so the program must say those words.
// What differs each time is left out by "…" there, and by a verb in the program.
func TestGuide_ErrorsAreTheProgramsWords(t *testing.T) {
	r := open(t)
	var program strings.Builder
	for _, file := range r.matching(".go") {
		if !strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "proto/gen/") && !strings.HasPrefix(file, "e2e/") {
			program.WriteString(r.read(t, file))
		}
	}
	_, table, found := strings.Cut(r.read(t, "docs/guide/operations.md"), "| it says |")
	rows := troubleRow.FindAllStringSubmatch(table, -1)
	if !found || len(rows) < 10 {
		t.Fatalf("found %d errors in the guide, want its table", len(rows))
	}
	for _, row := range rows {
		if !says(program.String(), row[1]) {
			t.Errorf("the guide explains %q, which no program says", row[1])
		}
	}
}

// says looks for a line of the program in which all parts of a message follow each
// other.
func says(program, message string) bool {
	var parts []string
	for part := range strings.SplitSeq(message, "…") {
		parts = append(parts, regexp.QuoteMeta(strings.TrimSpace(part)))
	}
	return regexp.MustCompile(strings.Join(parts, ".*")).MatchString(program)
}

// Each page of the guide is named on its first page, and that in the README.
func TestGuide_IsFound(t *testing.T) {
	r := open(t)
	first := "docs/guide/README.md"
	if !strings.Contains(r.read(t, "README.md"), "docs/guide") {
		t.Error("README.md does not name the guide")
	}
	pages := slices.DeleteFunc(r.matching(".md"), func(f string) bool { return !strings.HasPrefix(f, "docs/guide/") || f == first })
	for _, page := range pages {
		if !strings.Contains(r.read(t, first), "`"+page+"`") {
			t.Errorf("%s does not name %s", first, page)
		}
	}
}
