package tree

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

const own = "staddle.internal/"

// arrows say what each module may import of the others. A folder ending in a
// slash means all modules below it.
var arrows = map[string][]string{
	"proto":     nil,
	"kit":       {"proto"},
	"services/": {"kit", "proto"},
	"node":      {"kit", "services/"},
	"cli":       {"kit", "proto"},
	"e2e":       {"kit", "proto"},
	"bench":     {"kit", "proto", "e2e"},
}

func allowed(from, to string) bool {
	for module, targets := range arrows {
		if under(from, module) {
			return from == to || slices.ContainsFunc(targets, func(target string) bool { return under(to, target) })
		}
	}
	return false
}

func under(module, pattern string) bool {
	return module == pattern || strings.HasSuffix(pattern, "/") && strings.HasPrefix(module, pattern)
}

func TestImports_PointOneWay(t *testing.T) {
	r := open(t)
	for _, s := range goFiles(t) {
		for _, imported := range s.imports {
			target, ours := strings.CutPrefix(imported, own)
			if ours && !allowed(s.module, r.moduleOf(target+"/")) {
				t.Errorf("%s imports %s: want the arrows of the tree", s.file, imported)
			}
		}
	}
}

// kitContracts are the contracts that every process has, and the only that kit knows.
var kitContracts = []string{own + "proto/gen/staddle/options/v1", own + "proto/gen/staddle/process/v1"}

func TestImports_KitKnowsNoDomain(t *testing.T) {
	for _, s := range goFiles(t) {
		for _, imported := range s.imports {
			if s.module == "kit" && strings.HasPrefix(imported, own+"proto/") && !slices.Contains(kitContracts, imported) {
				t.Errorf("%s imports %s, want none of the domain's contracts in kit", s.file, imported)
			}
		}
	}
}

// Everywhere else an error has a kind.
func TestImports_OnlyFaultKnowsCodes(t *testing.T) {
	for _, s := range goFiles(t) {
		for _, code := range []string{"google.golang.org/grpc/codes", "google.golang.org/grpc/status"} {
			if !s.test && s.folder() != "kit/fault" && slices.Contains(s.imports, code) {
				t.Errorf("%s imports %s, want kit/fault alone to", s.file, code)
			}
		}
	}
}

// A program that imports testing has its flags, and prints as if it were a test.
func TestImports_TestSupportStaysOutOfPrograms(t *testing.T) {
	for _, s := range goFiles(t) {
		support := s.test || s.module == "e2e" || strings.Contains(path.Base(s.folder()), "test")
		if !support && slices.Contains(s.imports, "testing") {
			t.Errorf("%s imports testing, want only tests, e2e and packages with test in their name to", s.file)
		}
	}
}

// linked says what a module must not have in its binaries, directly or not.
var linked = []struct{ module, prefix, because string }{
	{"services/presence", "github.com/containerd/", "presence only asks the others"},
	{"services/storage", "github.com/containerd/", "volumes have nothing to do with containers"},
	{"services/clusteraccess", "github.com/containerd/", "the link to the coordinator touches no containers"},
	{"cli", "github.com/containerd/containerd", "the command line talks to our contracts alone"},
	{"cli", "go.etcd.io/etcd/", "only the coordinator talks to etcd"},
	{"node", "go.etcd.io/etcd/", "only the coordinator talks to etcd"},
	{"node", own + "e2e", "tests are no part of a node"},
	{"services/coordinator", own + "e2e", "tests are no part of a coordinator"},
	{"cli", own + "e2e", "tests are no part of the command line"},
}

func TestImports_LinkedPackages(t *testing.T) {
	r := open(t)
	for _, l := range linked {
		for dep := range strings.FieldsSeq(r.run(t, l.module, "list", "-deps", "./...")) {
			if strings.HasPrefix(dep, l.prefix) {
				t.Errorf("%s links %s: %s", l.module, dep, l.because)
			}
		}
	}
}

// A service with this method is asked for access instead of the interceptor that all
// others share.
func TestServices_NoneDecidesItsOwnAccess(t *testing.T) {
	for _, s := range goFiles(t) {
		for _, d := range s.syntax.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "AuthFuncOverride" {
				t.Errorf("%s has a service that overrides access, want the option of the method to decide", s.file)
			}
		}
	}
}
