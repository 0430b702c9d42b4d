package tree

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

func TestPackages_HaveOneComment(t *testing.T) {
	comments, packages := map[string][]string{}, map[string]bool{}
	for _, s := range goFiles(t) {
		id := s.folder() + " (" + strings.TrimSuffix(s.name, "_test") + ")"
		packages[id] = true
		if s.comment == "" {
			continue
		}
		comments[id] = append(comments[id], s.file)
		want := "Package " + s.name
		if s.name == "main" {
			want = "Command "
		}
		if !strings.HasPrefix(s.comment, want) {
			t.Errorf("%s: the comment begins %.40q, want %q", s.file, s.comment, want)
		}
	}
	for id := range packages {
		if len(comments[id]) != 1 {
			t.Errorf("package %s has %d comments %v, want one", id, len(comments[id]), comments[id])
		}
	}
}

// A test waits for a condition. In a bubble of testing/synctest a sleep lets fake
// time pass, so packages whose tests use bubbles are left to review; e2e/cmd holds
// the workloads that tests run.
func TestTests_DoNotSleep(t *testing.T) {
	bubbles := map[string]bool{}
	for _, s := range goFiles(t) {
		bubbles[s.folder()] = bubbles[s.folder()] || slices.Contains(s.imports, "testing/synctest")
	}
	for _, s := range goFiles(t) {
		if !s.test && s.module != "e2e" || strings.HasPrefix(s.file, "e2e/cmd/") || bubbles[s.folder()] {
			continue
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s: a test sleeps in real time, want it to wait for a condition", s.file)
				}
			}
			return true
		})
	}
}

func TestTests_AreNotSkipped(t *testing.T) {
	for _, s := range goFiles(t) {
		if !s.test && s.module != "e2e" {
			continue
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
				t.Errorf("%s: it calls %s, want a test that runs or fails", s.file, sel.Sel.Name)
			}
			return true
		})
	}
}
