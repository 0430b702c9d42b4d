package tree

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// notOurs are folders that are built, fetched or git's own.
var notOurs = []string{".git", ".cache", "bin", "third_party"}

// repository is what the tests look at.
type repository struct {
	root    string
	modules []string // folders, as go.work names them
	files   []string // slash-separated, from the root
}

// found finds the repository once, by its go.work.
var found = sync.OnceValues(find)

func open(t *testing.T) *repository {
	t.Helper()
	r, err := found()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func find() (*repository, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for !exists(filepath.Join(dir, "go.work")) {
		if dir == filepath.Dir(dir) {
			return nil, fs.ErrNotExist
		}
		dir = filepath.Dir(dir)
	}
	r := &repository{root: dir}
	work, err := os.ReadFile(filepath.Join(dir, "go.work"))
	if err != nil {
		return nil, err
	}
	for _, m := range regexp.MustCompile(`(?m)^\t\./(\S+)$`).FindAllStringSubmatch(string(work), -1) {
		r.modules = append(r.modules, m[1])
	}
	err = filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		switch {
		case e.IsDir() && slices.Contains(notOurs, rel):
			return fs.SkipDir
		case slices.Contains(notOurs, rel): // .git of a worktree
		case e.Type().IsRegular():
			r.files = append(r.files, filepath.ToSlash(rel))
		}
		return nil
	})
	return r, err
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func (r *repository) read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(r.root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// matching lists the files with a name that ends so.
func (r *repository) matching(suffix string) []string {
	return slices.DeleteFunc(slices.Clone(r.files), func(f string) bool { return !strings.HasSuffix(f, suffix) })
}

// source is one Go file that was written by hand.
type source struct {
	file    string // from the root
	module  string // the folder of its module
	test    bool
	name    string // of the package
	comment string // of the package
	imports []string
	syntax  *ast.File
}

func (s source) folder() string { return path.Dir(s.file) }

// sources parses all Go files but the generated and what tests build by themselves.
var sources = sync.OnceValues(func() ([]source, error) {
	r, err := found()
	if err != nil {
		return nil, err
	}
	var out []source
	for _, file := range r.matching(".go") {
		if strings.HasPrefix(file, "proto/gen/") || strings.Contains(file, "/testdata/") {
			continue
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), filepath.Join(r.root, file), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		s := source{file: file, module: r.moduleOf(file), test: strings.HasSuffix(file, "_test.go"), name: syntax.Name.Name, syntax: syntax}
		s.comment = strings.TrimSpace(syntax.Doc.Text())
		for _, i := range syntax.Imports {
			s.imports = append(s.imports, strings.Trim(i.Path.Value, `"`))
		}
		out = append(out, s)
	}
	return out, nil
})

func goFiles(t *testing.T) []source {
	t.Helper()
	out, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (r *repository) moduleOf(file string) string {
	for _, m := range r.modules {
		if strings.HasPrefix(file, m+"/") {
			return m
		}
	}
	return ""
}

// run returns what the go command says in a folder, without the workspace.
func (r *repository) run(t *testing.T, folder string, args ...string) string {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Stderr = filepath.Join(r.root, folder), &stderr
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s in %s: %v\n%s", strings.Join(args, " "), folder, err, stderr.String())
	}
	return string(out)
}
