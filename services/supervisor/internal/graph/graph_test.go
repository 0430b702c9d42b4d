package graph

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"staddle.internal/kit/config"
)

func component(name string, needs ...string) config.Component {
	return config.Component{Name: name, Needs: needs}
}

func TestNew_RefusesWithAllProblems(t *testing.T) {
	tests := []struct {
		name       string
		components []config.Component
		want       []string
	}{
		{"unknown need", []config.Component{component("storage"), component("host", "storag")},
			[]string{`"host" needs "storag", which is no component; the nearest known component is "storage"`}},
		{"self edge", []config.Component{component("a", "a")}, []string{`"a" needs itself`}},
		{"circle of three, and one who waits for it",
			[]config.Component{component("w", "a"), component("a", "b"), component("b", "c"), component("c", "a")},
			[]string{"in a circle: a -> b -> c -> a"}},
		{"circle by order only", []config.Component{{Name: "a", OrderOnly: []string{"b"}}, component("b", "a")},
			[]string{"in a circle: a -> b -> a"}},
		{"two circles", []config.Component{component("a", "b"), component("b", "a"), component("c", "d"), component("d", "c")},
			[]string{"a -> b -> a", "c -> d -> c"}},
		{"duplicate and empty name", []config.Component{component("a"), component("a"), component("")},
			[]string{`"a" is listed twice`, "name"}},
		{"bad label", []config.Component{component("Storage_1")}, []string{"name"}},
		{"everything at once", []config.Component{component("a", "a", "x"), component("b", "c"), component("c", "b"), component("b")},
			[]string{"needs itself", `"x", which is no component`, "b -> c -> b", "listed twice"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New("node.yaml", tt.components)
			problem, ok := errors.AsType[*config.Error](err)
			if !ok {
				t.Fatalf("got error %v, want *config.Error", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(problem.Error(), want) {
					t.Errorf("got:\n%v\nwant it to contain %q", problem, want)
				}
			}
		})
	}
}

func TestNew_OrdersEachAfterItsEdges(t *testing.T) {
	cfg := config.DefaultNode()
	cfg.Supervisor.Composition = config.CompositionMachine
	g, err := New("node.yaml", cfg.Graph())
	if err != nil {
		t.Fatal(err)
	}
	names := g.Names()
	for _, want := range []string{"coordinator", "containerd", "clusteraccess", "storage", "sandboxhost", "storage-agent", "sandbox-agent", "presence"} {
		if !slices.Contains(names, want) {
			t.Errorf("got %v, want %s among them", names, want)
		}
	}
	for i, c := range g.Components {
		for _, need := range edges(c) {
			if at := slices.Index(names, need); at < 0 || at > i {
				t.Errorf("got %s at %d, want it after %s at %d", c.Name, i, need, at)
			}
		}
	}
}

func TestNew_LeavesOutEdgesToTheOutside(t *testing.T) {
	cfg := config.DefaultNode()
	cfg.Containerd.Managed = false
	g, err := New("node.yaml", cfg.Graph(), config.ContainerdName)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range g.Components {
		if slices.Contains(c.Needs, config.ContainerdName) {
			t.Errorf("got %s needs %v, want no containerd", c.Name, c.Needs)
		}
	}
}
