package tree

import (
	"encoding/json"
	"path/filepath"
	"testing"
)

// manifest is what a go.mod says, as the go command reads it.
type manifest struct {
	Module  struct{ Path string }
	Go      string
	Require []struct {
		Path, Version string
		Indirect      bool
	}
	Replace []struct {
		Old struct{ Path string }
		New struct{ Path string }
	}
}

func (r *repository) manifest(t *testing.T, module string) manifest {
	t.Helper()
	var m manifest
	if err := json.Unmarshal([]byte(r.run(t, module, "mod", "edit", "-json")), &m); err != nil {
		t.Fatalf("read go.mod of %s: %v", module, err)
	}
	return m
}

func TestModules_AgreeOnVersions(t *testing.T) {
	r := open(t)
	type use struct{ version, module string }
	first := map[string]use{}
	agree := func(what, version, module string) {
		if other, ok := first[what]; ok && other.version != version {
			t.Errorf("%s states %s %s, and %s states %s", module, what, version, other.module, other.version)
		}
		first[what] = use{version, module}
	}
	if len(r.modules) < 10 {
		t.Fatalf("go.work names %v, want all modules", r.modules)
	}
	for _, module := range append([]string{"tools"}, r.modules...) {
		agree("go", r.manifest(t, module).Go, module)
	}
	for _, module := range r.modules { // tools is on its own: see docs/decisions
		for _, require := range r.manifest(t, module).Require {
			if !require.Indirect {
				agree(require.Path, require.Version, module)
			}
		}
	}
}

// A go.mod states all that its module needs: the workspace hides what is missing.
func TestModules_StandAlone(t *testing.T) {
	r := open(t)
	for _, module := range r.modules {
		r.run(t, module, "list", "-deps", "./...") // fails the test by itself
	}
}

// A module is called after its folder, and finds its siblings without the workspace.
func TestModules_FindEachOther(t *testing.T) {
	r := open(t)
	for _, module := range r.modules {
		m := r.manifest(t, module)
		if m.Module.Path != own+module {
			t.Errorf("%s is called %s, want %s", module, m.Module.Path, own+module)
		}
		for _, replace := range m.Replace {
			want := filepath.Join(r.root, replace.Old.Path[len(own):])
			if got := filepath.Join(r.root, module, replace.New.Path); got != want {
				t.Errorf("%s finds %s in %s, want %s", module, replace.Old.Path, got, want)
			}
		}
	}
}
